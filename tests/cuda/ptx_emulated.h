// What npgpt/engine/cuda/ptx.cu does with single instructions of the GPU, in plain C++: the semantics that NVIDIA's
// PTX manual documents. Names and parameters are those of ptx.cu.

typedef decltype(1.0f) Single;          // a float of 32 bits, also where `float` stands for double

inline unsigned short float_to_bfloat16_bits(float x) {
    const Single single = static_cast<Single>(x);
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (single != single) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

UNCHECKED inline float bfloat16_bits_to_float(unsigned short bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    Single x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

inline unsigned float_to_bfloat16_pair(float first, float second) {
    return float_to_bfloat16_bits(first) | static_cast<unsigned>(float_to_bfloat16_bits(second)) << 16;
}

// The bits of tf32, the upper 19, of x plus `half` of the lowest of them.
UNCHECKED inline float tf32_bits(float x, uint32_t half) {
#if DOUBLE
    return x;                           // as exact as the mode that it is for
#else
    if (!std::isfinite(x)) return x;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + half) & ~0x1FFFu;    // sign and magnitude: ties go away from zero
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

inline float round_to_tf32(float x) { return tf32_bits(x, 0x1000); }

// Copies that a thread started: nothing has come before it waits, and what was there is gone.
struct Copy { void* to; const void* from; bool there, is_float; };
struct Copies { Copy list[64]; int n; unsigned block; };
static Copies started[1024];            // by thread

inline Copies& copies_of_thread() {
    Copies& copies = started[threadIdx.x];
    if (copies.block != emulator::blocks_begun) copies.n = 0;       // an earlier block broke off without waiting
    copies.block = emulator::blocks_begun;
    return copies;
}

inline void add_copy(const Copy& copy) {
    Copies& copies = copies_of_thread();
    if (copies.n == 64) emulator::fail("start_copy: more than 64 copies on their way to a thread"), emulator::leave();
    copies.list[copies.n++] = copy;
}

inline void start_copy(void* to_shared, const void* from_global, bool there) {
    if ((reinterpret_cast<uintptr_t>(to_shared) | reinterpret_cast<uintptr_t>(from_global)) % 16)
        emulator::fail("start_copy: an address that is not a multiple of 16");
    *static_cast<uint4*>(to_shared) = {~0u, ~0u, ~0u, ~0u};     // NaN
    add_copy({to_shared, from_global, there, false});
}

inline void start_copy_float(float* to_shared, const float* from_global, bool there) {
    *to_shared = NAN;
    add_copy({to_shared, from_global, there, true});
}

inline void wait_for_copies() {
    Copies& copies = copies_of_thread();
    for (int i = 0; i < copies.n; i++) {
        const Copy& copy = copies.list[i];
        if (copy.is_float)
            *static_cast<float*>(copy.to) = copy.there ? *static_cast<const float*>(copy.from) : 0;
        else
            *static_cast<uint4*>(copy.to) = copy.there ? *static_cast<const uint4*>(copy.from) : uint4{0, 0, 0, 0};
    }
    copies.n = 0;
}

// Value n of 2, of row r of matrix m, is in `matrices` where lane 4r + n / 2 reads it.
inline void load_matrices(unsigned (&matrices)[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16)
        emulator::fail("load_matrices: an address that is not a multiple of 16");
    auto rows = emulator::exchange("load_matrices", static_cast<const char*>(row));
    const int lane = emulator::lane();
    for (int m = 0; m < 4; m++) memcpy(&matrices[m], rows(8 * m + lane / 4) + lane % 4 * 4, 4);
}

inline void load_matrices_transposed(unsigned (&matrices)[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16)
        emulator::fail("load_matrices_transposed: an address that is not a multiple of 16");
    auto rows = emulator::exchange("load_matrices_transposed", static_cast<const char*>(row));
    const int lane = emulator::lane();
    for (int m = 0; m < 4; m++) {
        unsigned short pair[2];
        for (int n = 0; n < 2; n++) memcpy(&pair[n], rows(8 * m + lane % 4 * 2 + n) + lane / 4 * 2, 2);
        matrices[m] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
    }
}

// How a, b and d lie across a warp is said in ptx.cu.
UNCHECKED inline void mma_bfloat16(float* d, const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Operands { unsigned a[4], b[2]; } mine;
    memcpy(mine.a, a, sizeof a);
    memcpy(mine.b, b, sizeof b);
    auto operands = emulator::exchange("mma_bfloat16", mine);
    const int g = emulator::lane() / 4, t = emulator::lane() % 4;
    for (int from = 0; from < 4; from++) {                              // four lanes have a row of a, or a column of b
        const Operands row = operands(4 * g + from);
        for (int column = 0; column < 2; column++) {
            const Operands right = operands(4 * (2 * t + column) + from);
            for (int half = 0; half < 2; half++)                        // of the 16 columns of a and rows of b
                for (int shift = 0; shift < 32; shift += 16)
                    for (int i = 0; i < 2; i++)
                        d[2 * i + column] += bfloat16_bits_to_float(row.a[2 * half + i] >> shift)
                                             * bfloat16_bits_to_float(right.b[half] >> shift);
        }
    }
}

UNCHECKED inline void mma_tf32(float* d, const float (&a)[4], const float (&b)[2]) {
    struct Operands { float a[4], b[2]; } mine;
    memcpy(mine.a, a, sizeof a);
    memcpy(mine.b, b, sizeof b);
    auto operands = emulator::exchange("mma_tf32", mine);
    const int g = emulator::lane() / 4, t = emulator::lane() % 4;
    for (int from = 0; from < 4; from++) {
        const Operands row = operands(4 * g + from);
        for (int column = 0; column < 2; column++) {
            const Operands right = operands(4 * (2 * t + column) + from);
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < 2; i++)                             // what was not rounded is cut off
                    d[2 * i + column] += tf32_bits(row.a[2 * half + i], 0) * tf32_bits(right.b[half], 0);
        }
    }
}
