"""Memory: how much training needs, how freed memory is kept, and the error for a full GPU."""

import contextlib
import ctypes
import dataclasses
import functools
import math
import platform

import numpy as np

from npgpt.checks import check_memory
from npgpt.engine.tiles import KEPT, queries_of
from npgpt.errors import UserError, one_line
from npgpt.model.parameters import parameter_shapes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # mallopt's names, from glibc's malloc.h
# What CuPy raises for a full GPU: type and code, of CUDA (2: no memory) and of cuBLAS (1: cannot
# start, 3: no memory)
FULL = ("OutOfMemoryError", None), ("CUDARuntimeError", 2), ("CUBLASError", 1), ("CUBLASError", 3)


def training_memory(config, batch_size, threads, itemsize=4, micro_batches=1, trained=None):
    """Return the peak memory of a training step.

    Parameters
    ----------
    config : GPTConfig
    batch_size : integer
        Sequences of `block_size` tokens in each of `micro_batches`.
    threads : integer
    itemsize : integer, bytes
        4 for float32.
    micro_batches : integer
    trained : integer, optional
        Number of values that AdamW updates, by default all.

    Returns
    -------
    memory : dict
        Purpose -> bytes.
    """
    parameters = sum(map(math.prod, parameter_shapes(config).values()))
    sets = number_of_shards(config, batch_size, config.block_size, threads)
    if micro_batches > 1:
        sets *= 2
    activations = activation_values(config, batch_size, config.block_size, whole=threads == 1)
    return {
        "parameters": parameters * itemsize,
        "gradients": parameters * sets * itemsize,
        "moments": 2 * (trained or parameters) * itemsize,
        "activations": activations * itemsize,
    }


def check_training_memory(engine, batch_size, length, micro_batches):
    """Raise UserError if a training step does not fit into this machine's memory. GPUs and XLA say
    so themselves.
    """
    params = engine.params
    if params.xp is np and engine.synchronous:
        config = dataclasses.replace(params.config, block_size=length)
        needed = training_memory(
            config,
            batch_size,
            engine.threads,
            params.dtype.itemsize,
            micro_batches,
            params.n_trained,
        )
        check_memory(sum(needed.values()), "a training step")


def activation_values(config, B, T, whole=False):
    """Return how many values a step on B rows of T tokens keeps; whole: layers run on whole arrays,
    not in parts.
    """
    C, F, H = config.n_embd, config.mlp_width, config.n_head
    # A block's caches: ln_1 xhat and its output 2 C, q, k and v 3 C, the merged heads C, ln_2 xhat
    # and its output 2 C, the MLP's hidden layer, its tanh and its GELU 3 F, and a row of attention
    # weights, of which half is skipped.
    seen = T
    if not whole:
        seen = 0 if T > KEPT else (T + queries_of(T)) // 2 if config.causal else T
    block = 8 * C + 3 * F + H * seen
    block += C * sum(config.resolved(name) > 0.0 for name in ("resid_pdrop", "mlp_pdrop"))  # masks
    if config.resolved("attn_pdrop"):
        block += 2 * H * T  # a mask, and the float32 random numbers it is drawn from
    # In addition: the logits (and the loss's temporaries), and the temporaries of the last block's
    # backward: six of the MLP's width, or four of the attention's.
    logits, queries = config.vocab_size * (4 if whole else 1), T if whole else queries_of(T)
    outside = 4 * C + logits + max(6 * F, 4 * H * queries)
    return B * T * (config.n_layer * block + outside)


def number_of_shards(config, B, T, threads):
    """Return the number of shards of a batch: one per thread, or 1 if summing their gradients would
    cost too much.
    """
    parts = min(B, threads)
    parameters = sum(map(math.prod, parameter_shapes(config).values()))
    return parts if (parts - 1) * parameters <= activation_values(config, B, T) else 1


@functools.cache
def keep_freed_memory():
    """Tell glibc to keep freed memory for the next step. Without glibc nothing happens.

    The command does so. The library does not, because it changes the whole process: call it in a
    program of your own. By default glibc maps every array above about 100 KB from the system and
    unmaps it when it is freed, and the system clears each page at its first use. That took a third
    of a training step, which makes hundreds of temporaries.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)  # smaller arrays come from the heap
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # which does not shrink,
        libc.mallopt(M_TOP_PAD, 64 << 20)  # and grows 64 MB at a time


@contextlib.contextmanager
def out_of_memory(advice):
    """Within it, a full GPU raises UserError with advice, a clause: "lower --batch-size". CuPy and
    JAX are optional.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        kind = type(error).__name__, getattr(error, "status", None)
        if kind not in FULL and not str(error).startswith("RESOURCE_EXHAUSTED"):  # what JAX says
            raise
        raise UserError(f"the GPU's memory is full ({one_line(error, 200)}): {advice}") from error
