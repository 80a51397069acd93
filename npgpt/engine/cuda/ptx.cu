// The instructions for which CUDA C++ has no function, one function each: the only inline assembly of the kernels (PTX
// ISA 8.0, https://docs.nvidia.com/cuda/parallel-thread-execution/; all exist since sm_80). tests/cuda/ptx_emulated.h
// replaces this file if the kernels run without a GPU.
//
// The matrix instructions work on a warp's registers. Lane l has of each operand, with g = l / 4 and t = l % 4:
//
//     mma_bfloat16    d (16, 8) += a (16, 16) b (16, 8)      a[0], a[1]: rows g and g + 8, columns 2t and 2t + 1;
//                                                            a[2], a[3]: the same rows, columns 2t + 8 and 2t + 9;
//                                                            b[0], b[1]: rows 2t, 2t + 1 and 2t + 8, 2t + 9; column g
//     mma_tf32        d (16, 8) += a (16, 8) b (8, 8)        a[0], a[1]: rows g and g + 8, column t;
//                                                            a[2], a[3]: the same rows, column t + 4;
//                                                            b[0], b[1]: rows t and t + 4; column g
//     both                                                   d[0], d[1]: row g, columns 2t and 2t + 1;
//                                                            d[2], d[3]: row g + 8, the same columns

// The 16 bits of the bfloat16 nearest to x, ties to even.
__device__ __forceinline__ unsigned short float_to_bfloat16_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// A bfloat16 is the upper half of a float.
__device__ __forceinline__ float bfloat16_bits_to_float(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

// Two bfloat16s in a register, each the nearest: `first` in the low half, as the lower address of a row has it.
__device__ __forceinline__ unsigned float_to_bfloat16_pair(float first, float second) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// x with 10 bits behind the point, as tf32 has them; the nearest, ties away from zero. Volatile, so that operands which
// stay in registers over a loop are not rounded ahead of it: there is no room to keep them twice.
__device__ __forceinline__ float round_to_tf32(float x) {
    unsigned bits;
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

// Starts to copy 16 bytes to shared memory, or 16 zeros if not `there`. Both addresses are multiples of 16, and valid.
__device__ __forceinline__ void start_copy(void* to_shared, const void* from_global, bool there) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(from_global), "r"(there ? 16 : 0) : "memory");
}

// The same for a float; there the addresses are multiples of 4.
__device__ __forceinline__ void start_copy_float(float* to_shared, const float* from_global, bool there) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(address), "l"(from_global), "r"(there ? 4 : 0) : "memory");
}

// Waits for the copies that this thread started. Those of other threads are complete after the next __syncthreads.
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Four 8 x 8 matrices of 16-bit values from shared memory. Lanes 8m to 8m + 7 give the addresses of the eight rows of
// matrix m, on 16 bytes; each lane gets in matrices[m] the columns 2t and 2t + 1 of row g.
__device__ __forceinline__ void load_matrices(unsigned (&matrices)[4], const void* row) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address) : "memory");
}

// The same, each matrix transposed: each lane gets the rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&matrices)[4], const void* row) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address) : "memory");
}

// d += a b, factors in bfloat16, sums in float.
__device__ __forceinline__ void mma_bfloat16(float* d, const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a b, factors rounded by round_to_tf32, sums in float.
__device__ __forceinline__ void mma_tf32(float* d, const float (&a)[4], const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
