// Embedding: layers/embedding.py, and the dropout after it in model/transformer.py.

// embedding_forward: x (N, C) = dropout(wte[idx] + wpe[t]); idx (N) = (B, T), wte (V, C), wpe (block_size, C).
//
// Grid N: a block has one row. Block: C / 4 threads, rounded up to a multiple of 32, at most 1024.
extern "C" __global__ void __launch_bounds__(1024) embedding_forward(
        float* x, const int* idx, const float* wte, const float* wpe, int T, int C,
        float p, const unsigned* stream, unsigned site) {
    const long long row = static_cast<long long>(blockIdx.x) * C;
    const float* token = wte + static_cast<long long>(idx[blockIdx.x]) * C;
    const float* position = wpe + static_cast<long long>(blockIdx.x % T) * C;
    for (int c = 4 * threadIdx.x; c < C; c += 4 * blockDim.x) {
        Quad sum = load_quad(token + c);
        const Quad addend = load_quad(position + c), mask = dropout_factors(row + c, p, stream, site);
        for (int k = 0; k < 4; k++) sum[k] = (sum[k] + addend[k]) * mask[k];
        store_quad(x + row + c, sum);
    }
}

// dropout_backward: dx (n) *= mask, in place. n is a multiple of 4.
//
// Any grid: ceil(n / 1024) blocks of 256 threads have one quad a thread.
extern "C" __global__ void dropout_backward(
        float* dx, long long n, float p, const unsigned* stream, unsigned site) {
    const long long step = 4ll * gridDim.x * blockDim.x;
    for (long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x); i < n; i += step) {
        Quad values = load_quad(dx + i);
        const Quad mask = dropout_factors(i, p, stream, site);
        for (int k = 0; k < 4; k++) values[k] *= mask[k];
        store_quad(dx + i, values);
    }
}

// embedding_backward_wte: dwte[token] += the sum of the rows of dx (N, C) at which the token was read.
//
// order (N): the numbers of the rows, sorted by token; tokens (n_tokens[0]): the distinct ones; starts (n_tokens[0] +
// 1): where in order each token's rows begin. `dwte[idx[n]] += dx[n]` for all rows at once would lose rows of the same
// token; atomics would add them in an order that changes from run to run.
//
// Grid (n_tokens[0] or more, ceil(C / 128)): a block has one token and 128 columns, a lane has 4 columns, and each warp
// of the block takes its share of the rows, so that a frequent token is not one long loop.
// Block: 32 to 512 threads; the engine takes 128 for large vocabularies, in which most tokens occur once, and 512 for
// characters.
extern "C" __global__ void __launch_bounds__(512) embedding_backward_wte(
        float* dwte, const float* dx, const int* order, const int* starts, const int* tokens, const int* n_tokens,
        int C) {
    __shared__ float warp_sums[16][128];
    const int i = blockIdx.x;
    if (i >= n_tokens[0]) return;
    const int n_warps = blockDim.x / 32, warp = threadIdx.x / 32, first = 128 * blockIdx.y;
    const int column = threadIdx.x % 32 * 4;
    if (first + column < C) {
        Quad sum = {};
        #pragma unroll 4
        for (int n = starts[i] + warp; n < starts[i + 1]; n += n_warps) {
            const Quad row = load_quad(dx + static_cast<long long>(order[n]) * C + first + column);
            for (int k = 0; k < 4; k++) sum[k] += row[k];
        }
        for (int k = 0; k < 4; k++) warp_sums[warp][column + k] = sum[k];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 128 && first + c < C; c += blockDim.x) {
        float sum = 0;
        for (int w = 0; w < n_warps; w++) sum += warp_sums[w][c];
        dwte[static_cast<long long>(tokens[i]) * C + first + c] += sum;
    }
}

// embedding_backward_wpe: dwpe[t] (block_size, C) = dx.sum(axis=0)[t], the sum over the batch of dx (B, T, C). With
// `add` it is added to dwpe. No row at t >= T was read: they become 0, with `add` they stay.
//
// A thread has 4 columns of one t. Grid ceil(block_size * C / 4 / 128) blocks of 128 threads, or any other.
extern "C" __global__ void embedding_backward_wpe(
        float* dwpe, const float* dx, int B, int T, int C, int block_size, int add) {
    const long long step = 4ll * gridDim.x * blockDim.x;
    const long long n = static_cast<long long>(block_size) * C, n_read = static_cast<long long>(T) * C;
    for (long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x); i < n; i += step) {
        Quad sum = {};
        if (i < n_read) {
            #pragma unroll 4
            for (int b = 0; b < B; b++) {
                const Quad row = load_quad(dx + b * n_read + i);
                for (int k = 0; k < 4; k++) sum[k] += row[k];
            }
        }
        if (add) {
            const Quad before = load_quad(dwpe + i);
            for (int k = 0; k < 4; k++) sum[k] += before[k];
        }
        store_quad(dwpe + i, sum);
    }
}
