"""Several processes train as one, and end as one."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from npgpt.checkpoints.run import find_checkpoint
from npgpt.cli.processes import LOST
from npgpt.training.metrics import read_metrics
from tests.conftest import TINY
from tests.helpers.runs import refused

SECONDS = 10  # in which all must end if one is killed
FOREVER = "--max-iters 100000 --out-dir out"
FLAGS = "--kernels xla --dtype float64 --batch-size 5 --dropout 0.1 --eval-interval 10"
TRAIN = [sys.executable, "-m", "npgpt", "train", "--corpus", "text.txt", *TINY, *FLAGS.split()]


class Processes:
    """n processes of `npgpt train`, started as by hand, for JAX, or as by MPICH's mpiexec."""

    def __init__(self, folder, n, arguments, by="JAX"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS")
        if by == "MPICH":
            names = ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS")
        self.folder, self.all = folder, []
        for i in range(n):
            values = (n, i, f"127.0.0.1:{port}" if by == "JAX" else n)
            variables = {name: str(value) for name, value in zip(names, values, strict=True)}
            with open(folder / f"out{i}", "w") as out, open(folder / f"err{i}", "w") as err:
                process = subprocess.Popen(
                    [*TRAIN, *arguments.split()],
                    cwd=folder,
                    stdout=out,
                    stderr=err,
                    env={**os.environ, **variables},
                )
            self.all.append(process)

    def wait_for(self, text):
        """Wait until the first process has printed a text."""
        while text not in (self.folder / "out0").read_text():
            assert all(process.poll() is None for process in self.all)
            time.sleep(0.05)

    def ends(self, seconds=100):
        """Return the exit code, standard output and lines of standard error of each process."""
        try:
            codes = [process.wait(seconds) for process in self.all]
        finally:
            for process in self.all:
                process.kill()
        found = []
        for i, code in enumerate(codes):
            lines = (self.folder / f"err{i}").read_text().splitlines()
            errors = [line for line in lines if not line.startswith(("XLA compiles", "… in"))]
            found.append((code, (self.folder / f"out{i}").read_text(), errors))
        return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder for compiled programs, which these tests share."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def start(text_file, tmp_path, programs, monkeypatch, ctrl_c):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(programs))
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    return lambda *arguments, **options: Processes(tmp_path, *arguments, **options)


def losses(out_dir):
    return [record["loss"] for record in read_metrics(out_dir) if "loss" in record]


@pytest.mark.slow
def test_two_processes_are_one_and_a_run_moves_between_them(start):
    """The batch of 5 rows is not even. Ten steps and ten, on two and on one, are twenty."""
    (code, out, err), other = start(2, "--max-iters 10 --out-dir two").ends()
    assert (code, err) == (0, []) and "XLA on cpu, 2 devices" in out and other == (0, "", [])
    shutil.copytree("two", "moved")
    ends = start(2, "--max-iters 20 --out-dir two --resume").ends()
    ends += start(1, "--max-iters 20 --out-dir moved --resume").ends()
    ends += start(1, "--max-iters 20 --out-dir one").ends()
    assert [code for code, *_ in ends] == [0, 0, 0, 0]
    for run in ("two", "moved"):
        assert len(losses(run)) == 20 and losses(run) == pytest.approx(losses("one"), rel=1e-9)
        for name in ("model.safetensors", "optimizer.safetensors"):
            found, expected = (load_file(find_checkpoint(each) / name) for each in (run, "one"))
            for key, array in expected.items():
                np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-8, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_if_one_is_killed_the_other_ends_with_one_line(start, killed):
    processes = start(2, FOREVER)
    processes.wait_for("step    10")
    processes.all[killed].kill()
    code, _, (line,) = processes.ends(SECONDS)[1 - killed]
    assert code == 2 and line.startswith("npgpt: ") and line.endswith(LOST)
    assert find_checkpoint("out").name >= "step-00000010"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("i", "sent", "by"), [(0, signal.SIGINT, "JAX"), (1, signal.SIGTERM, "MPICH")]
)
def test_a_signal_to_one_stops_all_after_the_same_step(start, i, sent, by):
    processes = start(2, f"{FOREVER} --log-interval 3", by=by)
    processes.wait_for("step    10")
    processes.all[i].send_signal(sent)
    (code, out, err), other = processes.ends()
    assert (code, err) == (128 + sent, []) and other == (128 + sent, "", [])
    step = int(re.search(r"^stopped at step (\d+), saved; continue with: ", out, re.M)[1])
    assert step % 3 == 0 and find_checkpoint("out").name == f"step-{step:08d}"


@pytest.mark.slow
def test_processes_that_do_not_meet_say_so():
    """They may be on two machines: JAX does not know which of them is the first."""
    variables = {"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "1"}
    alone = subprocess.run(TRAIN, capture_output=True, text=True, env={**os.environ, **variables})
    refused((alone.returncode, alone.stdout, alone.stderr), "set JAX_COORDINATOR_ADDRESS")


@pytest.mark.parametrize("command", ["sample tiny", "train", "train --max-itres 3"])
def test_what_is_refused_is_said_once(npgpt, monkeypatch, command):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    refused(npgpt(*command.split()))
    monkeypatch.setenv("PMI_RANK", "1")
    assert npgpt(*command.split()) == (2, "", "")
