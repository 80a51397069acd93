// Sums over columns and over whole arrays, in a fixed order.

// column_sum: parts (gridDim.x, C), which column_sum_parts adds up: row p is block p's share of the sum over the rows
// of a (N, C).
//
// A block takes every gridDim.x-th row, a thread PACK columns. Grid (P, 1): 4 blocks for each multiprocessor of the GPU
// are enough, not more than N. Block: C / PACK threads, rounded up to a multiple of 32, at most 1024.
extern "C" __global__ void __launch_bounds__(1024) column_sum(float* parts, const real* a, int N, int C) {
    for (int c = PACK * threadIdx.x; c < C; c += PACK * blockDim.x) {
        Neighbours<float, PACK> sums = {};
        #pragma unroll 4
        for (int n = blockIdx.x; n < N; n += gridDim.x) {
            const Pack pack = load_pack(a + static_cast<long long>(n) * C + c);
            for (int k = 0; k < PACK; k++) sums.values[k] += to_float(pack.values[k]);
        }
        *reinterpret_cast<Neighbours<float, PACK>*>(parts + static_cast<long long>(blockIdx.x) * C + c) = sums;
    }
}

// column_sum_parts: out (C) = the sum over the rows of parts (P, C); with `add` it is added to out.
//
// Grid ceil(C / 32): a lane has one column, and each warp its share of the rows. Block: 32 to 1024 threads, 1024 for P
// in the hundreds.
extern "C" __global__ void __launch_bounds__(1024) column_sum_parts(
        float* out, const float* parts, int P, int C, int add) {
    __shared__ float warp_sums[32][32];
    const int n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = 32 * blockIdx.x + lane;
    float sum = 0;
    if (c < C) {
        #pragma unroll 4
        for (int row = warp; row < P; row += n_warps) sum += parts[static_cast<long long>(row) * C + c];
    }
    warp_sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= C) return;
    sum = add ? out[c] : 0;
    for (int w = 0; w < n_warps; w++) sum += warp_sums[w][lane];
    out[c] = sum;
}

// sum: out[0] = the sum of a (n); with `add` it is added to out[0]. One block, of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) sum(float* out, const float* a, int n, int add) {
    float total = 0;
    #pragma unroll 4
    for (int i = threadIdx.x; i < n; i += blockDim.x) total += a[i];
    total = block_sum(total);
    if (threadIdx.x == 0) out[0] = add ? out[0] + total : total;
}

// square_sum: parts (gridDim.x), for global_norm: block p's share of the sum of a's (n) squares. n is a multiple of 4.
//
// Any grid; 8 blocks of 256 threads for each multiprocessor of the GPU.
extern "C" __global__ void square_sum(float* parts, const float* a, long long n) {
    const long long step = 4ll * gridDim.x * blockDim.x;
    float total = 0;
    #pragma unroll 4
    for (long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x); i < n; i += step) {
        const Quad quad = load_quad(a + i);
        for (int k = 0; k < 4; k++) total += quad[k] * quad[k];
    }
    total = block_sum(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// global_norm: out[0] = the square root of the sum of parts (P). One block, of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) global_norm(float* out, const float* parts, int P) {
    float total = 0;
    for (int i = threadIdx.x; i < P; i += blockDim.x) total += parts[i];
    total = block_sum(total);
    if (threadIdx.x == 0) out[0] = sqrtf(total);
}
