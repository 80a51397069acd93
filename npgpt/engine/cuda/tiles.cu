// Matrices in blocks of 16 x 16, each in the registers of one warp, and in tiles of rows in shared memory.
//
// A block is spread over a warp as the matrix instructions of ptx.cu require, the same for operands and sums. So the
// result of a matmul can be an operand of the next without moving. A lane has four pairs of neighbours, lane l = 4 g + t
// those of row g, or 8 + g, that begin in column 2 t, or 8 + 2 t:
//
//        column    0    2    4    6     8   10   12   14
//               +---------------------+---------------------+
//        row 0  |  l=0  l=1  l=2  l=3 |  l=0  l=1  l=2  l=3 |
//            1  |  l=4  l=5  l=6  l=7 |  l=4  l=5  l=6  l=7 |
//            :  |        pair 0       |        pair 2       |
//            7  | l=28 l=29 l=30 l=31 | l=28 l=29 l=30 l=31 |
//               +---------------------+---------------------+
//            8  |  l=0  l=1  l=2  l=3 |  l=0  l=1  l=2  l=3 |
//            :  |        pair 1       |        pair 3       |
//           15  | l=28 l=29 l=30 l=31 | l=28 l=29 l=30 l=31 |
//               +---------------------+---------------------+
//
// Pair m is pairs[m] of an operand and values[2 m], values[2 m + 1] of sums. But of a right operand an instruction takes
// 8 rows, whose two pairs must be in adjacent registers. So its pairs are in the order 0, 2, 1, 3; otherwise every
// matmul would have to move them.

constexpr int BLOCK = 16;
constexpr int BLOCKS = HEAD_SIZE / BLOCK;           // blocks across one head's columns
constexpr int PACKS = HEAD_SIZE / PACK;             // of 16 bytes, likewise
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = WARPS * BLOCK;                 // of one head, that a block of threads computes
constexpr int STRIDE = HEAD_SIZE + PACK;            // 16 bytes more, so that packs of 8 rows lie in different banks

typedef real Row[STRIDE];                           // a row of a tile in shared memory: a head's columns and padding

#if BFLOAT16
typedef unsigned Pair;                              // the first in the low half
#else
struct Pair { float first, second; };
#endif

struct Operand { Pair pairs[4]; };                  // the left factor of a matmul
struct RightOperand { Pair pairs[4]; };             // the right factor, in the order 0, 2, 1, 3
struct Sums { float values[8]; };                   // a block of sums

// Where this lane's value n of a block is.
__device__ __forceinline__ int row_in_block(int n) { return 8 * (n / 2 % 2) + threadIdx.x % 32 / 4; }
__device__ __forceinline__ int column_in_block(int n) { return 8 * (n / 4) + 2 * (threadIdx.x % 4) + n % 2; }

// Sums, rounded to the type of an operand.
__device__ __forceinline__ Operand to_operand(const Sums& sums) {
    Operand operand;
    for (int m = 0; m < 4; m++) {
#if BFLOAT16
        operand.pairs[m] = float_to_bfloat16_pair(sums.values[2 * m], sums.values[2 * m + 1]);
#else
        operand.pairs[m] = {sums.values[2 * m], sums.values[2 * m + 1]};
#endif
    }
    return operand;
}

// The block of a tile whose first element is tile[row][column].
__device__ __forceinline__ Operand load_block(const Row* tile, int row, int column) {
    Operand block;
    const int lane = threadIdx.x % 32;
#if BFLOAT16
    load_matrices(block.pairs, &tile[row + lane % 16][column + lane / 16 * 8]);
#else
    for (int m = 0; m < 4; m++) {
        const real* pair = &tile[row + m % 2 * 8 + lane / 4][column + m / 2 * 8 + lane % 4 * 2];
        block.pairs[m] = {pair[0], pair[1]};
    }
#endif
    return block;
}

// The same block as a right factor.
__device__ __forceinline__ RightOperand load_right(const Row* tile, int row, int column) {
    RightOperand block;
    const int lane = threadIdx.x % 32;
#if BFLOAT16
    load_matrices(block.pairs, &tile[row + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
#else
    for (int m = 0; m < 4; m++) {
        const real* pair = &tile[row + m / 2 * 8 + lane / 4][column + m % 2 * 8 + lane % 4 * 2];
        block.pairs[m] = {pair[0], pair[1]};
    }
#endif
    return block;
}

// The transpose of it: element (i, j) is tile[row + j][column + i].
__device__ __forceinline__ RightOperand load_right_transposed(const Row* tile, int row, int column) {
    RightOperand block;
    const int lane = threadIdx.x % 32;
#if BFLOAT16
    load_matrices_transposed(block.pairs, &tile[row + lane % 16][column + lane / 16 * 8]);
#else
    for (int m = 0; m < 4; m++) {
        const int i = m / 2 * 8 + lane / 4, j = m % 2 * 8 + lane % 4 * 2;
        block.pairs[m] = {tile[row + j][column + i], tile[row + j + 1][column + i]};
    }
#endif
    return block;
}

#if !BFLOAT16
// d (16, 8) += a (16, 8) b (8, 8) in float, by an instruction that takes tf32 (10 bits of mantissa). The rounding error
// is rounded to tf32 too (high + low = a to 2^-21), and three matmuls give all of the float matmul except low * low.
// With TF32 there is only high * high.
__device__ __forceinline__ void mma_float(float* d, const float (&a)[4], const float (&b)[2]) {
    float a_high[4], b_high[2];
    for (int n = 0; n < 4; n++) a_high[n] = round_to_tf32(a[n]);
    for (int n = 0; n < 2; n++) b_high[n] = round_to_tf32(b[n]);
    if constexpr (!TF32) {
        float a_low[4], b_low[2];
        for (int n = 0; n < 4; n++) a_low[n] = round_to_tf32(a[n] - a_high[n]);
        for (int n = 0; n < 2; n++) b_low[n] = round_to_tf32(b[n] - b_high[n]);
        mma_tf32(d, a_low, b_high);
        mma_tf32(d, a_high, b_low);
    }
    mma_tf32(d, a_high, b_high);
}
#endif

// sums += a b^T, three blocks: the rows of a times the rows of b.
__device__ __forceinline__ void multiply_add(Sums& sums, const Operand& a, const RightOperand& b) {
    for (int half = 0; half < 2; half++) {          // the instructions give 8 columns: 8 rows of b
        const Pair left = b.pairs[2 * half], right = b.pairs[2 * half + 1];
#if BFLOAT16
        mma_bfloat16(&sums.values[4 * half], a.pairs, {left, right});
#else
        // An instruction sums over 8 columns, in any order that both operands share. Here the first values of all pairs
        // come first, then the second ones, so that sums can become operands without leaving their lanes.
        const Pair* p = a.pairs;
        float* d = &sums.values[4 * half];
        mma_float(d, {p[0].first, p[1].first, p[0].second, p[1].second}, {left.first, left.second});
        mma_float(d, {p[2].first, p[3].first, p[2].second, p[3].second}, {right.first, right.second});
#endif
    }
}

// Starts to copy rows `first` to `first` + n_rows of one head to a tile, by all threads of the block. Row n of the head
// is at head + n * width. The head has `end` rows; the tile gets zeros for rows beyond.
template <int n_rows>
__device__ __forceinline__ void copy_tile(Row* tile, const real* head, int width, int first, int end) {
    for (unsigned begin = 0; begin < n_rows * PACKS; begin += THREADS) {    // the compiler knows how many iterations
        const unsigned n = begin + threadIdx.x;
        if (n_rows * PACKS % THREADS && n >= n_rows * PACKS) break;
        const int row = n / PACKS, column = n % PACKS * PACK;
        const long long from = min(first + row, end - 1);   // the address must be valid for zeros, too
        start_copy(&tile[row][column], head + from * width + column, first + row < end);
    }
}

// The block's own rows, `first` to `first` + ROWS of one head, into registers, 16 a warp, by way of a tile.
__device__ __forceinline__ void load_rows(
        Operand (&rows)[BLOCKS], const real* head, int width, int first, int end, Row* tile) {
    copy_tile<ROWS>(tile, head, width, first, end);
    wait_for_copies();
    __syncthreads();
    for (int c = 0; c < BLOCKS; c++) rows[c] = load_block(tile, threadIdx.x / 32 * BLOCK, c * BLOCK);
    __syncthreads();                                // from here on the tile may be overwritten
}

// The reverse, for sums: rounded, each times its row's factor, which is factors[r] for row 8 r + lane / 4 of the warp.
__device__ __forceinline__ void store_rows(
        const Sums (&rows)[BLOCKS], const float (&factors)[2], real* head, int width, int first, int end, Row* tile) {
    __syncthreads();                                // the tile is no longer read from
    for (int c = 0; c < BLOCKS; c++) {
        for (int n = 0; n < 8; n++) {
            const int row = threadIdx.x / 32 * BLOCK + row_in_block(n);
            tile[row][c * BLOCK + column_in_block(n)] = to_real(rows[c].values[n] * factors[n / 2 % 2]);
        }
    }
    __syncthreads();
    for (unsigned n = threadIdx.x; n < ROWS * PACKS; n += THREADS) {
        const int row = n / PACKS, column = n % PACKS * PACK;
        if (first + row < end)
            *reinterpret_cast<uint4*>(head + static_cast<long long>(first + row) * width + column) =
                *reinterpret_cast<const uint4*>(&tile[row][column]);    // a Pack would be written in parts
    }
}
