// Attention without its (T, T) weights in memory (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691).
//
// All kernels: a block has ROWS rows of one head of one batch entry, 16 a warp, and goes through the rows of the other
// side (keys for queries, queries for keys) in tiles of STEP that its warps share. The next two tiles are copied while
// the warps work on two. The grid is (H, B, ceil(T / ROWS)), the block THREADS; shared memory is static.
//
// Exponentials are powers of 2, as in quick_exp: exp(x) = 2^(x log2(e)).

constexpr int ROW_BYTES = HEAD_SIZE * sizeof(real);
constexpr int STEP = ROW_BYTES <= 128 ? 64 : ROW_BYTES <= 256 ? 32 : 16;     // four tiles fit into 48 KiB
constexpr int RESIDENT = BFLOAT16 && HEAD_SIZE <= 64 ? 3 : 2;       // blocks that fit the registers of a multiprocessor

// May query i see key j? Keys from T on are padding of the last tile.
__device__ __forceinline__ bool visible(int i, int j, int T, int causal) { return j < T && (!causal || j <= i); }

// The maximum and the sum over a row of a block: its columns are spread over the four lanes that share lane / 4.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Set scores of a block to -infinity if the query may not see the key, so that their exponentials are 0. The block's
// first score is that of `query` for `key`; its rows are queries, or keys if it is transposed. Only blocks on the edges
// need this: for the others, testing each score would take longer than all other work on it.
template <bool transposed>
__device__ __forceinline__ void hide(Sums& scores, int query, int key, int T, int causal) {
    for (int n = 0; n < 8; n++) {
        const int i = transposed ? column_in_block(n) : row_in_block(n);
        const int j = transposed ? row_in_block(n) : column_in_block(n);
        if (!visible(query + i, key + j, T, causal)) scores.values[n] = -INFINITY;
    }
}

// Which weights of a block dropout keeps, a bit for each of this lane's values. The block is as for `hide`; `head`
// counts those of all batch entries.
template <bool transposed>
__device__ __forceinline__ unsigned kept_weights(
        long long head, int query, int key, int T, float p, const unsigned* stream, unsigned site) {
    // Philox is slow, and gives the words of four elements. So each lane draws eight neighbours, in two groups of four
    // (three if T is not a multiple of 4), and takes its values' bits from the lanes that drew them.
    const int lane = threadIdx.x % 32;
    const long long first = (head * T + query + lane % 16) * T + key + lane / 16 * 8;
    const int offset = first % 4;
    unsigned drawn = 0;
    #pragma unroll 1
    for (int group = 0; group < (offset ? 3 : 2); group++) {
        const Words words = random_words(static_cast<unsigned>(first / 4 + group), stream, site);
        for (int k = 0; k < 4; k++) drawn |= (factor_of(words.values[k], p) > 0) << (4 * group + k);
    }
    drawn >>= offset;
    unsigned kept = 0;
    for (int n = 0; n < 8; n++) {
        const int i = transposed ? column_in_block(n) : row_in_block(n);
        const int j = transposed ? row_in_block(n) : column_in_block(n);
        kept |= (__shfl_sync(0xffffffff, drawn, i + j / 8 * 16) >> j % 8 & 1) << n;
    }
    return kept;
}

// The block times its dropout mask.
__device__ __forceinline__ void drop(Sums& block, unsigned kept, float p) {
    const float factor = 1 / (1 - p);
    for (int n = 0; n < 8; n++) block.values[n] = kept >> n & 1 ? block.values[n] * factor : 0;
}

// attention_forward: out = dropout(softmax(q k^T scale)) v, and lse = log(sum(exp(scores))), a number for each query.
//
// qkv (B, T, 3C), out (B, T, C), lse (B, H, T). A block has ROWS queries. This is the online softmax: if a tile raises
// a query's largest score, the sums so far are scaled down to it.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_forward(
        real* out, float* lse, const real* qkv, int T, int H, float scale, int causal,
        float p, const unsigned* stream, unsigned site) {
    alignas(16) __shared__ Row tiles[2][2][STEP];                   // two pairs: keys and values
    const int h = blockIdx.x, b = blockIdx.y, C = H * HEAD_SIZE;
    const int first = (gridDim.z - 1 - blockIdx.z) * ROWS;          // causal: queries with the most keys start first
    const int first_of_warp = first + threadIdx.x / 32 * BLOCK;
    const long long head = static_cast<long long>(b) * H + h, row = static_cast<long long>(b) * T;
    const real* const q_head = qkv + row * 3 * C + h * HEAD_SIZE;

    Operand q[BLOCKS];
    load_rows(q, q_head, 3 * C, first, T, tiles[0][0]);
    Sums o[BLOCKS] = {};
    const float to_power = scale * LOG2_E;                          // exp(score) = 2^(q k to_power)
    float largest[2] = {-INFINITY, -INFINITY};                      // q k of this lane's two rows
    float sum[2] = {};                                              // over the columns that this lane has of them

    const auto copy_tiles = [&](int pair, int start) {
        copy_tile<STEP>(tiles[pair][0], q_head + C, 3 * C, start, T);
        copy_tile<STEP>(tiles[pair][1], q_head + 2 * C, 3 * C, start, T);
    };
    const int n_keys = causal ? min(first + ROWS, T) : T;
    copy_tiles(0, 0);
    for (int start = 0, pair = 0; start < n_keys; start += STEP, pair ^= 1) {
        wait_for_copies();
        __syncthreads();                                            // copied, and the other pair has been read
        if (start + STEP < n_keys) copy_tiles(pair ^ 1, start + STEP);
        const Row *k_tile = tiles[pair][0], *v_tile = tiles[pair][1];

        Sums s[STEP / BLOCK] = {};                                  // a block of scores for each 16 keys
        #pragma unroll                                              // here and below, to keep s in registers
        for (int j = 0; j < STEP / BLOCK; j++)
            for (int c = 0; c < BLOCKS; c++) multiply_add(s[j], q[c], load_right(k_tile, j * BLOCK, c * BLOCK));

        if (!visible(first_of_warp, start + STEP - 1, T, causal)) { // some scores of the tile are hidden
            #pragma unroll
            for (int j = 0; j < STEP / BLOCK; j++) hide<false>(s[j], first_of_warp, start + j * BLOCK, T, causal);
        }
        const float largest_before[2] = {largest[0], largest[1]};
        #pragma unroll
        for (int j = 0; j < STEP / BLOCK; j++)
            for (int n = 0; n < 8; n++) largest[n / 2 % 2] = fmaxf(largest[n / 2 % 2], s[j].values[n]);
        float largest_power[2], shrink[2];
        for (int r = 0; r < 2; r++) {
            largest[r] = row_max(largest[r]);
            largest_power[r] = largest[r] * to_power;
            shrink[r] = exp2f((largest_before[r] - largest[r]) * to_power);     // exactly 1 if the largest stays
            sum[r] *= shrink[r];
        }
        for (int c = 0; c < BLOCKS; c++)
            for (int n = 0; n < 8; n++) o[c].values[n] *= shrink[n / 2 % 2];

        #pragma unroll
        for (int j = 0; j < STEP / BLOCK; j++) {
            for (int n = 0; n < 8; n++) {
                s[j].values[n] = exp2f(s[j].values[n] * to_power - largest_power[n / 2 % 2]);
                sum[n / 2 % 2] += s[j].values[n];
            }
            if (p > 0) drop(s[j], kept_weights<false>(head, first_of_warp, start + j * BLOCK, T, p, stream, site), p);
            const Operand weights = to_operand(s[j]);
            for (int c = 0; c < BLOCKS; c++)
                multiply_add(o[c], weights, load_right_transposed(v_tile, j * BLOCK, c * BLOCK));
        }
    }

    for (int r = 0; r < 2; r++) {
        sum[r] = row_sum(sum[r]);
        const int query = first_of_warp + row_in_block(2 * r);
        if (threadIdx.x % 4 == 0 && query < T) lse[head * T + query] = largest[r] * scale + logf(sum[r]);
    }
    store_rows(o, {1 / sum[0], 1 / sum[1]}, out + row * C + h * HEAD_SIZE, C, first, T, tiles[0][0]);
}

// delta = row_dot(dout, out) of each head (B, H, T), the "dot" of attention_backward without its weights:
// sum_j datt_j att_j = sum_j (dout . v_j) kept_j = dout . out. A block has ROWS rows, several at a time.
extern "C" __global__ void __launch_bounds__(THREADS) attention_delta(
        float* delta, const real* dout, const real* out, int T, int H) {
    constexpr int LANES = PACKS % 32 ? PACKS & -PACKS : 32;         // that work on one row: a power of 2
    const int h = blockIdx.x, b = blockIdx.y, C = H * HEAD_SIZE, lane = threadIdx.x % LANES;
    const long long head = static_cast<long long>(b) * H + h;
    for (int n = threadIdx.x / LANES; n < ROWS; n += THREADS / LANES) {
        const int t = blockIdx.z * ROWS + n;
        float sum = 0;
        if (t < T) {
            const long long row = (static_cast<long long>(b) * T + t) * C + h * HEAD_SIZE;
            for (int column = lane * PACK; column < HEAD_SIZE; column += LANES * PACK) {
                const Pack dout_pack = load_pack(dout + row + column), out_pack = load_pack(out + row + column);
                for (int i = 0; i < PACK; i++) sum += to_float(dout_pack.values[i]) * to_float(out_pack.values[i]);
            }
        }
        for (int distance = LANES / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
        if (lane == 0 && t < T) delta[head * T + t] = sum;
    }
}

// attention_backward's dk = dscores^T q scale and dv = dropout(att)^T dout: the second and third C columns of dqkv
// (B, T, 3C). dout (B, T, C), lse and delta (B, H, T).
//
// A block has ROWS keys. Its scores are transposed, a row for each key, so that each warp adds up its own rows of dk
// and dv in registers: nothing is summed across warps or blocks.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_backward_kv(
        real* dqkv, const real* dout, const real* qkv, const float* lse, const float* delta, int T, int H, float scale,
        int causal, float p, const unsigned* stream, unsigned site) {
    alignas(16) __shared__ Row tiles[2][2][STEP];                   // two pairs: queries and dout
    __shared__ float statistics[2][2][STEP];                        // and their lse and delta
    const int h = blockIdx.x, b = blockIdx.y, C = H * HEAD_SIZE;
    const int first = blockIdx.z * ROWS;                            // causal: keys with the most queries start first
    const int first_of_warp = first + threadIdx.x / 32 * BLOCK;
    const long long head = static_cast<long long>(b) * H + h, row = static_cast<long long>(b) * T;
    const real* const q_head = qkv + row * 3 * C + h * HEAD_SIZE;
    const real* const dout_head = dout + row * C + h * HEAD_SIZE;

    Operand k[BLOCKS], v[BLOCKS];
    load_rows(k, q_head + C, 3 * C, first, T, tiles[0][0]);
    load_rows(v, q_head + 2 * C, 3 * C, first, T, tiles[0][0]);
    Sums dk[BLOCKS] = {}, dv[BLOCKS] = {};

    const auto copy_tiles = [&](int pair, int start) {
        copy_tile<STEP>(tiles[pair][0], q_head, 3 * C, start, T);
        copy_tile<STEP>(tiles[pair][1], dout_head, C, start, T);
        const int n = threadIdx.x;
        if (n < STEP) {
            const bool there = start + n < T;
            const long long from = there ? head * T + start + n : 0;
            start_copy_float(&statistics[pair][0][n], lse + from, there);
            start_copy_float(&statistics[pair][1][n], delta + from, there);
        }
    };
    const int begin = causal ? first : 0;
    copy_tiles(0, begin);
    for (int start = begin, pair = 0; start < T; start += STEP, pair ^= 1) {
        wait_for_copies();
        __syncthreads();                                            // copied, and the other pair has been read
        if (start + STEP < T) copy_tiles(pair ^ 1, start + STEP);
        const Row *q_tile = tiles[pair][0], *dout_tile = tiles[pair][1];
        const float *lse_tile = statistics[pair][0], *delta_tile = statistics[pair][1];

        const bool on_edge = !visible(start, first_of_warp + BLOCK - 1, T, causal);
        for (int i = causal ? max(first_of_warp - start, 0) : 0; i < STEP; i += BLOCK) {
            Sums s = {}, datt = {};                                 // (keys, queries)
            for (int c = 0; c < BLOCKS; c++) {
                multiply_add(s, k[c], load_right(q_tile, i, c * BLOCK));
                multiply_add(datt, v[c], load_right(dout_tile, i, c * BLOCK));
            }
            if (on_edge) hide<true>(s, start + i, first_of_warp, T, causal);
            Sums att, dscores;
            for (int n = 0; n < 8; n++)
                att.values[n] = exp2f(s.values[n] * (scale * LOG2_E) - lse_tile[i + column_in_block(n)] * LOG2_E);
            Sums weights = att;
            if (p > 0) {
                const unsigned kept = kept_weights<true>(head, start + i, first_of_warp, T, p, stream, site);
                drop(weights, kept, p);
                drop(datt, kept, p);
            }
            for (int n = 0; n < 8; n++)
                dscores.values[n] = att.values[n] * (datt.values[n] - delta_tile[i + column_in_block(n)]);
            const Operand weights_block = to_operand(weights), dscores_block = to_operand(dscores);
            for (int c = 0; c < BLOCKS; c++) {
                multiply_add(dv[c], weights_block, load_right_transposed(dout_tile, i, c * BLOCK));
                multiply_add(dk[c], dscores_block, load_right_transposed(q_tile, i, c * BLOCK));
            }
        }
    }
    real* const dq_head = dqkv + row * 3 * C + h * HEAD_SIZE;
    store_rows(dk, {scale, scale}, dq_head + C, 3 * C, first, T, tiles[0][0]);
    store_rows(dv, {1, 1}, dq_head + 2 * C, 3 * C, first, T, tiles[0][0]);
}

// attention_backward's dq = dscores k scale, the first C columns of dqkv (B, T, 3C). A block has ROWS queries.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_backward_q(
        real* dqkv, const real* dout, const real* qkv, const float* lse, const float* delta, int T, int H, float scale,
        int causal, float p, const unsigned* stream, unsigned site) {
    alignas(16) __shared__ Row tiles[2][2][STEP];                   // two pairs: keys and values
    const int h = blockIdx.x, b = blockIdx.y, C = H * HEAD_SIZE;
    const int first = (gridDim.z - 1 - blockIdx.z) * ROWS;          // causal: queries with the most keys start first
    const int first_of_warp = first + threadIdx.x / 32 * BLOCK;
    const long long head = static_cast<long long>(b) * H + h, row = static_cast<long long>(b) * T;
    const real* const q_head = qkv + row * 3 * C + h * HEAD_SIZE;

    Operand q[BLOCKS], dout_rows[BLOCKS];
    load_rows(q, q_head, 3 * C, first, T, tiles[0][0]);
    load_rows(dout_rows, dout + row * C + h * HEAD_SIZE, C, first, T, tiles[0][0]);
    float row_lse[2], row_delta[2];                                 // of this lane's two rows, lse as a power of 2
    for (int r = 0; r < 2; r++) {
        const int query = first_of_warp + row_in_block(2 * r);
        row_lse[r] = query < T ? lse[head * T + query] * LOG2_E : 0;
        row_delta[r] = query < T ? delta[head * T + query] : 0;
    }
    Sums dq[BLOCKS] = {};

    const auto copy_tiles = [&](int pair, int start) {
        copy_tile<STEP>(tiles[pair][0], q_head + C, 3 * C, start, T);
        copy_tile<STEP>(tiles[pair][1], q_head + 2 * C, 3 * C, start, T);
    };
    const int n_keys = causal ? min(first + ROWS, T) : T;
    copy_tiles(0, 0);
    for (int start = 0, pair = 0; start < n_keys; start += STEP, pair ^= 1) {
        wait_for_copies();
        __syncthreads();                                            // copied, and the other pair has been read
        if (start + STEP < n_keys) copy_tiles(pair ^ 1, start + STEP);
        const Row *k_tile = tiles[pair][0], *v_tile = tiles[pair][1];

        const bool on_edge = !visible(first_of_warp, start + STEP - 1, T, causal);
        const int end = causal ? min(first_of_warp + BLOCK - start, STEP) : STEP;
        for (int j = 0; j < end; j += BLOCK) {
            Sums s = {}, datt = {};                                 // (queries, keys)
            for (int c = 0; c < BLOCKS; c++) {
                multiply_add(s, q[c], load_right(k_tile, j, c * BLOCK));
                multiply_add(datt, dout_rows[c], load_right(v_tile, j, c * BLOCK));
            }
            if (on_edge) hide<false>(s, first_of_warp, start + j, T, causal);
            if (p > 0) drop(datt, kept_weights<false>(head, first_of_warp, start + j, T, p, stream, site), p);
            Sums dscores;
            for (int n = 0; n < 8; n++) {
                const float att = exp2f(s.values[n] * (scale * LOG2_E) - row_lse[n / 2 % 2]);
                dscores.values[n] = att * (datt.values[n] - row_delta[n / 2 % 2]);
            }
            const Operand dscores_block = to_operand(dscores);
            for (int c = 0; c < BLOCKS; c++)
                multiply_add(dq[c], dscores_block, load_right_transposed(k_tile, j, c * BLOCK));
        }
    }
    store_rows(dq, {scale, scale}, dqkv + row * 3 * C + h * HEAD_SIZE, 3 * C, first, T, tiles[0][0]);
}
