// LayerNorm, layers/layernorm.py, fused with the residual addition and the dropout before it in block_forward of
// model/transformer.py: each row is read and written once.
//
// A block has a row at a time and keeps it in registers, up to ROW_QUADS quads a thread: thread n has the quads n,
// n + blockDim.x, ... Block: ceil(C / 384) warps, so 64 threads for C = 768; at most 512 threads, so C is at most 6144.

constexpr int ROW_QUADS = 3;

// residual_layernorm_forward: x_out = x + dropout(branch); y, mean, rstd = layernorm_forward(x_out).
//
// x, branch, x_out, y (N, C); mean, rstd (N); weight, bias (C). If branch is null nothing is added, and x_out may be
// null. bias may be null. x_out may be x. Grid N.
extern "C" __global__ void __launch_bounds__(512) residual_layernorm_forward(
        float* x_out, real* y, float* mean, float* rstd, const float* x, const real* branch, const float* weight,
        const float* bias, int C, float eps, float p, const unsigned* stream, unsigned site) {
    const long long row = static_cast<long long>(blockIdx.x) * C;
    Quad centred[ROW_QUADS];                        // x itself at first
    Neighbours<real, 4> addend[ROW_QUADS];
    #pragma unroll
    for (int q = 0; q < ROW_QUADS; q++) {           // all reads before the first use, so that their latencies overlap
        const int c = 4 * (threadIdx.x + q * blockDim.x);
        if (c >= C) continue;
        centred[q] = load_quad(x + row + c);
        if (branch) addend[q] = load_four(branch + row + c);
    }
    float sum = 0;
    #pragma unroll
    for (int q = 0; q < ROW_QUADS; q++) {
        const int c = 4 * (threadIdx.x + q * blockDim.x);
        if (c >= C) continue;
        if (branch) {                               // x_out = x + dropout(branch)
            const Quad dropped = to_quad(addend[q]), mask = dropout_factors(row + c, p, stream, site);
            for (int k = 0; k < 4; k++) centred[q][k] += dropped[k] * mask[k];
        }
        if (x_out) store_quad(x_out + row + c, centred[q]);
        for (int k = 0; k < 4; k++) sum += centred[q][k];
    }
    const float row_mean = block_sum(sum) / C;      // mean = row_sum(x) / C

    float square_sum = 0;
    #pragma unroll
    for (int q = 0; q < ROW_QUADS; q++) {
        if (4 * (threadIdx.x + q * blockDim.x) >= C) continue;
        for (int k = 0; k < 4; k++) {
            centred[q][k] -= row_mean;              // centred = x - mean
            square_sum += centred[q][k] * centred[q][k];
        }
    }
    const float var = block_sum(square_sum) / C;    // var = row_dot(centred, centred) / C
    const float row_rstd = 1 / sqrtf(var + eps);    // rstd = 1.0 / np.sqrt(var + eps)

    #pragma unroll
    for (int q = 0; q < ROW_QUADS; q++) {
        const int c = 4 * (threadIdx.x + q * blockDim.x);
        if (c >= C) continue;
        const Quad w = load_quad(weight + c), b = bias ? load_quad(bias + c) : Quad{};
        Quad normed;                                // y = centred * rstd * weight + bias
        for (int k = 0; k < 4; k++) normed[k] = centred[q][k] * row_rstd * w[k] + b[k];
        store_quad(y + row + c, normed);
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = row_mean;
        rstd[blockIdx.x] = row_rstd;
    }
}

// layernorm_backward: with `set`, dx = layernorm_backward(dy); without it, this is added to dx, the gradient that the
// residual stream carries past the branch. dbranch = dropout_backward(dx), the gradient of the branch that was added
// into x; may be null.
//
// dy, x, dx, dbranch (N, C); mean, rstd (N); weight (C). xhat is recomputed from x. dweight_parts and dbias_parts
// (gridDim.x, C), to be summed by column_sum_parts: what a block's rows add to dweight and dbias. dbias_parts may be
// null.
//
// A block takes every gridDim.x-th row and keeps its shares of dweight and dbias in registers. Grid: any number of
// blocks up to N; more than the GPU runs at once only add parts to sum. The engine launches 8 for each multiprocessor
// (PARTS in engine.py).
extern "C" __global__ void __launch_bounds__(512) layernorm_backward(
        float* dx, real* dbranch, float* dweight_parts, float* dbias_parts, const real* dy, const float* x,
        const float* mean, const float* rstd, const float* weight, int N, int C, int set,
        float p, const unsigned* stream, unsigned site) {
    Quad dweight[ROW_QUADS] = {}, dbias[ROW_QUADS] = {};
    for (int n = blockIdx.x; n < N; n += gridDim.x) {
        const long long row = static_cast<long long>(n) * C;
        const float row_mean = mean[n], row_rstd = rstd[n];
        Quad xhat[ROW_QUADS], dxhat[ROW_QUADS], before[ROW_QUADS] = {};     // xhat is x at first
        Neighbours<real, 4> dscaled[ROW_QUADS];
        #pragma unroll
        for (int q = 0; q < ROW_QUADS; q++) {
            const int c = 4 * (threadIdx.x + q * blockDim.x);
            if (c >= C) continue;
            xhat[q] = load_quad(x + row + c);
            dscaled[q] = load_four(dy + row + c);
            if (!set) before[q] = load_quad(dx + row + c);
        }
        float sums[2] = {};                         // of dxhat, and of dxhat xhat
        #pragma unroll
        for (int q = 0; q < ROW_QUADS; q++) {
            const int c = 4 * (threadIdx.x + q * blockDim.x);
            if (c >= C) continue;
            const Quad w = load_quad(weight + c);
            dxhat[q] = to_quad(dscaled[q]);
            for (int k = 0; k < 4; k++) {
                xhat[q][k] = (xhat[q][k] - row_mean) * row_rstd;
                // y = scaled + bias
                dbias[q][k] += dxhat[q][k];
                // scaled = xhat * weight
                dweight[q][k] += dxhat[q][k] * xhat[q][k];
                dxhat[q][k] *= w[k];
                sums[0] += dxhat[q][k];
                sums[1] += dxhat[q][k] * xhat[q][k];
            }
        }
        block_sums(sums);
        const float mean_dxhat = sums[0] / C, mean_dxhat_xhat = sums[1] / C;

        #pragma unroll
        for (int q = 0; q < ROW_QUADS; q++) {
            const int c = 4 * (threadIdx.x + q * blockDim.x);
            if (c >= C) continue;
            Quad gradient;                          // dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
            for (int k = 0; k < 4; k++)
                gradient[k] = before[q][k] + row_rstd * (dxhat[q][k] - mean_dxhat - xhat[q][k] * mean_dxhat_xhat);
            store_quad(dx + row + c, gradient);
            if (dbranch) {                          // x = x_before + dropout(branch)
                const Quad mask = dropout_factors(row + c, p, stream, site);
                for (int k = 0; k < 4; k++) gradient[k] *= mask[k];
                store_quad(dbranch + row + c, gradient);
            }
        }
    }
    #pragma unroll
    for (int q = 0; q < ROW_QUADS; q++) {
        const int c = 4 * (threadIdx.x + q * blockDim.x);
        if (c >= C) continue;
        const long long part = static_cast<long long>(blockIdx.x) * C + c;
        store_quad(dweight_parts + part, dweight[q]);
        if (dbias_parts) store_quad(dbias_parts + part, dbias[q]);
    }
}
