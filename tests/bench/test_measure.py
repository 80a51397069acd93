"""The figures on given numbers, and the processes that they come from."""

import json
import os
import subprocess
import sys

import pytest

from npgpt.bench import measure
from npgpt.bench.machine import memory, peak_memory
from npgpt.bench.measure import (
    ChildError,
    Worker,
    check_loss,
    child_environment,
    exponent,
    figures,
    machine,
    one_line,
    spread,
)
from npgpt.bench.shapes import SHAPES, Recipe, Scaling, Training
from tests.bench.conftest import GENERATION, TRAINING


def answers(rounds, results=(4.0,), warm_up=2):
    """Answers of a side whose rounds took so many seconds a step, after a warm-up that was slow."""
    return [{"seconds": [99.0], "results": list(results), "peak_memory": 1}] * warm_up + [
        {"seconds": seconds, "results": list(results), "peak_memory": 10**6 * (i + 1)}
        for i, seconds in enumerate(rounds)]


def test_the_spread_is_the_10th_to_90th_percentile():
    assert spread(range(11)) == {"median": 5.0, "low": 1.0, "high": 9.0}


def test_figures_of_training():
    best = [*answers([[1.0]] * 2, [5e6]), *answers([[1.0]], [8e6, 7e6])]
    result = figures(TRAINING, {"npgpt": answers([[1.0, 2.0, 90.0], [4.0], [3.0]]), "gemm": best,
                                "eager": answers([[3.0], [4.0], [30.0]])}, {"compile": "no compiler"})
    ours, eager = result["sides"]["npgpt"], result["sides"]["eager"]
    assert ours["rounds"] == [2.0, 4.0, 3.0] and ours["seconds"]["median"] == 3.0
    assert ours["seconds"]["low"] == pytest.approx(2.2) and ours["seconds"]["high"] == pytest.approx(3.8)
    assert ours["tokens_per_second"] == 8 * 3 / 3.0 and ours["peak_memory"] == 3 * 10**6
    assert eager["ratio"]["median"] == 1.5                      # of 1.5, 1 and 10; not 4 / 3
    assert ours["ratio"]["median"] == 1.0
    assert result["floor_seconds"] == TRAINING.flops / 8e6
    assert ours["floor_share"] == result["floor_seconds"] / 3.0
    assert ours["first_loss"] == 4.0
    assert result["sides"]["compile"] == {"failed": "no compiler"} and "gemm" not in result["sides"]


def test_figures_of_generation_are_for_one_token():
    tokens = [[1, 2]]
    result = figures(GENERATION, {"npgpt": answers([[2.0]], [tokens]), "transformers": answers([[6.0]], [[[1, 3]]]),
                                  "gemm": answers([[1.0]], [0.07, 0.05])}, {})
    ours, theirs = result["sides"]["npgpt"], result["sides"]["transformers"]
    assert ours["seconds"]["median"] == 0.2 and ours["tokens_per_second"] == 2 / 0.2
    assert result["floor_seconds"] == 0.05 and ours["floor_share"] == 0.05 / 0.2
    assert theirs["ratio"]["median"] == pytest.approx(3.0)
    assert ours["tokens_equal"] and not theirs["tokens_equal"]


def test_figures_of_a_whole_run_count_every_run_and_have_no_floor():
    result = figures(Recipe("char-cpu"), {"npgpt": answers([[40.0], [50.0]], [1.9], warm_up=0)}, {})
    assert result["sides"]["npgpt"]["seconds"]["median"] == 45.0
    assert result["sides"]["npgpt"]["tokens_per_second"] == 2000 * 12 * 64 / 45.0
    assert result["sides"]["npgpt"]["validation_loss"] == 1.9
    assert result["floor_seconds"] is None and result["sides"]["npgpt"]["floor_share"] is None


@pytest.mark.parametrize("loss", [4.002, float("nan")])
def test_a_peer_with_another_loss_is_no_peer(loss):
    check_loss(TRAINING, *answers([[1.0]], [4.0005], 0), *answers([[1.0]], warm_up=0))
    with pytest.raises(ChildError, match="npgpt's 4.0000"):
        check_loss(TRAINING, *answers([[1.0]], [loss], 0), *answers([[1.0]], warm_up=0))


def test_exponents():
    assert exponent([1, 2, 4], [3.0, 3.0 * 2**1.5, 3.0 * 4**1.5]) == pytest.approx(1.5)


def test_scaling_measures_each_point_once_and_leaves_out_a_peer_that_failed(monkeypatch):
    measured = []

    def compare(name, shape, sides, threads, rounds):
        measured.append(shape)
        seconds = {"seconds": {"median": 2e-6 * shape.T * shape.B**0.5 * shape.n_embd**2}}
        failed = {"failed": "no memory"} if shape.T == 1024 else seconds
        return {"sides": dict(zip(sides, (seconds, failed), strict=True))}

    monkeypatch.setattr(measure, "compare", compare)
    axes = measure.measure("scaling", Scaling(), ["eager", "compile"], 1, 9)["axes"]
    assert len(measured) == len(set(measured)) == 5 + 4 + 3     # the base is on each axis
    assert {shape.n_embd // shape.n_head for shape in measured} == {64}
    assert axes["B"]["values"] == (1, 2, 4, 8, 16)
    assert axes["B"]["exponents"] == {"npgpt": pytest.approx(0.5), "eager": pytest.approx(0.5)}
    assert axes["n_embd"]["exponents"]["npgpt"] == pytest.approx(2.0)
    assert axes["T"]["exponents"] == {"npgpt": pytest.approx(1.0)}


def test_which_sides_take_part_and_how_often(monkeypatch):
    calls = {}
    monkeypatch.setattr(measure, "compare", lambda name, shape, sides, threads, rounds: calls.update({name: (sides,
                                                                                                            rounds)}))
    for name in ("A", "E", "gen1"):
        measure.measure(name, SHAPES[name], ["eager", "compile", "transformers"], 2, 7)
    assert calls == {"A": (["npgpt", "eager", "compile", "gemm"], 7), "E": (["npgpt", "eager"], 3),
                     "gen1": (["npgpt", "transformers", "gemm"], 7)}


def test_the_operations_of_the_shapes():
    """By hand: forward and twice that for the backward, 2 operations a weight or score."""
    shape = Training(n_layer=1, n_head=1, n_embd=2, T=3, B=5, vocab_size=7, block_size=3)
    block = 2 * 6 + 2 * 2 + 2 * 8 + 8 * 2
    scores_and_values = 3 * 2 + 3 * 2
    assert shape.flops == 3 * 2 * 15 * (block + scores_and_values + 7 * 2)


def test_children_start_without_what_pins_openblas_and_with_their_threads(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setenv("OPENBLAS_L2_SIZE", "512")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = child_environment(3)
    assert not {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"} & environment.keys()
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"
    assert environment["PATH"] == os.environ["PATH"]
    described = machine(1)
    assert described["blas_architecture"] != "Prescott"
    assert described["numpy"] and described["cpu"] and described["memory"] == memory()


@pytest.mark.skipif(os.name != "posix", reason="sessions and signals are POSIX's")
def test_a_worker_answers_each_request_and_ends_with_the_block():
    with pytest.raises(KeyboardInterrupt), Worker("npgpt", TRAINING, 1) as worker:
        process = worker.process
        assert os.getsid(process.pid) != os.getsid(0)       # Ctrl-C does not reach it
        for steps in (1, 3):
            answer = worker.ask(steps)
            assert len(answer["seconds"]) == len(answer["results"]) == steps and min(answer["seconds"]) > 0
            assert 10**7 < answer["peak_memory"] < 10**9
        raise KeyboardInterrupt
    assert process.returncode == -9


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize(("code", "reason"), [
    ("import os; os.kill(os.getpid(), 9)", "the process was killed by signal 9, as it is when memory runs out"),
    ("import os, sys; sys.stderr.write('bad\\nluck\\n\\n'); sys.stderr.flush(); os._exit(3)", "luck"),
    ("import os; os._exit(3)", "the process ended with code 3"),
])
def test_a_worker_that_dies_says_why(fake_torch, code, reason):
    fake_torch(code)
    with Worker("eager", TRAINING, 1) as worker:
        for _ in range(2):
            with pytest.raises(ChildError, match=f"^{reason}$"):
                worker.ask(1)


def test_messages_are_one_line_without_folders():
    assert one_line("no\n file '/home/someone/lib/x.py', and/or 3 / 4") == "no file 'x.py', and/or 3 / 4"
    assert one_line(r"C:\Users\someone\x.py") == "x.py"
    assert len(one_line("x" * 500)) == 120


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_memory_stays_after_the_memory_is_given_back():
    program = ("from npgpt.bench.machine import peak_memory; before = peak_memory(); block = b'x' * 10**8; del block; "
               "print(peak_memory() - before)")
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 0.9e8 < int(printed) < 1.1e8
    assert peak_memory(os.getppid()) > 0 and peak_memory(2**22 + 1) is None


def test_figures_are_json():
    result = figures(TRAINING, {"npgpt": answers([[1.0]]), "gemm": answers([[1.0]], [1e9])}, {})
    assert json.loads(json.dumps(result)) == result
