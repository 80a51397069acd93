// Counter-based random numbers: a pure function of the element (Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3", Philox4x32-10). So the backward draws the forward's dropout masks again, and none is kept.
// npgpt/engine/philox.py is the same in NumPy.
//
// Kernels with dropout take: p, the probability of a zero (0: no dropout, the others are ignored); stream, four numbers
// on the device, [seed low, seed high, step, micro-batch]; site, the number of the place in the model.

struct Words { unsigned values[4]; };

__device__ __forceinline__ Words philox(Words counter, unsigned key_0, unsigned key_1) {
    unsigned* c = counter.values;
    for (int round = 0; round < 10; round++) {
        const unsigned long long product_0 = 0xD2511F53ull * c[0], product_1 = 0xCD9E8D57ull * c[2];
        counter = {{static_cast<unsigned>(product_1 >> 32) ^ c[1] ^ key_0, static_cast<unsigned>(product_1),
                    static_cast<unsigned>(product_0 >> 32) ^ c[3] ^ key_1, static_cast<unsigned>(product_0)}};
        key_0 += 0x9E3779B9;                    // the golden ratio
        key_1 += 0xBB67AE85;                    // the square root of 3, minus 1
    }
    return counter;
}

// The random words of elements 4 group to 4 group + 3. From element 2^34 on they repeat.
__device__ __forceinline__ Words random_words(unsigned group, const unsigned* stream, unsigned site) {
    return philox({{group, site, stream[3], stream[2]}}, stream[0], stream[1]);
}

// The factor of dropout: 0 if the word, as a number in [0, 1), is below p, else 1 / (1 - p).
__device__ __forceinline__ float factor_of(unsigned word, float p) {
    const float uniform = static_cast<float>(word >> 8) * float(1.0 / (1 << 24));     // exact: a float has 24 bits
    return uniform >= p ? 1 / (1 - p) : 0;
}

// The factor of one element of the array at this site.
__device__ __forceinline__ float dropout_factor(long long element, float p, const unsigned* stream, unsigned site) {
    if (p == 0) return 1;
    const Words words = random_words(static_cast<unsigned>(element >> 2), stream, site);
    unsigned word = words.values[0];            // without an index, the words stay in registers
    for (int k = 1; k < 4; k++)
        if ((element & 3) == k) word = words.values[k];
    return factor_of(word, p);
}

// The factors of four neighbours by one call of Philox; `first` is a multiple of 4.
__device__ __forceinline__ Quad dropout_factors(long long first, float p, const unsigned* stream, unsigned site) {
    if (p == 0) return {{1, 1, 1, 1}};
    const Words words = random_words(static_cast<unsigned>(first >> 2), stream, site);
    Quad factors;
    for (int k = 0; k < 4; k++) factors[k] = factor_of(words.values[k], p);
    return factors;
}

// dropout_mask: the factors of a whole array (n), for tests and study. Any grid; 256 threads a block.
extern "C" __global__ void dropout_mask(float* mask, long long n, float p, const unsigned* stream, unsigned site) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
        mask[i] = dropout_factor(i, p, stream, site);
}
