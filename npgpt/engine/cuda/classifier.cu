// Softmax cross-entropy, layers/loss.py, forward and backward at once.

// The pack of logits at column c of a row, as floats. Beyond the V columns they are -infinity, so that their
// exponentials are 0.
__device__ __forceinline__ void load_logits(float (&values)[PACK], const real* row, int c, int V) {
    const Pack pack = load_pack(row + c);
    for (int k = 0; k < PACK; k++) values[k] = to_float(pack.values[k]);
    if (c + PACK <= V) return;
    for (int k = 0; k < PACK; k++)
        if (c + k >= V) values[k] = -INFINITY;
}

// classifier: losses[n] = share * -log softmax(logits[n])[targets[n]]. With `gradient`, the gradient overwrites the
// logits: dlogits = share * (probs - [column == target]). share is 1 / *count. If the target is -1, loss and dlogits
// are 0. count is read from memory, so that a recorded step can be replayed for a batch with another number of targets
// that count.
//
// logits (N, stride), a row's first V columns count; the others are padding: not read, and their dlogits are 0. stride
// is a multiple of 8; losses, targets (N).
//
// Grid N: a block has one row, and reads it twice; the second time it is still in the L2 cache. Block: stride / PACK
// threads, rounded up to a multiple of 32, at most 1024.
extern "C" __global__ void __launch_bounds__(1024) classifier(
        real* logits, float* losses, const int* targets, int V, int stride, const int* count,
        int gradient) {
    real* row = logits + static_cast<long long>(blockIdx.x) * stride;
    const int target = targets[blockIdx.x];
    float share = float(1) / *count;
    if (target < 0) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        share = 0;
    }
    const float target_logit = to_float(row[target < 0 ? 0 : target]);

    // The largest logit and the sum of exp(logit - largest), in one pass: if the largest grows, the sum so far is
    // scaled down to it.
    float largest = -LARGEST, total = 0;
    for (int c = PACK * threadIdx.x; c < V; c += PACK * blockDim.x) {
        float values[PACK], before = largest;
        load_logits(values, row, c, V);
        for (int k = 0; k < PACK; k++) largest = fmaxf(largest, values[k]);
        total *= quick_exp(before - largest);
        for (int k = 0; k < PACK; k++) total += quick_exp(values[k] - largest);
    }
    const float row_largest = block_max(largest);
    total = block_sum(total * quick_exp(largest - row_largest));
    if (target >= 0 && threadIdx.x == 0)
        losses[blockIdx.x] = share * (logf(total) - (target_logit - row_largest));
    if (!gradient) return;
    __syncthreads();                                // the target's logit has been read: it may be overwritten

    const float factor = share / total;             // dlogits = probs * share, less share at the target
    for (int c = PACK * threadIdx.x; c < stride; c += PACK * blockDim.x) {
        float values[PACK];
        load_logits(values, row, c, V);
        Pack pack;
        for (int k = 0; k < PACK; k++) pack.values[k] = to_real(quick_exp(values[k] - row_largest) * factor);
        store_pack(row + c, pack);
    }
    if (target >= 0 && threadIdx.x == target / PACK % blockDim.x)       // the thread that wrote the target's pack
        row[target] = to_real(quick_exp(target_logit - row_largest) * factor - share);
}
