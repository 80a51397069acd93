// Runs CUDA kernels on the CPU, in one thread, and finds out the mistakes that a GPU would not tell of.
//
// The blocks of a grid run one after the other. The threads of a block are fibers: each has a stack of its own and runs
// until it has to wait for others, in a barrier of its warp or of its block. All of this is deterministic; `order` says
// in which order blocks, warps and lanes get their turn, so that a result that depends on it shows.

#include "emulator.h"

#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <dlfcn.h>
#include <sys/mman.h>
#include <string>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

// The section of the __shared__ arrays: its bounds, from the linker, and a byte so that it is there in any case.
extern "C" char __start_shared_memory[], __stop_shared_memory[];
[[gnu::used, gnu::section("shared_memory")]] char shared_memory_byte;

namespace emulator {

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 1 << 18, GUARD_BYTES = 4096;
constexpr unsigned char POISON = 0xFF;      // NaN of any floating type

enum State { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, FINISHED };

// One stack is left and another one goes on: `switch_stack(from, to)` keeps in `from` where it left, for a later `to`.
#if defined(__x86_64__)
using Place = char*;            // the stack pointer; what the called function must preserve lies at it

extern "C" void emulator_switch_stack(Place* from, Place to);
asm(R"(
    .text
emulator_switch_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    pop %rdx        # not `ret`: the processor would guess that it goes back to the caller, and be wrong each time
    jmp *%rdx
)");

inline void switch_stack(Place& from, Place& to) { emulator_switch_stack(&from, to); }

inline void begin(Place& place, void (*function)(), char* stack, size_t bytes) {
    char* top = stack + bytes - 16;         // at it the function's address, above that the place of a return address
    memcpy(top, &function, sizeof function);
    place = top - 6 * 8;
}
#else
using Place = ucontext_t;       // several times as slow: each switch asks the system

inline void switch_stack(Place& from, Place& to) { swapcontext(&from, &to); }

inline void begin(Place& place, void (*function)(), char* stack, size_t bytes) {
    getcontext(&place);
    place.uc_stack.ss_sp = stack, place.uc_stack.ss_size = bytes;
    makecontext(&place, function, 0);
}
#endif

struct Fiber {
    Place place;                // where it goes on
    char* stack = nullptr;
    bool started = false;
    State state;
    const char* waits_in;       // the function in which it waits for its warp
    dim3 index;
};

struct Warp {
    alignas(64) Slots slots[2];         // one set fills while the other is read
    unsigned char turn[LANES];          // the set that a lane fills next
};

Fiber fibers[MAX_THREADS];
Warp warps[MAX_THREADS / LANES];
Place scheduler;
int current;                    // the thread that runs
void (*kernel)(void**);
void** arguments;
char message[1024];             // of the first error
unsigned blocks_begun;

int lane() { return current % LANES; }

void leave() { switch_stack(fibers[current].place, scheduler); }    // until the scheduler comes back to this fiber

void fail(const char* format, ...) {
    if (message[0]) return;
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
}

}  // namespace emulator

#include "checks.h"

namespace emulator {

// A fiber serves many blocks one after the other: to be taken up again costs less than to start.
void fiber_main() {
    for (;;) {
        kernel(arguments);
        fibers[current].state = FINISHED;
        leave();
    }
}

void run_fiber(int thread) {
    Fiber& fiber = fibers[thread];
    current = thread;
    threadIdx = fiber.index;
    if (!fiber.stack)
        fiber.stack = static_cast<char*>(mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (!fiber.started) begin(fiber.place, fiber_main, fiber.stack, STACK_BYTES);
    fiber.started = true;
    switch_stack(scheduler, fiber.place);
}

void wait(State barrier, const char* name) {
    fibers[current].state = barrier;
    fibers[current].waits_in = name;
    leave();
}

void wait_for_block() { wait(AT_BLOCK_BARRIER, "__syncthreads"); }
void wait_for_warp(const char* name) { wait(AT_WARP_BARRIER, name); }

const Slots& exchange_bytes(const char* name, const void* value, size_t bytes) {
    Warp& warp = warps[current / LANES];
    Slots& slots = warp.slots[warp.turn[lane()]++ & 1];
    memcpy(slots[lane()], value, bytes);
    wait_for_warp(name);
    return slots;
}

// Runs a warp until each of its lanes has finished or waits for the block. False: an error.
bool run_warp(int first, const int* order) {
    for (;;) {
        for (int i = 0; i < LANES; i++)
            if (fibers[first + order[i]].state == READY) {
                run_fiber(first + order[i]);
                if (message[0]) return false;
            }
        int at_warp = 0, at_block = 0;
        const char* waits_in = nullptr;
        for (int i = first; i < first + LANES; i++) {
            at_block += fibers[i].state == AT_BLOCK_BARRIER;
            if (fibers[i].state != AT_WARP_BARRIER) continue;
            if (at_warp++ && waits_in != fibers[i].waits_in && strcmp(waits_in, fibers[i].waits_in)) {
                fail("lanes of warp %d wait in %s, others in %s", first / LANES, waits_in, fibers[i].waits_in);
                return false;
            }
            waits_in = fibers[i].waits_in;
        }
        if (!at_warp) return true;
        if (at_block) {
            fail("deadlock: %d lanes of warp %d wait in %s, %d in __syncthreads",
                 at_warp, first / LANES, waits_in, at_block);
            return false;
        }
        warp_barriers[first / LANES]++;
        for (int i = first; i < first + LANES; i++)
            if (fibers[i].state == AT_WARP_BARRIER) fibers[i].state = READY;
    }
}

struct Random {                 // xorshift: as good as shuffling needs
    uint64_t state;
    unsigned below(unsigned n) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return (state >> 20) % n;
    }
};

enum Order { FORWARD, REVERSE, SHUFFLED };

std::vector<int> ordered(int n, int order, Random& random) {
    std::vector<int> numbers(n);
    for (int i = 0; i < n; i++) numbers[i] = order == REVERSE ? n - 1 - i : i;
    if (order == SHUFFLED)
        for (int i = n - 1; i > 0; i--) std::swap(numbers[i], numbers[random.below(i + 1)]);
    return numbers;
}

bool run_block(int threads, int order, Random& random) {
    blocks_begun++;
    // What a block finds in shared memory is not to be relied on.
    memset(__start_shared_memory, POISON, __stop_shared_memory - __start_shared_memory);
    memset(warps, POISON, sizeof(Warp) * (threads / LANES));
    for (int i = 0; i < threads; i++) {
        fibers[i].state = READY;
        fibers[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    }
    for (int waiting = threads; waiting;) {
        std::vector<int> lanes = ordered(LANES, order, random);
        for (int warp : ordered(threads / LANES, order, random))
            if (!run_warp(warp * LANES, lanes.data())) return false;
        block_barriers++;
        waiting = 0;
        for (int i = 0; i < threads; i++)
            if (fibers[i].state == AT_BLOCK_BARRIER) fibers[i].state = READY, waiting++;
    }
    return true;
}

// A thread that goes wrong in a way that the processor notices is an error too, not the end of the process.
void on_signal(int signal, siginfo_t* info, void*) {
    fail(signal == SIGFPE ? "an integer was divided by zero" : "no memory at address %p", info->si_addr);
    leave();
}

struct Signals {                // caught as long as this lives
    struct sigaction before[2];
    Signals() {
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &action, &before[0]);
        sigaction(SIGFPE, &action, &before[1]);
    }
    ~Signals() {
        sigaction(SIGSEGV, &before[0], nullptr);
        sigaction(SIGFPE, &before[1], nullptr);
    }
};

// Returns null, or a message about what went wrong. shared_item: bytes of the smallest values that the kernel has in
// shared memory.
const char* run(void (*run_kernel)(void**), void** run_arguments, dim3 grid, dim3 block,
                size_t shared_item, int order, unsigned seed) {
    kernel = run_kernel, arguments = run_arguments, gridDim = grid, blockDim = block, message[0] = 0;
    Signals signals;
    Random random{seed * 0x9E3779B97F4A7C15u + 1};
    add_region("shared memory", __start_shared_memory, __stop_shared_memory - __start_shared_memory, shared_item, 0,
               true);
    for (int i : ordered(grid.x * grid.y * grid.z, order, random)) {
        block_number = i;
        blockIdx = {i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)};
        if (run_block(block.x * block.y * block.z, order, random)) continue;
        for (Fiber& fiber : fibers) fiber.started = false;      // they are somewhere inside the kernel
        size_t length = strlen(message);
        snprintf(message + length, sizeof message - length, ", block (%u, %u, %u), thread (%u, %u, %u)",
                 blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
        break;
    }
    regions.clear();
    return message[0] ? message : nullptr;
}

}  // namespace emulator
