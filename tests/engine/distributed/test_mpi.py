"""`npgpt train` on ranks started by mpiexec: the files of one process, and every failure ends the whole job.

The ranks run `python -c CODE`, CODE being what a test changes in them first, and then npgpt.
"""

import json
import os
import re
import signal
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from npgpt.checkpoints.run import find_checkpoint
from npgpt.engine.distributed.mpi import mpi_world, threads_of
from tests.cases import MODERN
from tests.conftest import TINY
from tests.engine.distributed.jobs import Job, lines_of, mpiexec, why_no_jobs
from tests.engine.distributed.world import content
from tests.helpers.runs import bits

SECONDS = 10            # within which a job ends that has lost a rank
SETTINGS = {"npgpt.engine.update.SLICE": 101, "npgpt.engine.memory.ROUND": 700, "npgpt.engine.memory.SENT": 90}
SMALL_PARTS = "".join(f"import {name.rpartition('.')[0]}; {name} = {value}\n" for name, value in SETTINGS.items())
NPGPT = "import sys; from npgpt.cli.main import main; sys.exit(main())"
SLOWLY = """
import time
from npgpt.training.trainer import Trainer
quick = Trainer.train_step
Trainer.train_step = lambda self: (time.sleep(0.01), quick(self))[1]
"""
FAILS = """
from npgpt.engine.cpu import CPUEngine
from npgpt.engine.distributed.mpi import mpi_world
right, calls = CPUEngine.accumulated, []
def accumulated(*args):
    calls.append(1)
    if len(calls) == 5:
        open("died", "x").close()
        raise {error}
    return right(*args)
if mpi_world().rank == {rank}:
    CPUEngine.accumulated = accumulated
"""
DIES = """
import os, signal
from npgpt.engine.distributed.engine import Distributed
from npgpt.engine.distributed.mpi import mpi_world
works, times = Distributed.{method}, []
def dies(*args, **order):
    times.append(1)
    if len(times) == {call}:
        open("died", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return works(*args, **order)
if mpi_world().rank == {rank}:
    Distributed.{method} = dies
"""


@pytest.fixture
def job(tmp_path, text_file):
    """Start ranks: job(3, "train", …, code=…) -> a `Job`; the tiny model's flags are added to train's."""
    if why := why_no_jobs():
        pytest.skip(why)
    jobs = []

    def start(n, command, *arguments, code="", tiny=True):
        if command == "train" and tiny:
            arguments = ["--corpus", text_file, *TINY, *arguments]
        jobs.append(Job(n, code + NPGPT, [command, *arguments], tmp_path))
        return jobs[-1]

    yield start
    for each in jobs:
        each.clean()


@pytest.fixture
def small_parts(monkeypatch):
    """Do what SMALL_PARTS does, in this process."""
    monkeypatch.setattr("npgpt.engine.update.SLICE", 101)


RUNS = {     # ranks -> options
    3: ["--no-tie-word-embeddings", "--dtype", "float64", "--batch-size", 7, "--dropout", 0.2, "--grad-clip", 0.01],
    4: ["--corpus", "lines", "--sampling", "sequential", "--batch-size", 4, "--attn-pdrop", 0.3, "--no-bias", "--block",
        MODERN]}


@pytest.mark.slow
@pytest.mark.parametrize("n", RUNS)
def test_ranks_write_the_files_of_shards(job, train, npgpt, small_parts, n):
    prepare = ["data", "prepare", "text.txt", "--tokenizer", "byte", "--documents", r"\n", "--out", "lines"]
    assert npgpt(*prepare)[0] == 0
    options = [*RUNS[n], "--gradient-accumulation-steps", 2, "--max-iters", 50, "--eval-interval", 20]
    code, _, err = job(n, "train", *options, "--out-dir", "ranks", code=SMALL_PARTS).end()
    assert (code, err) == (0, "")
    assert train(*options, "--out-dir", "shards", "--threads", n)[0] == 0
    assert content(Path("ranks")) == content(Path("shards"))
    state = json.loads((find_checkpoint("ranks") / "state.json").read_text())
    assert state["threads"] == n and state["step"] == 50


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "says"), [
    (["train", "--n-layer", "x"], "argument --n-layer"), (["train", "--n-embd", "7"], "n_embd"),
    (["eval"], "npgpt eval runs in one process"), (["train", "--backward", "."], "without mpiexec")], ids=str)
def test_what_is_refused_is_said_once(job, arguments, says):
    code, out, err = job(2, *arguments, tiny="--n-embd" in arguments).end()
    assert code == 2 and len(lines_of(err)) == 1 and says in lines_of(err)[0] and "Traceback" not in err
    assert "step" not in out


@pytest.mark.parametrize(("variable", "mpi4py", "says"), [
    ("PMI", None, 'pip install "npgpt[mpi]"'), ("OMPI_COMM_WORLD", None, 'pip install "npgpt[mpi]"'),
    ("PMIX", types.SimpleNamespace(MPI=types.SimpleNamespace(COMM_WORLD=types.SimpleNamespace(size=1))),
     "2 ranks were started, but each sees 1: the launcher belongs to another MPI")])
def test_ranks_that_cannot_meet_say_so_once(train, monkeypatch, variable, mpi4py, says):
    monkeypatch.setitem(sys.modules, "mpi4py", mpi4py)
    monkeypatch.setenv(f"{variable}_SIZE", "2")
    mpi_world.cache_clear()
    ends = []
    for rank in range(2):
        monkeypatch.setenv(f"{variable}_RANK", str(rank))
        ends.append(train("--max-iters", 1))
    (code, out, err), (other_code, other_out, other_err) = ends
    assert code == 2 and len(lines_of(err)) == len(err.splitlines()) == 1 and says in err
    assert (out, other_code, other_out, other_err) == ("", 0, "", "")


@pytest.mark.parametrize(("cores", "threads"), [([range(8, 16), range(8, 16)], 4), ([range(8), range(8, 16)], 8),
                                                ([range(3), range(3), range(8)], 1), ([range(1), range(1)], 1)])
def test_ranks_that_share_cores_divide_them(monkeypatch, cores, threads):
    def all_gather(mine, of_all):
        of_all[...] = [np.isin(np.arange(mine.size), each) for each in cores]

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(cores[0]), raising=False)
    assert threads_of(types.SimpleNamespace(size=len(cores), Allgather=all_gather)) == threads


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "error", "code", "says"), [
    (1, 'MemoryError("too much")', 2, r"npgpt: rank 1 on \S+: out of memory \(too much\): lower --batch-size.*"),
    (1, 'RuntimeError("a bug")', 1, r"npgpt: rank 1 on \S+ has failed: RuntimeError: a bug"),
    (0, 'RuntimeError("a bug")', 1, r"npgpt: rank 0 on \S+ has failed: RuntimeError: a bug"),
    ], ids=["memory", "bug", "bug of rank 0"])
def test_a_rank_that_raises_ends_all(job, tmp_path, rank, error, code, says):
    found, out, err = job(2, "train", "--max-iters", 20, code=FAILS.format(rank=rank, error=error)).end()
    assert time.time() - (tmp_path / "died").stat().st_mtime < SECONDS
    assert found == code and len(lines_of(err)) == 1 and re.fullmatch(says, lines_of(err)[0])
    assert err.count("Traceback (most recent call last)") == (code == 1)
    assert "step    20" not in out


@pytest.mark.slow
@pytest.mark.parametrize(("n", "rank", "method", "call"), [
    (2, 0, "_step", 12), (3, 2, "_accumulate", 12), (2, 1, "_moment", 80)])
def test_a_rank_that_is_killed_ends_all_and_the_run_goes_on(job, train, npgpt, tmp_path, small_parts, n, rank, method,
                                                            call):
    """In a step, and in the middle of a checkpoint. tools/torture.py kills at other moments."""
    options = ["--eval-interval", 5, "--batch-size", 6, "--dropout", 0.1]
    died = DIES.format(rank=rank, method=method, call=call)
    code, out, err = job(n, "train", *options, "--max-iters", 1000, code=SMALL_PARTS + died).end()
    assert time.time() - (tmp_path / "died").stat().st_mtime < SECONDS and code != 0
    assert lines_of(err) == [] and "Traceback" not in err        # the launcher says that a process was killed
    last = int(find_checkpoint("out").name[-8:])
    assert last in (5, 10) and f"step {last:>5}" in out + f"step {last:>5}" * (method == "_moment")
    assert npgpt("train", "--resume", "--max-iters", 17, "--threads", n)[0] == 0
    assert train(*options, "--max-iters", 17, "--out-dir", "whole", "--threads", n)[0] == 0
    assert content(Path("out")) == content(Path("whole"))


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.slow
def test_ctrl_c_saves_once(job, train, npgpt, small_parts):
    began = job(2, "train", "--max-iters", 100_000, "--eval-interval", 10, "--batch-size", 4, code=SMALL_PARTS + SLOWLY)
    if "--oversubscribe" in mpiexec():
        pytest.skip("Open MPI's mpiexec kills its ranks a quarter of a second after Ctrl-C")
    began.wait_for("step    10")
    began.process.send_signal(signal.SIGINT)
    code, out, err = began.end()
    assert code == 0 and lines_of(err) == [] and "Traceback" not in err
    assert re.findall(r"^stopped at step \d+, saved; continue with: npgpt train --resume --out-dir out$", out, re.M)
    assert out.count("saved") == 1
    step = int(re.search(r"stopped at step (\d+)", out)[1])
    assert find_checkpoint("out").name == f"step-{step:08d}"
    assert train("--max-iters", step, "--eval-interval", 10, "--batch-size", 4, "--out-dir", "whole", "--threads",
                 2)[0] == 0
    assert bits("out") == bits("whole")


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_all_in_the_end(job):
    lost = "import npgpt.engine.distributed.mpi; npgpt.engine.distributed.mpi.LOST = 2\n"
    stops = DIES.format(rank=1, method="_step", call=12).replace("SIGKILL", "SIGSTOP")
    code, _, err = job(2, "train", "--max-iters", 100_000, code=lost + stops).end(30)
    assert code == 2 and len(lines_of(err)) == 1 and lines_of(err)[0].startswith("npgpt: another rank does not answer")
