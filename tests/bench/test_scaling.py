"""The formula of tools/scaling.py, on numbers worked out by hand and on what the ranks really send."""

import collections
import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import scaling
from scaling import MODELS, RANKS, Network, Rank, Steps, efficiency, rounds, step, traffic
from scaling_parts.measured import Timed, fit

from npgpt import AdamW
from npgpt.engine.distributed import engine
from npgpt.engine.memory import SENT
from npgpt.engine.update import SLICE, slices
from npgpt.model.parameters import Parameters
from tests.engine.distributed.world import ranks

SMALL = Steps(n_layer=2, n_head=2, n_embd=64, vocab_size=301, T=8, block_size=16, B=4)
SLOW = Network("slow", 1e-4, 1e8)


def test_the_models_have_the_parameters_of_gpt2():
    assert {name: scaling.parameters_of(shape) for name, shape in MODELS.items()} == {
        "124M": 124_439_808, "1.5B": 1_557_611_200}


def test_the_formula_on_numbers_worked_out_by_hand(monkeypatch):
    monkeypatch.setattr(scaling, "parameters_of", lambda shape: 2**24)
    shape = dataclasses.replace(SMALL, T=1000)
    parts = step(shape, 8, 4, Network("", 0.001, 1e6), Rank(1e9, 28e6))
    assert parts == {
        "compute": pytest.approx(2 * shape.flops / 4 / 1e9),
        "AdamW": pytest.approx(2**24 / 4 / 1e6),
        "sum": pytest.approx(20 * 2**24 / 28e6),
        "broadcast": pytest.approx(4 * 2 * 0.001 + 5 * 0.001 + 1.5 * 64000 / 1e6),     # a tree would take 0.13
        "all-to-all": pytest.approx(4 * 3 * 0.001 + 3 * 2**24 / 1e6),               # 4 rounds of 2^20 values to each
        "all-gather": pytest.approx(3 * 0.001 + 3 * 2**24 / 1e6),
        "small all-gather": pytest.approx(2 * 0.001 + 0.75 * 8 * (4 + 256) / 1e6)}
    shared = step(shape, 8, 4, Network("", 0.0, 1e6), Rank(1e9, 28e6), local=2)
    assert shared["all-to-all"] == pytest.approx(2 * 2 * 2**24 / 1e6)       # each of two ranks: half of its gradient
    assert shared["all-gather"] == pytest.approx(2 * 2**24 / 1e6)           # the chunks of the other machine, once
    alone = step(shape, 8, 4, Network("", 0.0, 1e6), Rank(), local=8)       # all on one machine
    assert alone["all-to-all"] == alone["all-gather"] == 0.0
    assert rounds(2**24, 1024) == 2**14 / SENT


def test_one_rank_exchanges_nothing():
    assert step(SMALL, 4, 1, SLOW, Rank()).keys() == {"compute", "AdamW"}
    assert efficiency("weak", SMALL, 4, 1, SLOW, Rank()) == efficiency("strong", SMALL, 4, 1, SLOW, Rank()) == 1.0


@pytest.mark.parametrize("shape", MODELS.values(), ids=MODELS)
def test_efficiency_falls_with_ranks_and_rises_with_bandwidth_and_accumulation(shape):
    def weak(n=64, rows=8, **network):
        return efficiency("weak", shape, rows, n, dataclasses.replace(SLOW, **network), Rank())

    for shares in ([weak(n) for n in reversed(RANKS)], [weak(rows=rows) for rows in (1, 2, 8, 64, 512)],
                   [weak(beta=beta) for beta in (1e7, 1e8, 1e9)], [weak(alpha=alpha) for alpha in (1e-2, 1e-3, 0.0)]):
        assert all(0.0 < less < more < 1.0 for less, more in itertools.pairwise(shares))
    strong = [efficiency("strong", shape, 512, n, SLOW, Rank()) for n in RANKS]
    assert strong == sorted(strong, reverse=True)
    alone, pairs, together = (step(shape, 512, 8, SLOW, Rank(), local)["all-to-all"] for local in (1, 2, 8))
    assert pairs > 1.7 * alone > 100 * together         # ranks share a link; within a machine nothing is sent


class Counted:
    """A world that counts the bytes that its rank sends, and the calls; of a broadcast, the bytes of the arrays."""

    def __init__(self, world):
        self.world, self.bytes, self.calls = world, collections.Counter(), collections.Counter()

    def __getattr__(self, name):
        return getattr(self.world, name)

    def count(self, part, n_bytes):
        self.bytes[part] += n_bytes
        self.calls[part] += 1

    def tell(self, name, order, *arrays):
        self.count("broadcast", sum(array.nbytes for array in arrays))
        self.world.tell(name, order, *arrays)

    def exchange(self, send, offsets):
        own = offsets[self.rank + 1] - offsets[self.rank]
        self.count("all-to-all", (send.size - own) * send.itemsize)
        return self.world.exchange(send, offsets)

    def all_gather(self, array, bounds):
        """In a ring each chunk passes through all ranks but one."""
        part = "small all-gather" if array.dtype == np.float64 else "all-gather"
        self.count(part, (bounds[-1] - (bounds[self.rank + 1] - bounds[self.rank])) * array.itemsize)
        self.world.all_gather(array, bounds)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_bytes_of_the_formula_are_those_that_the_ranks_send(monkeypatch, n):
    """Two micro-batches. In all, since the chunks of the ranks are not quite equal."""
    for module in (engine, scaling):        # several rounds, and chunks that are about equal
        for name, size in (("ROUND", 2**15), ("SENT", 2**12), ("SLICE", 2**10)):
            monkeypatch.setattr(module, name, size)
    parameters = scaling.parameters_of(SMALL)
    with ranks(n, scaling.config_of(SMALL), dtype="float32") as model:
        optimizer = AdamW(model.params, lr=1e-3, engine=model.engine)
        model.engine.accumulated(SMALL.batches()[:1], [None], 1)        # the first call also sends the parameters
        worlds = [Counted(each.world) for each in model.engine.world.engines]
        for each, world in zip(model.engine.world.engines, worlds, strict=True):
            each.world = world
        _, grads = model.engine.accumulated(SMALL.batches()[:2], [None] * 2, 2 * SMALL.tokens)
        optimizer.step(grads, 1.0)
    sent = sum((world.bytes for world in worlds), collections.Counter())
    expected = traffic(parameters, n, 2 * SMALL.tokens)
    assert sent["broadcast"] == expected["broadcast"] and worlds[0].calls["broadcast"] == 2       # two orders
    assert sent["all-to-all"] == pytest.approx(n * expected["all-to-all"])
    assert sent["all-gather"] == pytest.approx(n * expected["all-gather"])
    assert sent["small all-gather"] == 8 * (n - 1) * model.engine.numbers[-1]
    assert {world.calls["all-to-all"] for world in worlds} == {rounds(parameters, n)}
    assert all(world.calls["all-gather"] == world.calls["small all-gather"] == 1 for world in worlds)


def test_the_slices_are_as_many_as_the_formula_says():
    params = Parameters(scaling.config_of(MODELS["124M"]))
    assert len(slices(params, SLICE)) == pytest.approx(params.flat.size / SLICE, rel=0.05)


def test_a_fit_finds_the_latency_and_the_bandwidth():
    alpha, beta, error = fit([(size, 2e-5 + size / 3e8) for size in (1, 1000, 10**6, 10**8)])
    assert (alpha, beta) == (pytest.approx(2e-5), pytest.approx(3e8)) and error < 1e-9
    assert fit([(1, 1e-5), (10**6, 1e-2), (10**6, 2e-2)])[2] == pytest.approx(0.6, abs=0.3)


def test_calls_are_timed_by_the_part_of_the_step():
    class World:
        comm = collections.namedtuple("Comm", "Barrier")(lambda: None)
        idle = True

        def exchange(self, send, offsets):
            return send, offsets

    calls = []
    timed = Timed(World(), World.comm, calls)
    assert timed.exchange(1, 2) == (1, 2) and timed.idle
    assert [part for part, _ in calls] == ["all-to-all"] and calls[0][1] >= 0.0


def test_the_tables_and_the_plot(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="draws")
    picture = tmp_path / "scaling.png"
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--plot", str(picture), "--network", "mine", "50", "118"])
    scaling.main()
    printed = capsys.readouterr().out
    assert "mine: 50 us, 118 MB/s" in printed and "| 1024 |" in printed and printed.count("strong scaling") == 2
    assert picture.read_bytes().startswith(b"\x89PNG")
