"""Training between GPUs, with stand-ins for CuPy and NCCL: the numbers of one process, and no step waits for a GPU.

The ranks are threads, each with a GPU of its own, and in the slow tests processes that mpiexec starts.
"""

import collections
import itertools
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, Trainer, TrainOptions, UserError
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.engine.distributed.engine import Distributed, divide, rng_of, seeds_of
from npgpt.engine.distributed.nccl import connect, evenly, own_gpu
from npgpt.engine.philox import Philox
from npgpt.engine.threads import blas_threads, even_parts
from tests import strict_cupy, strict_nccl
from tests.conftest import TINY
from tests.strict_cupy import gpu

SMALL = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_head": 2, "n_embd": 8}
TOKENS = np.random.default_rng(0).integers(0, 11, 300).astype(np.uint16)
BOTH = pytest.mark.parametrize("reduce", ["fixed", "nccl"])


@pytest.fixture(autouse=True)
def xp(monkeypatch):
    """The stand-ins, and several rounds of an exchange."""
    monkeypatch.setattr("npgpt.engine.distributed.engine.ROUND", 700)
    monkeypatch.setattr("npgpt.engine.distributed.engine.SENT", 90)
    strict_nccl.install(monkeypatch)
    return strict_cupy.install(monkeypatch)


class Host:
    """What an `MPIWorld` does on the host, between threads."""

    def __init__(self, rank, size, boxes):
        self.rank, self.size, self.boxes = rank, size, boxes
        self.local_rank, self.host, self.name, self.idle = rank, "here", f"rank {rank} on here", True

    def tell(self, name, order, *arrays):
        self.idle = False
        for peer in range(1, self.size):
            self.boxes[0, peer].put((name, order, [array.copy() for array in arrays]))

    def hear(self):
        return self.boxes[0, self.rank].get(timeout=strict_nccl.SECONDS)

    def broadcast(self, array):
        assert isinstance(array, np.ndarray)
        if self.rank > 0:
            array[...] = self.hear()[2][0]
        else:
            self.tell("", {}, array)

    def gather(self, part, bounds):
        assert isinstance(part, np.ndarray) and len(part) == bounds[self.rank + 1] - bounds[self.rank]
        self.boxes[self.rank, 0].put(part.copy())
        if self.rank == 0:
            return np.concatenate([self.boxes[peer, 0].get(timeout=strict_nccl.SECONDS) for peer in range(self.size)])


class Watched(Distributed):
    """No step waits for the GPU, on no rank."""

    def _accumulate(self, *args, **order):
        return self.watched(super()._accumulate, *args, **order)

    def _evaluate(self, *args, **order):
        return self.watched(super()._evaluate, *args, **order)

    def _step(self, *args, **order):
        return self.watched(super()._step, *args, **order)

    def watched(self, method, *args, **order):
        before = len(gpu.waits)
        result = method(*args, **order)
        assert gpu.waits[before:] == []
        return result


def on_ranks(n, work, gpus=None):
    """What work(host) returns on each of n ranks, a list; raises the error of the first that raises."""
    boxes, results = collections.defaultdict(queue.Queue), [None] * n

    def run(rank):
        gpu.devices = n if gpus is None else gpus[rank]
        try:
            results[rank] = work(Host(rank, n, boxes))
        except BaseException as error:
            results[rank] = error
            for peer in range(n if rank == 0 else 0):
                boxes[0, peer].put(("stop", {}, []))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(n)]
    with blas_threads(1):       # once for all: it is a setting of the process
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * strict_nccl.SECONDS)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def model_of(device, seed=0, **fields):
    return GPT(GPTConfig(**SMALL | fields), seed, "float64", device, 1, "reference")


def trainer_of(model, out_dir, **options):
    options = {"batch_size": 5, "gradient_accumulation_steps": 2, "max_iters": 4, "lr_decay_iters": 4,
               "warmup_iters": 1, "eval_interval": 2, "eval_iters": 2, "grad_clip": 0.1, "learning_rate": 0.01,
               "dtype": "float64", **options}
    return Trainer(model, TOKENS, TOKENS[:60], TrainOptions(**options), out_dir)


def train(n, reduce, out_dir, fields=None, **options):
    """Train on n ranks, or alone without GPUs if n is 1; go on from what is in out_dir. Returns the checkpoint."""
    def run(model):
        trainer = trainer_of(model, out_dir, **options)
        if out_dir.exists():
            trainer.restore(read_checkpoint(find_checkpoint(out_dir, "latest")))
        trainer.run(progress=False)

    def work(host):
        network = connect(host, reduce)
        model = model_of(own_gpu(host), host.rank, **fields or {})      # other ranks begin with other parameters
        model.engine = engine = Watched(model.engine, host, network)
        if host.rank > 0:
            engine.follow()
        else:
            run(model)
            host.tell("stop", {})
        assert engine.m.chunk.size <= model.params.flat.size // n + n
        return model.params.flat.get()

    if n == 1:
        run(model_of("cpu", **fields or {}))
    else:
        params = on_ranks(n, work)
        for other in params[1:]:
            np.testing.assert_array_equal(other, params[0])
    return read_checkpoint(find_checkpoint(out_dir, "latest"))


def arrays_of(checkpoint):
    """Parameters and moments of a checkpoint, in one array."""
    model = model_of("cpu")
    m, v = model.params.zeros_like(), model.params.zeros_like()
    checkpoint.load_parameters(model.params)
    checkpoint.load_moments(m, v)
    return np.concatenate([model.params.flat, m.flat, v.flat])


@BOTH
@pytest.mark.parametrize(("n", "batch_size"), [(2, 5), (3, 5), (3, 2)], ids=["2 ranks", "3 ranks", "an idle rank"])
def test_ranks_train_as_one_process_does(tmp_path, n, batch_size, reduce):
    """Parameters, moments and losses; and two runs have the same bits."""
    expected = train(1, None, tmp_path / "alone", batch_size=batch_size)
    found = train(n, reduce, tmp_path / "ranks", batch_size=batch_size)
    again = train(n, reduce, tmp_path / "again", batch_size=batch_size)
    np.testing.assert_allclose(arrays_of(found), arrays_of(expected), rtol=1e-9, atol=1e-13)
    np.testing.assert_array_equal(arrays_of(found), arrays_of(again))
    assert found.state["best_loss"] == pytest.approx(expected.state["best_loss"], rel=1e-12)


def test_who_adds_up_makes_a_difference_to_the_bits(tmp_path):
    """So the stand-in's order is not that of the ranks, and "fixed" does not leave the sum to it."""
    fixed, summed = (arrays_of(train(3, reduce, tmp_path / reduce)) for reduce in ("fixed", "nccl"))
    assert (fixed != summed).any()
    np.testing.assert_allclose(fixed, summed, rtol=1e-9, atol=1e-13)


def test_a_run_moves_between_gpus_and_a_cpu(tmp_path):
    """3 ranks, one process, 2 ranks: each goes on from the moments that the one before has saved."""
    expected = train(1, None, tmp_path / "alone", max_iters=6)
    for n, until in ((3, 2), (1, 4), (2, 6)):
        found = train(n, "fixed", tmp_path / "moving", max_iters=until)
    np.testing.assert_allclose(arrays_of(found), arrays_of(expected), rtol=1e-9, atol=1e-13)


@BOTH
def test_each_rank_draws_masks_of_its_own(xp, reduce):
    """Those of its `Philox`: the gradients are the sum of what an engine without ranks computes for each one's rows."""
    n, config = 3, {"dropout": 0.3}
    batches = np.random.default_rng(1).integers(0, 11, (2, 2, 4, 6)).astype(np.int32)

    def work(host):
        engine = Watched(model_of(own_gpu(host), 0, **config).engine, host, connect(host, reduce))
        if host.rank == 0:
            engine.accumulated(list(batches), [engine.dropout_rng(5, 9, i) for i in range(2)], 48)
            host.tell("stop", {})
        else:
            engine.follow()
        return np.concatenate([part.get() for part in engine.gs])

    expected = model_of("cpu", 0, **config)
    grads = None
    for (i, (idx, targets)), (rank, rows) in itertools.product(enumerate(batches), enumerate(even_parts(4, n))):
        _, grads = expected.loss_and_grads(idx[rows], targets[rows], Philox(5, 9, i * n + rank), 48, grads)
    expected = np.concatenate([grads[name].reshape(-1) for name in expected.params.flat_names])
    np.testing.assert_allclose(np.concatenate(on_ranks(n, work)), expected, rtol=1e-9, atol=1e-15)


def test_no_two_ranks_and_micro_batches_share_random_numbers():
    for n in (1, 2, 3, 8, 5000):
        streams = [tuple(seed) for i in range(20) for seed in seeds_of(Philox(1 << 40 | 7, 3, i), n)]
        assert len({(*seed[:4], seed[4] & 0xFFFFFFFF) for seed in streams}) == 20 * n
    drawn = rng_of(seeds_of(Philox(1 << 40 | 7, 3, 19), 1)[0], np)
    assert vars(drawn) == vars(Philox(1 << 40 | 7, 3, 19))      # alone: as without ranks


def test_ranks_have_equally_many_parameters(xp):
    params = model_of("gpu").params
    for n in (2, 3, 7, 64):
        pieces = divide(params, n)
        ranges = [(first + start, first + end) for mine in pieces for _, first, start, end in mine]
        assert ranges[0][0] == 0 and ranges[-1][1] == params.flat.size
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ranges))
        assert not any(begin < params.n_matrix < end for begin, end in ranges)
        sizes = [sum(end - start for *_, start, end in mine) for mine in pieces]
        assert len({*sizes[:-1]}) == 1 and 0 <= sizes[-1] - sizes[0] < n
        assert evenly([0, *itertools.accumulate(sizes)]) == sizes[0]


@pytest.mark.parametrize(("bounds", "each"), [([0, 2, 4], 2), ([0, 2, 5], 2), ([0, 2, 3], 0), ([0, 0, 4], 0),
                                              ([0, 3, 4, 7], 0), (range(4), 1)], ids=str)
@BOTH
def test_any_division(xp, bounds, each, reduce):
    """What each rank has, gathered; and what each sends to each, added up; a range is in the place of a list, too."""
    n = len(bounds) - 1
    host = np.random.default_rng(0).standard_normal((n, bounds[-1]))
    assert evenly(bounds) == each

    def work(rank):
        network = connect(rank, reduce)
        mine = slice(*bounds[rank.rank:rank.rank + 2])
        array = xp.empty(bounds[-1])
        array[mine] = xp.asarray(host[rank.rank, mine])
        network.all_gather(array, bounds)
        send = network.buffer(bounds[-1], array.dtype)
        send[...] = xp.asarray(host[rank.rank])
        shares = network.exchange(send, bounds)
        assert len(shares) == (n if reduce == "fixed" else 1) and gpu.waits == []
        return array.get(), sum(shares).get()

    gathered, sums = zip(*on_ranks(n, work), strict=True)
    for array in gathered:
        parts = [host[rank, begin:end] for rank, (begin, end) in enumerate(itertools.pairwise(bounds))]
        np.testing.assert_array_equal(array, np.concatenate(parts))
    np.testing.assert_allclose(np.concatenate(sums), sum(host), rtol=0 if reduce == "fixed" else 1e-12)


@pytest.mark.parametrize(("gpus", "words"), [
    ([1, 1], "rank 1 on here would need the GPU that rank 0 on here has: start at most one rank for each GPU"),
    ([2, 0], "rank 1 on here: there is no NVIDIA GPU in this machine"),
    ([0, 2], "rank 0 on here: there is no NVIDIA GPU in this machine")], ids=["one GPU", "none", "none at rank 0"])
def test_a_rank_without_a_gpu_is_named_once(gpus, words):
    """By rank 0; the others are told to stop."""
    heard = []

    def work(host):
        try:
            heard.append((host.rank, connect(host, "fixed")))
        except UserError as error:
            heard.append((host.rank, str(error)))
            assert host.idle
            host.tell("stop", {})

    on_ranks(2, work, gpus)
    (_, said), (_, other) = sorted(heard)
    assert words in said and other is None


def test_ranks_may_see_one_gpu_each():
    """As SLURM can do it: each calls its own GPU 0."""
    def work(host):
        gpu.first = host.rank
        return own_gpu(host), connect(host, "fixed").size

    assert on_ranks(3, work, [1, 1, 1]) == [("gpu:0", 3)] * 3


def test_without_nccl_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(strict_cupy.cuda, "nccl", types.SimpleNamespace(available=False))
    with pytest.raises(UserError, match="rank 0 on here: .*pip install nvidia-nccl-cu13, on every machine"):
        on_ranks(2, lambda host: connect(host, "fixed"))


def test_an_error_of_nccl_is_one_line(monkeypatch):
    monkeypatch.setattr(strict_nccl, "pci", lambda: b"the same")
    with pytest.raises(UserError, match="NCCL cannot connect the GPUs .*Duplicate GPU.*NCCL_DEBUG"):
        on_ranks(2, lambda host: connect(host, "fixed"))


@pytest.mark.parametrize("device", ["gpu:1", "cuda:0"])
def test_one_gpu_for_all_ranks_is_refused(monkeypatch, device, npgpt):
    world = types.SimpleNamespace(rank=0, size=4, local_rank=0, name="rank 0", end=lambda code: None, threads=1)
    for place in ("cli.main", "cli.ranks", "cli.train"):
        monkeypatch.setattr(f"npgpt.{place}.join", lambda: world)
    code, _, err = npgpt("train", "--device", device)
    assert code == 2 and err.count("\n") == 1 and f"--device {device} is one GPU, and there are 4 ranks" in err


def test_reduce_nccl_is_for_several_ranks(train):
    code, _, err = train("--reduce", "nccl")
    assert code == 2 and "--reduce nccl is for several ranks" in err


# The stand-in refuses what NCCL refuses, and what would hang.

@pytest.mark.parametrize(("call", "words"), [
    (lambda c, a, b: c.allGather(np.zeros(4).ctypes.data, b, 2, 8, 0), "no 2 values of float64 on the GPU"),
    (lambda c, a, b: c.allGather(a, b, 3, 8, 0), "no [36] values"),
    (lambda c, a, b: c.allGather(a, b, 2, 7, 0), "no 2 values of float32"),
    (lambda c, a, b: c.allGather(a, b, 1 + c.rank, 8, 0), "NCCL hangs: .* calls allGather"),
    (lambda c, a, b: c.broadcast(a, b, 2, 8, c.rank, 0), "NCCL hangs"),
    (lambda c, a, b: c.send(a, 2, 8, 1 - c.rank, 0), "waits for the other rank"),
    (lambda c, a, b: c.allGather(a, b, 2, 8, 5), "stream")],
    ids=["host memory", "too short", "dtype", "counts differ", "roots differ", "no group", "stream"])
def test_what_the_stand_in_refuses(monkeypatch, xp, call, words):
    monkeypatch.setattr(strict_nccl, "SECONDS", 1)

    def work(host):
        comm, (a, b) = connect(host, "fixed").comm, (xp.zeros(2), xp.zeros(4))
        call(comm, a.data.ptr, b.data.ptr)

    with pytest.raises((strict_nccl.NcclError, AssertionError), match=words):
        on_ranks(2, work)


# Processes, and the command line.

def mpiexec(n, folder, gpus, *arguments):
    """Run npgpt on n ranks with GPUs: a `CompletedProcess`."""
    pytest.importorskip("mpi4py")
    launcher = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if launcher is None:
        pytest.skip("there is no mpiexec")
    root = Path(__file__).parents[3]
    command = [launcher, "-n", n, sys.executable, "-m", "tests.engine.distributed.gpu_ranks", gpus, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root), "NPGPT_DATA_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=120, check=False)


TRAIN = ["train", "--corpus", "text.txt", *TINY, "--n-embd", 32, "--batch-size", 5, "--max-iters", 4,
         "--eval-interval", 2]
KERNELS = {"fused": ["--dtype", "float32"], "reference": ["--kernels", "reference", "--dtype", "float64"]}


@pytest.mark.slow
@pytest.mark.parametrize(("kernels", "reduce"), [("fused", "fixed"), ("reference", "nccl")])
def test_the_command_line_on_ranks(tmp_path, text_file, kernels, reduce):
    """Three ranks: equal files twice; the numbers of one process. No step waits."""
    flags, runs = [*TRAIN, *KERNELS[kernels], "--device"], {}
    for out, n, device in (("first", 3, "gpu"), ("second", 3, "auto"), ("alone", 1, "gpu")):
        some = [] if n == 1 else ["--reduce", reduce]
        ran = mpiexec(n, tmp_path, 3, *flags, device, "--out-dir", out, *some)
        assert ran.returncode == 0, ran.stderr
        assert ("3 ranks, each a stand-in for a GPU, " in ran.stdout) == (n == 3)
        # to save and to generate; and for the losses, twice each log interval
        assert ran.stdout.splitlines()[-1] == "waits: arrays.py trainer.py"
        runs[out] = {path.name: path.read_bytes() for path in (tmp_path / out / "step-00000004").iterdir()}
    assert runs["first"] == runs["second"]
    first, alone = (GPT.from_pretrained(tmp_path / out / "step-00000004", dtype="float64", device="cpu")
                    for out in ("first", "alone"))
    difference = np.linalg.norm(first.params.flat - alone.params.flat) / np.linalg.norm(alone.params.flat)
    assert difference < {"fused": 1e-3, "reference": 1e-9}[kernels]


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "flags", "words"), [
    ("1", [], "rank 1 on .* would need the GPU that rank 0 on .* has: start at most one rank for each GPU"),
    ("2", [], "rank 2 on .* would need the GPU that rank 0"),
    ("3,3,0", [], "rank 2 on .*: there is no NVIDIA GPU in this machine"),
    ("3,3,0", ["--device", "auto"], "rank 2 on .*: there is no NVIDIA GPU in this machine"),
    ("3", ["--device", "gpu:1"], "--device gpu:1 is one GPU, and there are 3 ranks"),
    ("-3", [], "rank 0 on .*: GPUs of several ranks need NCCL.*pip install nvidia-nccl-cu13"),
    ("0", ["--device", "auto", "--reduce", "nccl"], "--reduce nccl is for several ranks with GPUs")], ids=str)
def test_what_is_wrong_is_said_once(tmp_path, text_file, gpus, flags, words):
    ran = mpiexec(3, tmp_path, gpus, *TRAIN, "--device", "gpu", *flags)
    assert ran.returncode == 2
    assert re.fullmatch(f"npgpt: {words}.*\n", ran.stderr), ran.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("step-*"))
