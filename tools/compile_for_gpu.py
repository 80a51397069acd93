"""Compile the XLA engine's loss, generation and training for a GPU that is not there; print what
they need.

    pip install -e ".[xla-cuda13]"    # CUDA's compiler, 4.5 GB; no GPU and no driver
    python tools/compile_for_gpu.py H100 124M    # or A100, B200, RTX4090; a row of tools/bench
"""

import argparse
import dataclasses
import re
import sys
import time
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("bench")))

import numpy as np
from shapes import ROWS

# cores: streaming multiprocessors; of each of them shared memory, threads, float32 units;
# bandwidth: bytes a second
Gpu = namedtuple("Gpu", "major minor cores clock memory bandwidth l2 shared threads fpus")
GPUS = {
    "H100": Gpu(9, 0, 132, 1.98, 80 << 30, 3.35e12, 50 << 20, 228 << 10, 2048, 128),
    "A100": Gpu(8, 0, 108, 1.41, 80 << 30, 2.04e12, 40 << 20, 164 << 10, 2048, 64),
    "B200": Gpu(10, 0, 148, 1.965, 180 << 30, 7.7e12, 126 << 20, 228 << 10, 2048, 128),
    "RTX4090": Gpu(8, 9, 128, 2.52, 24 << 30, 1.008e12, 72 << 20, 100 << 10, 1536, 128),
}


def target(gpu):
    """Return the text of XLA's GpuTargetConfigProto of a GPU."""
    return f"""platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} gpu_device_info {{
        cuda_compute_capability {{ major: {gpu.major} minor: {gpu.minor}
            feature_extension: {"ACCELERATED_FEATURES" if gpu.major > 8 else "NONE"} }}
        core_count: {gpu.cores} clock_rate_ghz: {gpu.clock}
        fpus_per_core: {gpu.fpus} l2_cache_size: {gpu.l2}
        device_memory_size: {gpu.memory} memory_bandwidth: {gpu.bandwidth:.0f}
        shared_memory_per_core: {gpu.shared} shared_memory_per_block_optin: {gpu.shared - 1024}
        shared_memory_per_block: 49152 registers_per_core_limit: 65536
        registers_per_block_limit: 65536
        threads_per_core_limit: {gpu.threads} threads_per_block_limit: 1024 threads_per_warp: 32
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 }}"""


def count_kernels(text):
    """Count the fusions and custom calls of the entry computation and of the bodies of loops, each
    once.
    """
    loops = re.findall(r"\bbody=%?([\w.-]+)", text)
    found = re.findall(r"^(ENTRY )?%?([\w.-]+) .*\{\n((?: .*\n)*)\}", text, re.MULTILINE)
    lines = "".join(lines for entry, name, lines in found if entry or name in loops)
    return len(re.findall(r" (?:fusion|custom-call)\(", lines))


def compile_programs(gpu, row):
    """Compile the engine's programs of a row for a GPU, and print what each of them needs."""
    import jax
    from jax.experimental import topologies

    from npgpt import AdamW, GPTConfig
    from npgpt.engine.xla import devices, engine

    def compile_only(what, program, arguments, options=(), donated=None, shardings=None):
        began, compiled = (
            time.perf_counter(),
            engine.compile_program(program, arguments, "cuda", donated, shardings),
        )
        seconds, memory = time.perf_counter() - began, compiled.memory_analysis()
        print(
            f"{what}: compiled in {seconds:.0f} s; arguments "
            f"{memory.argument_size_in_bytes / 1e9:.2f} GB, "
            f"temporaries {memory.temp_size_in_bytes / 1e9:.2f} GB, "
            f"{count_kernels(compiled.as_text()):,} kernels"
        )
        return compiled.out_info

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # it asks the GPU
    (device,) = topologies.get_topology_desc(
        "one", "cuda", target_config=target(gpu), topology="1x1x1"
    ).devices
    there, sharding = devices.Devices([device]), jax.sharding.SingleDeviceSharding(device)
    there.put = lambda array, *axes: jax.ShapeDtypeStruct(
        array.shape, array.dtype, sharding=sharding
    )
    there.sharding = lambda *axes: sharding
    config = GPTConfig(
        row.vocab_size, row.block_size, row.n_layer, row.n_head, row.n_embd, dropout=row.dropout
    )
    params, idx = devices.DeviceParameters(config, np.float32, there), np.zeros((row.B, row.T), int)
    made = engine.XLAEngine(params, row.dtype)
    made.call = compile_only
    made.loss(idx, idx)
    made.reader(row.B)
    optimizer = AdamW(params, engine=made)
    _, grads = made.loss_and_grads([(idx, idx)], [made.dropout_rng(0, 0, 0)], idx.size)
    optimizer.step(grads, 1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", choices=GPUS)
    parser.add_argument("row", choices=[name for name, row in ROWS.items() if row.device == "gpu"])
    parser.add_argument("--dtype", choices=["float32", "tf32", "bfloat16"])
    parser.add_argument("--dropout", type=float)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    if not find_spec("jax_cuda13_plugin"):
        parser.error('CUDA\'s compiler is missing: pip install "npgpt[xla-cuda13]"')
    gpu, row = given.pop("gpu"), dataclasses.replace(ROWS[given.pop("row")], **given)
    print(f"{gpu}: {row.description}")
    compile_programs(GPUS[gpu], row)
