// GELU, layers/gelu.py, in its two forms: `exact` chooses.

constexpr float SQRT_2_OVER_PI = 0.79788456080286535588;
constexpr float SQRT_HALF = 0.70710678118654752440;
constexpr float CUBIC = 0.044715 * 0.79788456080286535588;

// The normal distribution's CDF, or the tanh form of it. 1/2 (1 + tanh(inner)) is the same as 1 / (1 + exp(-2 inner)),
// which takes half the instructions and loses no digits for small values.
__device__ __forceinline__ float gelu_phi(float x, int exact) {
    if (exact) return float(0.5) * (1 + erff(x * SQRT_HALF));
    const float inner = x * (SQRT_2_OVER_PI + CUBIC * (x * x));
    return __fdividef(1, 1 + quick_exp(-2 * inner));         // fast division: its last bit may be wrong
}

// gelu_forward: y = x * phi, (n). n is a multiple of 8.
//
// Both kernels: any grid; ceil(n / PACK / 256) blocks of 256 threads have one pack a thread.
extern "C" __global__ void gelu_forward(real* y, const real* x, long long n, int exact) {
    const long long step = static_cast<long long>(PACK) * gridDim.x * blockDim.x;
    for (long long i = PACK * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x); i < n; i += step) {
        Pack pack = load_pack(x + i);
        for (int k = 0; k < PACK; k++) {
            const float value = to_float(pack.values[k]);
            pack.values[k] = to_real(value * gelu_phi(value, exact));
        }
        store_pack(y + i, pack);
    }
}

// gelu_backward: dx = dy * (phi + x * dphi/dx), (n); phi is recomputed from x. dx may be dy.
extern "C" __global__ void gelu_backward(real* dx, const real* dy, const real* x, long long n, int exact) {
    const long long step = static_cast<long long>(PACK) * gridDim.x * blockDim.x;
    for (long long i = PACK * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x); i < n; i += step) {
        Pack pack = load_pack(dy + i);
        const Pack x_pack = load_pack(x + i);
        for (int k = 0; k < PACK; k++) {
            const float value = to_float(x_pack.values[k]), phi = gelu_phi(value, exact);
            const float density = exact         // the derivative of phi
                ? quick_exp(float(-0.5) * (value * value)) * (float(0.5) * SQRT_2_OVER_PI)
                : 2 * phi * (1 - phi) * (SQRT_2_OVER_PI + 3 * CUBIC * (value * value));
            pack.values[k] = to_real(to_float(pack.values[k]) * (phi + value * density));
        }
        store_pack(dx + i, pack);
    }
}
