"""Compile the XLA engine's training step for a GPU that is not there, and print the memory that it would need.

    pip install -e ".[xla-cuda13]"                      # CUDA's compiler, 4.5 GB; no GPU and no driver
    python tools/compile_for_gpu.py H100 124M           # or A100, B200, RTX4090; 124M, baby: rows of tools/bench

Kernels are the fusions and custom calls of the entry computation and of the bodies of loops, each counted once.
"""

import re
import sys
import time
from collections import namedtuple
from functools import partial
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("bench")))

from shapes import ROWS

# cores: streaming multiprocessors; of each of them shared memory, threads, float32 units; bandwidth: bytes a second
Gpu = namedtuple("Gpu", "major minor cores clock memory bandwidth l2 shared threads fpus")
GPUS = {"H100": Gpu(9, 0, 132, 1.98, 80 << 30, 3.35e12, 50 << 20, 228 << 10, 2048, 128),
        "A100": Gpu(8, 0, 108, 1.41, 80 << 30, 2.04e12, 40 << 20, 164 << 10, 2048, 64),
        "B200": Gpu(10, 0, 148, 1.965, 180 << 30, 7.7e12, 126 << 20, 228 << 10, 2048, 128),
        "RTX4090": Gpu(8, 9, 128, 2.52, 24 << 30, 1.008e12, 72 << 20, 100 << 10, 1536, 128)}


def target(gpu):
    """Return the text of XLA's GpuTargetConfigProto of a GPU."""
    return f"""platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} gpu_device_info {{
        cuda_compute_capability {{ major: {gpu.major} minor: {gpu.minor}
            feature_extension: {"ACCELERATED_FEATURES" if gpu.major > 8 else "NONE"} }}
        core_count: {gpu.cores} clock_rate_ghz: {gpu.clock} fpus_per_core: {gpu.fpus} l2_cache_size: {gpu.l2}
        device_memory_size: {gpu.memory} memory_bandwidth: {gpu.bandwidth:.0f}
        shared_memory_per_core: {gpu.shared} shared_memory_per_block_optin: {gpu.shared - 1024}
        shared_memory_per_block: 49152 registers_per_core_limit: 65536 registers_per_block_limit: 65536
        threads_per_core_limit: {gpu.threads} threads_per_block_limit: 1024 threads_per_warp: 32
        thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 }}"""


def compile_step(gpu, row):
    """Compile the engine's training step of a row for a GPU; return the program, and the seconds that took."""
    import jax
    from jax.experimental import topologies

    from npgpt import GPTConfig
    from npgpt.arrays import DTYPES
    from npgpt.engine.xla.devices import DeviceParameters, Devices
    from npgpt.engine.xla.engine import XLAEngine, compile_program

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)        # it asks the GPU
    device, = topologies.get_topology_desc("one", "cuda", target_config=target(gpu), topology="1x1x1").devices
    config = GPTConfig(row.vocab_size, row.block_size, row.n_layer, row.n_head, row.n_embd, dropout=row.dropout)
    params = DeviceParameters(config, DTYPES[row.dtype], Devices([device]))
    described = partial(jax.ShapeDtypeStruct, sharding=jax.sharding.SingleDeviceSharding(device))
    state = [{name: described(shape, params.dtype) for name, shape in params.shapes.items()}] * 3
    batch = [described((1, row.B, row.T), "int32")] * 2
    arguments = state, *batch, described((4,), "float32"), described((4,), "uint32")
    began, program = time.perf_counter(), XLAEngine(params, row.dtype).step_program(0.9, 0.95, 0.1, False, 1.0)
    return compile_program(program, arguments, "cuda", 0, (0, None, None)), time.perf_counter() - began


def count_kernels(text):
    """Return the number of kernels in the text of a compiled program."""
    loops = re.findall(r"\bbody=%?([\w.-]+)", text)
    found = re.findall(r"^(ENTRY )?%?([\w.-]+) .*\{\n((?: .*\n)*)\}", text, re.MULTILINE)
    lines = "".join(lines for entry, name, lines in found if entry or name in loops)
    return len(re.findall(r" (?:fusion|custom-call)\(", lines))


def main(gpu="", row=""):
    rows = [name for name, row in ROWS.items() if row.device == "gpu"]
    if gpu not in GPUS or row not in rows:
        print(f"give a GPU, {', '.join(GPUS)}, and a row, {', '.join(rows)}", file=sys.stderr)
        return 2
    if not find_spec("jax_cuda13_plugin"):
        print('CUDA\'s compiler is missing: pip install "npgpt[xla-cuda13]"', file=sys.stderr)
        return 2
    compiled, seconds = compile_step(GPUS[gpu], ROWS[row])
    memory = compiled.memory_analysis()
    print(f"{row} for {gpu}: {ROWS[row].description}\ncompiled in {seconds:.0f} s; arguments "
          f"{memory.argument_size_in_bytes / 1e9:.2f} GB, temporaries {memory.temp_size_in_bytes / 1e9:.2f} GB, "
          f"{count_kernels(compiled.as_text()):,} kernels")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
