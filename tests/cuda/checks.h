// What g++'s checks call (-fsanitize=null,alignment,bounds,thread): not its own libraries, which know no fibers.
//
// -fsanitize=thread has every read and write of memory announced here. Two accesses to the same value by two threads,
// at least one of them a write, race unless a barrier lies between: of the block, or of the warp that both are in. No
// barrier lies between blocks. It does not matter whether the race does harm in the order that the emulator runs in.

namespace emulator {

// Where in the program and by whom a value was read or written.
struct Access { int block; int thread; unsigned block_barriers, warp_barriers; };

// The last accesses to a value: a write, and two reads of different threads. `block` is -1 before the first.
struct Shadow { Access write{-1}, read{-1}, other_read{-1}; };

// An array in global memory with guard bytes around it, or the shared memory of a block.
struct Region {
    std::string name;
    char *first, *end;
    size_t guard;                   // bytes before `first` and behind `end` that nobody may touch
    int log_item_bytes;             // a value has 2 to the power of this many bytes: shifts are faster than divisions
    std::vector<Shadow> shadows;
    bool shared;                    // then other blocks have other memory at the same address
};

std::vector<Region> regions;
unsigned block_barriers, warp_barriers[MAX_THREADS / LANES];    // passed by the block, and by each of its warps
int block_number;

char *lowest, *highest;         // all regions are between

void add_region(const char* name, char* first, size_t bytes, size_t item_bytes, size_t guard, bool shared) {
    regions.push_back({name, first, first + bytes, guard, __builtin_ctz(item_bytes),
                       std::vector<Shadow>(bytes / item_bytes + 1), shared});
    lowest = regions.size() == 1 ? first - guard : std::min(lowest, first - guard);
    highest = regions.size() == 1 ? first + bytes + guard : std::max(highest, first + bytes + guard);
}

inline bool races(const Access& before, const Access& now, bool shared) {
    if (before.block < 0 || (before.thread == now.thread && before.block == now.block)) return false;
    if (before.block != now.block) return !shared;
    if (before.block_barriers != now.block_barriers) return false;
    return before.thread / LANES != now.thread / LANES || before.warp_barriers == now.warp_barriers;
}

void access_error(const Region& region, char* address, const char* problem, void* caller) {
    Dl_info library;
    dladdr(caller, &library);
    fail("%s: element %td of %s, at [+%tx]",        // emulate.py looks the line up
         problem, (address - region.first) >> region.log_item_bytes, region.name.c_str(),
         static_cast<char*>(caller) - static_cast<char*>(library.dli_fbase) - 1);
    leave();
}

inline void on_access(void* pointer, size_t bytes, bool is_write, void* caller) {
    char* address = static_cast<char*>(pointer);
    // Most accesses are to a thread's own stack: no other thread's business.
    if (static_cast<size_t>(address - fibers[current].stack) < STACK_BYTES) return;
    if (address < lowest || address >= highest) return;
    for (Region& region : regions) {
        if (address < region.first - region.guard || address >= region.end + region.guard) continue;
        if (address < region.first || address + bytes > region.end)
            return access_error(region, address, is_write ? "wrote outside of an array"
                                                          : "read outside of an array", caller);
        const Access now{block_number, current, block_barriers, warp_barriers[current / LANES]};
        const size_t first = (address - region.first) >> region.log_item_bytes;
        const size_t last = (address + bytes - 1 - region.first) >> region.log_item_bytes;
        for (size_t i = first; i <= last; i++) {
            Shadow& shadow = region.shadows[i];
            if (races(shadow.write, now, region.shared))
                return access_error(region, address, is_write ? "race: written by two threads"
                                                              : "race: read while another thread writes", caller);
            if (is_write && (races(shadow.read, now, region.shared) || races(shadow.other_read, now, region.shared)))
                return access_error(region, address, "race: written while another thread reads", caller);
            if (is_write) {
                shadow.write = now;
            } else {
                if (shadow.read.thread != now.thread || shadow.read.block != now.block) shadow.other_read = shadow.read;
                shadow.read = now;
            }
        }
        return;
    }
}

struct Line { const char* file; unsigned line, column; };
struct Type { uint16_t kind, info; char name[1]; };
struct TypeMismatch { Line line; const Type* type; unsigned char log_alignment, kind; };
struct OutOfBounds { Line line; const Type *array, *index; };

}  // namespace emulator

extern "C" {

#define ON_ACCESS(name, bytes, is_write) void __tsan_##name##bytes(void* address) { \
    emulator::on_access(address, bytes, is_write, __builtin_return_address(0)); \
}
#define ON_ACCESSES(bytes) ON_ACCESS(read, bytes, false) ON_ACCESS(write, bytes, true) \
    ON_ACCESS(unaligned_read, bytes, false) ON_ACCESS(unaligned_write, bytes, true)
ON_ACCESSES(1) ON_ACCESSES(2) ON_ACCESSES(4) ON_ACCESSES(8) ON_ACCESSES(16)
#undef ON_ACCESSES
#undef ON_ACCESS

void __tsan_read_range(void* address, size_t bytes) {
    emulator::on_access(address, bytes, false, __builtin_return_address(0));
}

void __tsan_write_range(void* address, size_t bytes) {
    emulator::on_access(address, bytes, true, __builtin_return_address(0));
}

void __tsan_init() {}

// For the caller: an array of the next launch, which has GUARD_BYTES on both sides.
[[gnu::visibility("default")]] void add_array(const char* name, char* first, size_t bytes, size_t item_bytes) {
    emulator::add_region(name, first, bytes, item_bytes, emulator::GUARD_BYTES, false);
}

void __ubsan_handle_type_mismatch_v1(emulator::TypeMismatch* check, void* address) {
    emulator::fail("%s:%u: %s %p of type %s", check->line.file, check->line.line,
                   address ? "a pointer that is not aligned," : "a null pointer,", address, check->type->name);
    emulator::leave();
}

void __ubsan_handle_out_of_bounds(emulator::OutOfBounds* check, uintptr_t index) {
    emulator::fail("%s:%u: index %lld is out of bounds of %s", check->line.file, check->line.line,
                   static_cast<long long>(index), check->array->name);
    emulator::leave();
}

}  // extern "C"
