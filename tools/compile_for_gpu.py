"""Compile a training step for a GPU that is not there, and predict its time from what the compiler made.

    pip install -e ".[xla-cuda13]"                      # CUDA's compiler, 4.5 GB; no GPU and no driver
    python tools/compile_for_gpu.py H100 124M           # or A100, B200, RTX4090; a row of tools/bench: 124M, baby

The prediction is a roofline: each kernel takes as long as the card needs to move its arrays, or to do its operations,
whichever is longer. Its bytes are the sizes of what it reads and writes, its operations those of its matmuls. Real
kernels take longer: launches, caches and the choice of kernels, which needs the card, are not in it.
"""

import argparse
import collections
import dataclasses
import math
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("bench")))

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from shapes import ROWS

from npgpt import GPTConfig
from npgpt.arrays import DTYPES
from npgpt.engine.xla.engine import XLAEngine, compile_program
from npgpt.engine.xla.place import DeviceParameters, Place


@dataclasses.dataclass(frozen=True)
class Card:
    """What NVIDIA's data sheets say. bytes_per_second: of the memory; flops: dense bfloat16 matmuls summed in float32.
    """

    capability: tuple
    cores: int
    clock_ghz: float
    memory: int
    bytes_per_second: float
    flops: float
    l2: int
    shared_per_core: int
    threads_per_core: int = 2048

    def target(self):
        """The card in the words of XLA's GpuTargetConfigProto."""
        major, minor = self.capability
        accelerated = "ACCELERATED_FEATURES" if major in (9, 10) else "NONE"
        return f"""gpu_device_info {{
            threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {self.threads_per_core}
            shared_memory_per_block: 49152 shared_memory_per_block_optin: {self.shared_per_core - 1024}
            shared_memory_per_core: {self.shared_per_core} core_count: {self.cores} fpus_per_core: 128
            block_dim_limit_x: {2**31 - 1} block_dim_limit_y: 65535 block_dim_limit_z: 65535
            thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
            registers_per_core_limit: 65536 registers_per_block_limit: 65536
            memory_bandwidth: {self.bytes_per_second:.0f} l2_cache_size: {self.l2} device_memory_size: {self.memory}
            clock_rate_ghz: {self.clock_ghz}
            cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {accelerated} }} }}
            platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}"""


CARDS = {
    "H100": Card((9, 0), 132, 1.98, 80 << 30, 3.35e12, 989e12, 50 << 20, 228 << 10),
    "A100": Card((8, 0), 108, 1.41, 80 << 30, 2.04e12, 312e12, 40 << 20, 164 << 10),
    "B200": Card((10, 0), 148, 1.965, 180 << 30, 7.7e12, 2250e12, 126 << 20, 228 << 10),
    "RTX4090": Card((8, 9), 128, 2.52, 24 << 30, 1.008e12, 165e12, 72 << 20, 100 << 10, 1536),
}


def compiled_step(card, row):
    """Compile a training step of a row for a card: the compiled program, and how many seconds that took."""
    topology = topologies.get_topology_desc(platform="cuda", topology_name="one", target_config=card.target(),
                                            topology="1x1x1")
    device, = topology.devices
    config = GPTConfig(row.vocab_size, row.block_size, row.n_layer, row.n_head, row.n_embd, dropout=row.dropout)
    params = DeviceParameters(config, DTYPES[row.dtype], Place([device]))
    program = XLAEngine(params, row.dtype).step_program(0.9, 0.95, 0.1, False, 1.0)

    def described(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))

    state = [{name: described(shape, params.dtype) for name, shape in params.shapes.items()}] * 3
    batch = [described((1, row.B, row.T), np.int32)] * 2
    began = time.perf_counter()
    arguments = state, *batch, described((4,), np.float32), described((4,), np.uint32)
    return compile_program(program, arguments, "cuda", 0, (0, None, None)), time.perf_counter() - began


# The compiled program as text: computations, each a list of instructions.

BITS = {"pred": 8, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "f32": 32, "s32": 32, "u32": 32, "f64": 64, "s64": 64,
        "u64": 64, "u16": 16, "s16": 16}
INSTRUCTION = re.compile(r"^ +(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "after-all", "partition-id",
           "opt-barrier", "conditional", "call"}


@dataclasses.dataclass
class Instruction:
    name: str
    root: bool
    shape: str
    opcode: str
    operands: list
    rest: str               # the attributes


def computations(text):
    """{name: [Instruction]} of the program; the entry is called ENTRY."""
    found, current = {}, None
    for line in text.splitlines():
        if header := re.match(r"^(ENTRY )?%?([\w.-]+) .*\{$", line):
            current = found.setdefault("ENTRY" if header[1] else header[2], [])
        elif current is not None and (match := INSTRUCTION.match(line)):
            arguments, _, rest = match[5].partition(")")
            current.append(Instruction(match[2], bool(match[1]), match[3], match[4],
                                       re.findall(r"%([\w.-]+)", arguments), rest))
    return found


def size(shape):
    """Bytes of an array's shape, or of all in a tuple."""
    return sum(math.prod(map(int, filter(None, dims.split(",")))) * BITS[kind] // 8
               for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", shape) if kind in BITS)


def dimensions(shape):
    return [int(each) for each in re.search(r"\[([\d,]*)\]", shape)[1].split(",") if each]


def operations(each, shapes):
    """Floating-point operations of a matmul: 2 for each value of the result and each term of its sum."""
    if each.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.rest)[1].split(",")
    elif each.opcode == "custom-call" and "contracting_dimensions" in each.rest:        # of cuBLAS
        contracted = [re.search(r'lhs_contracting_dimensions":\["(\d+)"', each.rest)[1]]
    else:
        return 0
    left = dimensions(shapes[each.operands[0]])
    return 2 * math.prod(dimensions(each.shape)) * math.prod(left[int(i)] for i in contracted)


def traffic(each, shapes, fused):
    """Bytes that a kernel reads and writes; of what a fusion only slices, the slices."""
    if not fused:
        return size(each.shape) + sum(size(shapes[operand]) for operand in each.operands)
    users, total = collections.defaultdict(list), 0
    for inner in fused:
        for operand in inner.operands:
            users[operand].append(inner)

    def read(value):
        """Bytes that the users of a value read of it."""
        total = 0
        for user in users[value.name]:
            if user.opcode in ("slice", "dynamic-slice", "gather"):
                total += size(user.shape)
            elif user.opcode in ("bitcast", "transpose", "reshape", "copy", "convert"):
                total += read(user) * size(value.shape) // size(user.shape)
            else:
                return size(value.shape)
        return min(total, size(value.shape)) if users[value.name] else size(value.shape)

    updated = set()
    for inner in fused:
        if inner.opcode == "dynamic-update-slice":      # in place: the slice is read and written, the rest stays
            updated.add(inner.operands[0])
            total += size(next(other.shape for other in fused if other.name == inner.operands[1]))
    total += sum(read(inner) for inner in fused if inner.opcode == "parameter" and inner.name not in updated)
    return total + (0 if updated else size(each.shape))


def kernels(found, name="ENTRY", times=1):
    """Yield (instruction, how often it runs, bytes, operations) for each kernel; loops are followed."""
    shapes = {each.name: each.shape for each in found[name]}
    for each in found[name]:
        if each.opcode == "while":
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', each.rest)
            yield from kernels(found, re.search(r"body=%?([\w.-]+)", each.rest)[1], times * int(trips[1]))
        elif each.opcode not in NO_WORK and not each.opcode.endswith("-done"):
            called = re.search(r"calls=%?([\w.-]+)", each.rest)
            fused = found[called[1]] if called else []
            inner = {other.name: other.shape for other in fused}
            ops = sum(operations(other, inner) for other in fused) or operations(each, shapes)
            yield each, times, traffic(each, shapes, fused), ops


def report(card_name, row_name):
    """Compile, and return what the program does as text."""
    card, row = CARDS[card_name], ROWS[row_name]
    compiled, seconds = compiled_step(card, row)
    memory, work = compiled.memory_analysis(), list(kernels(computations(compiled.as_text())))
    count, matmuls, moved, done, total, groups = 0, 0, 0, 0, 0.0, collections.defaultdict(lambda: np.zeros(4))
    for each, times, bytes_, ops in work:
        spent = times * max(bytes_ / card.bytes_per_second, ops / card.flops)
        groups[label(each)] += spent, times, times * bytes_, times * ops
        count, matmuls, total = count + times, matmuls + times * (ops > 0), total + spent
        moved, done = moved + times * bytes_, done + times * ops
    lines = [
        f"{row_name} for {card_name}: {row.description}",
        f"compiled in {seconds:.0f} s; arguments {memory.argument_size_in_bytes / 1e9:.2f} GB, temporaries "
        f"{memory.temp_size_in_bytes / 1e9:.2f} GB",
        f"{count:,} kernels, {matmuls:,} of them matmuls; {moved / 1e9:.1f} GB moved, {done / 1e12:.2f} TFLOP",
        f"predicted: {1e3 * total:.2f} ms a step, {row.tokens / total:,.0f} tokens/s, "
        f"{row.flops / total / card.flops:.0%} of the card's peak",
        "", "most time:"]
    for what, (spent, times, bytes_, ops) in sorted(groups.items(), key=lambda item: -item[1][0])[:12]:
        lines.append(f"  {1e3 * spent:7.3f} ms {times:5.0f} kernels {bytes_ / 1e9:7.2f} GB {ops / 1e12:7.3f} TFLOP  "
                     f"{what}")
    made = {(re.sub(r"\{.*", "", each.shape), label(each)): size(each.shape) for each, *_ in work}
    largest = sorted(made.items(), key=lambda item: -item[1])[:8]
    return "\n".join([*lines, "", "largest results of a kernel:",
                      *(f"  {bytes_ / 1e6:8.1f} MB  {shape}  {what}" for (shape, what), bytes_ in largest)])


def label(each):
    """What an instruction is, in the names of the functions that were traced."""
    name = re.search(r'op_name="([^"]*)"', each.rest)
    return f"{each.opcode} {'/'.join(name[1].split('/')[1:])[-70:] if name else each.name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card", choices=CARDS)
    parser.add_argument("row", choices=[name for name, row in ROWS.items() if row.device == "gpu" and not
                                        hasattr(row, "until")])
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")                   # the card is only compiled for
    jax.config.update("jax_enable_compilation_cache", False)    # which fails without the card
    print(report(args.card, args.row))


if __name__ == "__main__":
    main()
