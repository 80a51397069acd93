"""Workers: processes that take the place of threads where a model is small."""

import os
import signal
import sys

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.cli.ranks import workers_pay
from npgpt.engine.cpu import CPUEngine
from npgpt.engine.distributed.engine import Distributed
from npgpt.engine.distributed.workers import Workers
from npgpt.engine.reference import ReferenceEngine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes with NumPy are forked on Linux only")
CONFIG = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8)
IDX, TARGETS = np.random.default_rng(0).integers(0, 11, (2, 6, 8))


def with_workers(n, kernels="fused", dtype="float32"):
    model = GPT(CONFIG, dtype=dtype, threads=n)
    world = Workers(n, 1 << 16)
    engine = (CPUEngine if kernels == "fused" else ReferenceEngine)(model.params, 1)
    world.start(lambda world: Distributed(engine, world).follow())
    model.engine = Distributed(engine, world)
    return model, world


def step(model, optimizer):
    loss, grads = model.engine.accumulated([(IDX, TARGETS)] * 2, [None] * 2, 2 * IDX.size)
    return loss, optimizer.step(grads, 1.0)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_bits_are_those_of_threads(n):
    """Of losses, norms, parameters and moments, also if rank 0 has changed the parameters before the first step."""
    threads, (workers, world) = GPT(CONFIG, threads=n), with_workers(n)
    results = []
    for model in (threads, workers):
        model.params["wte.weight"][3] += 0.5
        optimizer = AdamW(model.params, engine=model.engine)
        steps = [step(model, optimizer) for _ in range(4)]
        moments = [getattr(each, "get", lambda each=each: each)() for each in (*optimizer.m.values(),
                                                                              *optimizer.v.values())]
        results.append((steps, model.evaluate(IDX, TARGETS), model.params.flat.tobytes(),
                        [each.tobytes() for each in moments]))
    world.end()
    assert results[0] == results[1]


def test_a_worker_that_is_killed_is_noticed_and_the_others_end():
    model, world = with_workers(3)
    optimizer = AdamW(model.params, engine=model.engine)
    step(model, optimizer)
    os.kill(world._workers[1], signal.SIGKILL)
    with pytest.raises(UserError, match="has ended.*--resume --threads 1"):
        for _ in range(2):
            step(model, optimizer)
    world.end()             # which would wait for ever for a worker that goes on
    for worker in world._workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.parametrize(("fields", "rows", "pay"), [
    ({}, 6, True), ({"n_embd": 1 << 15}, 6, False), ({}, 2, False)], ids=["small", "wide", "fewer rows than threads"])
def test_where_workers_pay(fields, rows, pay):
    """In a small model whose batch every worker has a part of."""
    model = GPT(GPTConfig(**{"vocab_size": 11, "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 8}), threads=3)
    if fields:
        model.config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, **fields)
    assert workers_pay(model, rows) == pay


@pytest.mark.parametrize("kernels", ["fused", "reference"])
@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 6)], ids=["rank 0", "rank 1"])
def test_a_rank_whose_targets_do_not_count_adds_nothing(kernels, rows):
    """In the reference engine, the mean over no targets would be NaN."""
    targets = TARGETS.copy()
    targets[rows] = -1
    one, (two, world) = GPT(CONFIG, dtype="float64", kernels="reference"), with_workers(2, kernels, "float64")
    for batches in ([(IDX, targets)], [(IDX, targets), (IDX, TARGETS)]):
        results = []
        for model in (one, two):
            loss, grads = model.engine.accumulated(batches, [None] * len(batches), 96)
            results.append([loss, AdamW(model.params, engine=model.engine, lr=0.0).step(grads),
                            model.evaluate(IDX, targets)])
        assert results[1] == pytest.approx(results[0], rel=1e-12)
    world.end()
