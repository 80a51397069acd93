// What all kernels share: the type of activations, aligned accesses of several values, sums over a warp and a block.
//
// All arithmetic is in float. Literals are written float(0.1): a bare 0.1 is a double, and would make the GPU compute
// in double, many times slower.

struct bfloat16 { unsigned short bits; };       // the upper half of a float's bits

#if BFLOAT16
typedef bfloat16 real;                          // activations, their gradients, operands of matmuls
#else
typedef float real;
#endif

#ifndef INFINITY                                // NVRTC knows no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr float LARGEST = 3.402823466e38f;      // the largest float
constexpr float LOG2_E = 1.4426950408889634;

// exp(x) as a power of 2, for which the GPU has an instruction: a quarter of expf's work. Its relative error is about
// |x| 2^-24.
__device__ __forceinline__ float quick_exp(float x) { return exp2f(x * LOG2_E); }

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bfloat16 x) { return bfloat16_bits_to_float(x.bits); }

// Rounds to the type of `to`.
__device__ __forceinline__ void round_to(float& to, float x) { to = x; }
__device__ __forceinline__ void round_to(bfloat16& to, float x) { to.bits = float_to_bfloat16_bits(x); }

__device__ __forceinline__ real to_real(float x) {
    real rounded;
    round_to(rounded, x);
    return rounded;
}

// ---- Several neighbours at once: memory is fastest where each thread reads and writes 16 bytes ----------------------

template <typename T, int n> struct alignas(n * sizeof(T) < 16 ? n * sizeof(T) : 16) Neighbours { T values[n]; };

// A pack: 16 bytes of activations. Its address is a multiple of 16.
constexpr int PACK = 16 / sizeof(real);
typedef Neighbours<real, PACK> Pack;

__device__ __forceinline__ Pack load_pack(const real* from) { return *reinterpret_cast<const Pack*>(from); }
__device__ __forceinline__ void store_pack(real* to, const Pack& pack) { *reinterpret_cast<Pack*>(to) = pack; }

// A quad: four neighbours as floats, whatever their type in memory, so that a thread can combine floats (the residual
// stream) with reals. Philox also draws four random words at a time. The index of the first is a multiple of 4.
struct Quad {
    float values[4];
    __device__ __forceinline__ float& operator[](int k) { return values[k]; }
    __device__ __forceinline__ float operator[](int k) const { return values[k]; }
};

template <typename T> __device__ __forceinline__ Neighbours<T, 4> load_four(const T* from) {
    return *reinterpret_cast<const Neighbours<T, 4>*>(from);
}

template <typename T> __device__ __forceinline__ Quad to_quad(const Neighbours<T, 4>& four) {
    Quad quad;
    for (int k = 0; k < 4; k++) quad[k] = to_float(four.values[k]);
    return quad;
}

template <typename T> __device__ __forceinline__ Quad load_quad(const T* from) { return to_quad(load_four(from)); }

template <typename T> __device__ __forceinline__ void store_quad(T* to, const Quad& quad) {
    Neighbours<T, 4> four;
    for (int k = 0; k < 4; k++) round_to(four.values[k], quad[k]);
    *reinterpret_cast<Neighbours<T, 4>*>(to) = four;
}

// ---- Sums and maxima, in an order that depends on nothing but the size of the block; every thread gets the result ---

__device__ __forceinline__ float warp_sum(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    return x;
}

// n sums at once. All threads of the block, which is one-dimensional, must call this.
template <int n> __device__ __forceinline__ void block_sums(float (&x)[n]) {
    __shared__ float warp_sums[n][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    for (int i = 0; i < n; i++) x[i] = warp_sum(x[i]);
    if (n_warps == 1) return;
    for (int i = 0; i < n; i++)
        if (lane == 0) warp_sums[i][warp] = x[i];
    __syncthreads();
    for (int i = 0; i < n; i++) x[i] = lane < n_warps ? warp_sums[i][lane] : 0;
    __syncthreads();                            // the next call may write to the array
    for (int i = 0; i < n; i++) x[i] = warp_sum(x[i]);
}

__device__ __forceinline__ float block_sum(float x) {
    float sums[] = {x};
    block_sums(sums);
    return sums[0];
}

__device__ __forceinline__ float block_max(float x) {
    __shared__ float warp_maxima[32];
    x = warp_max(x);
    if (blockDim.x == 32) return x;
    if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? warp_maxima[threadIdx.x % 32] : -INFINITY;
    __syncthreads();
    return warp_max(x);
}
