// AdamW: adamw_update of engine/adamw.py, on all parameters at once.

// adamw: p, m and v (n) change in place; g (n) times clip is the gradient. Only the first n_decay values decay.
// Both numbers are multiples of 4.
//
// norm[0]: the gradient's norm; if it is infinite or NaN, nothing changes. max_norm: gradients of a larger norm are
// scaled down to it; 0: no clipping. hyper: three numbers on the device that change with each step, [lr, step_size,
// correction].
//
// Any grid; ceil(n / 1024) blocks of 256 threads have one quad a thread.
extern "C" __global__ void adamw(
        float* p, const float* g, float* m, float* v, const float* norm, const float* hyper,
        long long n, long long n_decay, float beta1, float beta2, float eps, float weight_decay, float max_norm) {
    if (!(norm[0] <= LARGEST)) return;
    const float lr = hyper[0], step_size = hyper[1], correction = hyper[2];
    const float clip = max_norm == 0 ? 1 : fminf(1, max_norm / (norm[0] + float(1e-6)));
    const long long step = 4ll * gridDim.x * blockDim.x;
    for (long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x); i < n; i += step) {
        Quad ps = load_quad(p + i), ms = load_quad(m + i), vs = load_quad(v + i);
        const Quad gs = load_quad(g + i);
        const float keep = i < n_decay ? 1 - lr * weight_decay : 1;
        for (int k = 0; k < 4; k++) {
            ms[k] = ms[k] * beta1 + ((1 - beta1) * clip) * gs[k];
            vs[k] = vs[k] * beta2 + ((1 - beta2) * clip * clip) * (gs[k] * gs[k]);
            ps[k] = ps[k] * keep - step_size * ms[k] / (sqrtf(vs[k]) + eps * correction);
        }
        store_quad(m + i, ms);
        store_quad(v + i, vs);
        store_quad(p + i, ps);
    }
}

// round_to_bfloat16: copy (n) = p (n). n is a multiple of 4; the grid as for adamw.
extern "C" __global__ void round_to_bfloat16(unsigned short* copy, const float* p, long long n) {
    const long long step = 4ll * gridDim.x * blockDim.x;
    for (long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x); i < n; i += step)
        store_quad(reinterpret_cast<bfloat16*>(copy) + i, load_quad(p + i));
}
