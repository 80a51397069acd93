// CUDA's language on the CPU, for tests: what the kernels use of it, so that g++ compiles and emulator.cpp runs them.
//
// With -DDOUBLE=1 every `float` of the kernels is a double, and so kernels can be compared with float64 layers closely.

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct dim3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

#define UNCHECKED [[gnu::no_sanitize("thread")]]     // a function whose accesses to memory are not checked

namespace emulator {

constexpr int LANES = 32;
constexpr size_t SLOT_BYTES = 128;
typedef char Slots[LANES][SLOT_BYTES];      // what each lane of a warp gives to the others

extern unsigned blocks_begun;               // in all launches: a number that no two blocks share

const char* run(void (*kernel)(void**), void** arguments, dim3 grid, dim3 block, size_t shared_item,
                int order, unsigned seed);

// For kernels. Of these, `fail` and then `leave` end a launch with an error message.
int lane();
void wait_for_block();
void wait_for_warp(const char* name);       // `name`: the function, which must be the same for all lanes
const Slots& exchange_bytes(const char* name, const void* value, size_t bytes);
[[gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
void leave();

// A function of the lane that finds what it gave, until this lane comes to the next exchange but one.
template <class T> struct FromLanes {
    const Slots& slots;
    UNCHECKED T operator()(int lane) const { T value; memcpy(&value, slots[lane], sizeof value); return value; }
};

// Gives `value` to the other lanes of the warp and waits for theirs.
template <class T> UNCHECKED FromLanes<T> exchange(const char* name, const T& value) {
    static_assert(sizeof(T) <= SLOT_BYTES && std::is_trivially_copyable_v<T>);
    return {exchange_bytes(name, &value, sizeof value)};
}

}  // namespace emulator

// ---- The language -----------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("shared_memory")))

inline void __syncthreads() { emulator::wait_for_block(); }

// Only whole warps: all that the kernels use.
inline void check_mask(unsigned mask) {
    if (mask == 0xFFFFFFFF) return;
    emulator::fail("the mask is %#x, not all lanes of the warp", mask);
    emulator::leave();
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFF) {
    check_mask(mask);
    emulator::wait_for_warp("__syncwarp");
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, int with) {
    check_mask(mask);
    return emulator::exchange("__shfl_xor_sync", value)(emulator::lane() ^ with);
}

template <class T> T __shfl_sync(unsigned mask, T value, int from) {
    check_mask(mask);
    return emulator::exchange("__shfl_sync", value)(from % emulator::LANES);
}

using std::isfinite, std::max, std::min;

#define __fdividef(x, y) ((x) / (y))

#if DOUBLE
#define float double
#define erff erf
#define expf exp
#define exp2f exp2
#define fmaxf fmax
#define fminf fmin
#define logf log
#define sqrtf sqrt
#define tanhf tanh
#endif
