"""Ctrl-C in the command `npgpt`, started as an installation starts it: at most one line, whenever it comes."""

import configparser
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY

ROOT = Path(__file__).resolve().parents[1]
# Python imports this before it runs a program. It sends SIGINT at each of MOMENTS: when a module is looked for, when a
# function of npgpt/cli/main.py, info.py or ranks.py is called, when a line was printed to standard error, and when the
# interpreter ends.
AT_MOMENTS = """
import atexit, os, signal, sys

moments = os.environ["MOMENTS"].split(", ")

def now(moment):
    if moment in moments:
        moments.remove(moment)
        os.kill(os.getpid(), signal.SIGINT)

def calls(frame, event, arg):
    if frame.f_code.co_filename.endswith(("cli/main.py", "cli/info.py", "cli/ranks.py")):
        now(f"{event} {frame.f_code.co_name}")

class Imports:
    def find_spec(self, name, path=None, target=None):
        if name == "npgpt.cli.main":
            sys.setprofile(calls)
        now(f"import {name}")

sys.meta_path.insert(0, Imports())
atexit.register(now, "exit handlers")
write, sys.stderr.write = sys.stderr.write, lambda text: (write(text), text == "\\n" and now("print"))
"""


@pytest.fixture
def start(tmp_path, ctrl_c):
    """Start the command that setup.cfg names, or Python with other arguments: start("info", MOMENTS="print")."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, _, entry = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = entry.partition(":")
    (tmp_path / name).write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    (tmp_path / "sitecustomize.py").write_text(AT_MOMENTS)

    def started(*arguments, python=sys.executable, program=(tmp_path / name,), MOMENTS="", **environment):
        return subprocess.Popen(
            [python, *program, *arguments], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "MOMENTS": MOMENTS, **environment})

    return started


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("moments", [
    "import numpy", "import npgpt.cli.info", "call main", "return parse", "call run", "call run, print",
    "call run, exit handlers"])
def test_ctrl_c_is_one_line(start, moments):
    assert ended(start("info", MOMENTS=moments)) == (130, "", "interrupted\n")


@pytest.mark.parametrize("moment", ["return main", "exit handlers"])
def test_ctrl_c_after_the_command_is_silent(start, moment):
    code, out, err = ended(start("info", MOMENTS=moment))
    assert code == 130 and err == "" and "parameters" in out


def test_python_m_npgpt_cli_is_the_command(start):
    assert ended(start("info", program=["-m", "npgpt"], MOMENTS="import numpy")) == (130, "", "interrupted\n")


@pytest.mark.parametrize("launcher", ["PMI", "OMPI_COMM_WORLD"])
def test_of_many_ranks_one_says_so(start, launcher):
    """They end by the signal: for an exit code, mpiexec may not end the others."""
    for rank, says in (("0", "interrupted\n"), ("1", "")):
        ranks = {f"{launcher}_SIZE": "2", f"{launcher}_RANK": rank}
        assert ended(start("info", MOMENTS="import numpy", **ranks)) == (-signal.SIGINT, "", says)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["import mpi4py", "call follow", "return main"])
def test_ctrl_c_ends_all_ranks(start, tmp_path, text_file, moment):
    pytest.importorskip("mpi4py", reason="MPI's ranks")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("there is no mpiexec beside this Python")
    command = ["-n", "3", sys.executable, tmp_path / "npgpt", "train", "--corpus", text_file, *TINY, "--max-iters", "9"]
    _, _, err = ended(start(*map(str, command), python=mpiexec, program=(), MOMENTS=moment))
    assert err.count("interrupted") <= 1 and "Traceback" not in err


def test_ctrl_c_that_is_ignored_stays_ignored(start):
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # which a process inherits
    for moments in ("import numpy", "call main", "exit handlers"):
        code, out, err = ended(start("info", MOMENTS=moments))
        assert code == 0 and err == "" and "parameters" in out


def test_other_programs_keep_their_handler(start):
    code, _, err = ended(start(program=["-c", "import npgpt.api"], MOMENTS="import numpy"))
    assert code != 130 and "KeyboardInterrupt" in err
