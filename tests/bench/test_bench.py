"""tools/bench: all sides do the same work, ratios are right, and failures are reported."""

import json
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from npgpt import GPT, AdamW, GPTConfig

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import measure  # noqa: E402
from instructions import installed  # noqa: E402
from report import markdown  # noqa: E402
from shapes import PRESETS, ROWS, Recipe  # noqa: E402

pytestmark = pytest.mark.slow

MACHINE = {"CPU": "Some CPU", "GPU": None}
linux = pytest.mark.skipif(sys.platform != "linux", reason="the program reads /proc")
torch = pytest.mark.skipif(not find_spec("torch"), reason="the peer")
xla = pytest.mark.skipif(not find_spec("jax"), reason="needs JAX")


def answers(*seconds, result=4.0, memory=10**6):
    """Answers of a side whose rounds took so many seconds a step, after two slow turns that do not count."""
    return [{"seconds": s, "result": result, "memory": memory} for s in (99.0, 98.0, *seconds)]


def setup(tmp_path, **more):
    return {"threads": 1, "old": None, "out_dir": tmp_path, "instructions": None, **more}


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """The module worker, which reads a text of 2000 characters."""
    monkeypatch.setattr(sys, "argv", ["worker.py", "prepare"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    import worker

    for name in ("text.txt", "corpus.txt"):
        (tmp_path / name).write_text("".join(chr(97 + i * i % 26) for i in range(2000)))
    monkeypatch.setattr(worker, "TINYSHAKESPEARE", tmp_path / "text.txt")
    return worker


def short_runs(tmp_path, *sides):
    """A recipe of two steps of nanoGPT's for these sides."""
    preset = tmp_path / "short.toml"
    preset.write_text((PRESETS / "char-nanogpt.toml").read_text()
                      .replace("max_iters = 2000", "max_iters = 2").replace("eval_iters = 20", "eval_iters = 1"))
    return Recipe(dict.fromkeys(sides, str(preset)))


def test_the_figures_and_ratios_of_training():
    shape = ROWS["tiny"]
    row = measure.figures(shape, {
        "npgpt": answers(2.0, 4.0, 3.0), "fast": answers(1.0, 2.0, 1.0), "floor": answers(0.5, 0.25),
        "torch": answers(3.0, 4.0, 30.0, result=4.002)}, {"compile": "Traceback\nno compiler"})
    ours, torch = row["sides"]["npgpt"], row["sides"]["torch"]
    assert ours["seconds"] == {"median": 3.0, "low": pytest.approx(2.2), "high": pytest.approx(3.8)}
    assert torch["ratio"]["median"] == 1.5                  # of 1.5, 1 and 10; not 4 / 3
    assert [row["sides"][side]["speedup"]["median"] for side in ("npgpt", "fast", "torch")] == [1.5, 3.0, 1.0]
    assert ours["tokens_per_second"] == 8 * 3 / 3.0
    assert row["floor_seconds"] == shape.flops / (2 * 2048**3 / 0.25)
    assert ours["same"] and not torch["same"]               # a loss that differs by 0.002
    text = markdown({"machine": MACHINE, "rows": {"A": row}})
    assert "| npgpt | 3.00 s (2.20 to 3.80) |  | 1.50 (1.10 to 8.30) | 8.00 | " in text
    assert "| 0.50 (0.37 to 0.50) | 3.00 (2.20 to 24.60) | 24.0 | " in text and "| 1.50 (1.10 to 8.30) |  | " in text
    assert "PyTorch, **other result**" in text and "| torch.compile | **failed**, see below |" in text
    assert "```\nTraceback\nno compiler\n```" in text


def test_the_figures_of_generation_are_for_one_token():
    row = measure.figures(ROWS["tiny-gen"], {"npgpt": answers(0.8, result=[[1]]), "floor": answers(0.05),
                                             "transformers": answers(2.4, result=[[2]])}, {})
    ours, theirs = row["sides"]["npgpt"], row["sides"]["transformers"]
    assert ours["seconds"]["median"] == pytest.approx(0.1) and ours["tokens_per_second"] == pytest.approx(2 / 0.1)
    assert ours["speedup"]["median"] == pytest.approx(3.0)
    assert row["floor_seconds"] == 0.05 and theirs["ratio"]["median"] == pytest.approx(3.0) and not theirs["same"]


def test_the_losses_of_whole_runs_are_shown_by_step_and_seed():
    def runs(*curves):
        return [{"seconds": 40.0, "result": curve, "memory": 10**6} for curve in curves]

    row = measure.figures(ROWS["E"], {
        "npgpt": runs([[0, 4.2], [600, 1.9]], [[0, 4.3], [600, 2.0]]), "torch": runs([[0, 4.1], [500, 2.1]])}, {})
    text = markdown({"machine": {**MACHINE, "in use": {"NumPy": "X86_V3"}}, "rows": {"E": row}})
    assert "npgpt, char-cpu, validation loss 1.9500 |" in text and "PyTorch, char-nanogpt, validation loss 2.1" in text
    assert "| E: validation loss at step | preset | seed | 0 | 500 | 600 |" in text
    assert "| npgpt | char-cpu | 1 | 4.3000 |  | 2.0000 |" in text
    assert "| PyTorch | char-nanogpt | 0 | 4.1000 | 2.1000 |  |" in text
    assert "Instructions, as the libraries say: NumPy: X86_V3." in text
    for last, reached in ((1.47, True), (1.48, False)):
        row = measure.figures(ROWS["train"], {"xla": runs([[0, 4.2], [2000, last]])}, {})
        text = markdown({"machine": MACHINE, "rows": {"train": row}})
        assert row["sides"]["xla"]["same"] == reached == ("**not reached**" not in text)


@torch
def test_a_whole_run_takes_its_round_as_seed_and_returns_the_losses_by_step(tmp_path, worker):
    """npgpt and PyTorch, each as a program."""
    recipe = short_runs(tmp_path, "npgpt", "torch")
    worker.prepare(recipe, tmp_path, 1)
    for side in recipe.sides:
        work = worker.whole_run(side, recipe, tmp_path, 1)
        curves = [work.step(seed) for seed in (0, 1)]
        assert [[step for step, _ in curve] for curve in curves] == [[0, 2], [0, 2]]
        assert curves[0] != curves[1] and all(2.5 < loss < 4.0 for curve in curves for _, loss in curve)


def test_a_side_has_the_kernels_of_its_name_and_an_older_npgpt_is_asked_for_none(tmp_path, monkeypatch, worker):
    shape = ROWS["tiny"]
    worker.prepare(shape, tmp_path, 1)
    for side, kernels, package in (("npgpt", "numpy", "numpy"), ("old", "numpy", "numpy"), ("fast", "numba", "numba"),
                                   ("mkl", "mkl", "mkl")):
        assert not installed(package) or worker.pretrained(shape, tmp_path, 1, side).engine.kernels == kernels
    for api in (None, SimpleNamespace(KERNELS=("auto", "xla"))):
        monkeypatch.setitem(sys.modules, "npgpt.api", api)
        assert worker.kernels_of("old") == {}


def test_a_gpus_ratios_are_to_the_side_xla_and_its_failure_leaves_none():
    found = {"xla": answers(2.0), "floor": answers(0.5), "reference": answers(8.0)}
    sides = measure.figures(ROWS["tiny-gpu"], found, {})["sides"]
    assert [side["ratio"]["median"] for side in sides.values()] == [1.0, 4.0]
    sides = measure.figures(ROWS["tiny-gpu"], {"reference": found["reference"]}, {"xla": "Traceback"})["sides"]
    assert sides["reference"]["ratio"] is None and sides["xla"] == {"failed": "Traceback"}


def test_npgpt_is_measured_before_torch_compile_on_a_gpu():
    """And its reference lines in those dtypes that CuPy has."""
    assert measure.jobs(["124M", "A", "124M-tf32"], ["compile", "reference", "npgpt", "torch", "xla"]) == [
        ("A", ["npgpt", "xla", "torch", "compile"]), ("124M", ["xla"]), ("124M-tf32", ["xla"]),
        ("124M-tf32", ["reference"]), ("124M", ["torch"]), ("124M-tf32", ["torch"]), ("124M", ["compile"]),
        ("124M-tf32", ["compile"])]


@linux
def test_all_sides_do_the_same_work_whichever_kernels_are_asked_of_openblas(tmp_path, monkeypatch):
    """The same weights and batches: equal losses of npgpt and the other sides, each in its process."""
    packages = {"npgpt": "numpy", "fast": "numba", "mkl": "mkl", "xla": "jax", "torch": "torch"}
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setattr(measure, "CHUNK_SECONDS", 1e-3)
    sides = [side for side, package in packages.items() if installed(package)]
    found, failed = measure.measure("tiny", sides, 3, setup(tmp_path))
    assert failed == {} and [len(of_side) for of_side in found.values()] == [5] * len(sides)
    losses = [[answer["result"] for answer in of_side[:2]] for of_side in found.values()]
    assert losses == [pytest.approx(losses[0], rel=1e-5)] * len(sides) and losses[0][0] != losses[0][1]
    assert min(answer["memory"] for answer in found["npgpt"]) > 10**7
    assert "Prescott" not in measure.Side("machine", "tiny", tmp_path, setup(tmp_path)).ask_once()["BLAS"]


@linux
@xla
def test_xla_has_no_more_cores_than_the_other_sides(tmp_path):
    measure.Side("prepare", "tiny-gen", tmp_path, setup(tmp_path)).ask_once()
    with measure.Side("xla", "tiny-gen", tmp_path, setup(tmp_path)) as side:
        tokens = side.ask(1)["result"]
        assert len(os.sched_getaffinity(side.process.pid)) == 1
    assert tokens == measure.Side("npgpt", "tiny-gen", tmp_path, setup(tmp_path)).ask_once()


def test_the_sides_that_are_measured_by_default(monkeypatch):
    def sides(*arguments, intel=False):
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        program = runpy.run_path(str(ROOT / "tools" / "bench" / "__main__.py"))
        program["parse"].__globals__.update(installed=lambda name: True, INTEL=intel)
        return program["parse"]().sides

    others = ["reference", "equal", "floor", "torch", "compile", "transformers"]
    assert sides("A") == ["npgpt", "fast", "first", "xla", *others]
    assert sides("A", "--instructions", "avx2") == ["npgpt", "fast", "first", *others]
    assert sides("A", intel=True) == ["npgpt", "fast", "first", "mkl", "xla", *others]
    assert sides("A", "--sides", "npgpt,mkl") == ["npgpt", "mkl"]


def test_pytorchs_training_steps_are_npgpts(tmp_path, monkeypatch):
    """At a learning rate so high that betas, decay and clipping show in the losses."""
    pytest.importorskip("torch", reason="the peer")
    import peers

    shape = ROWS["tiny"]
    model = GPT(GPTConfig(shape.vocab_size, shape.block_size, shape.n_layer, shape.n_head, shape.n_embd), seed=0)
    model.save_pretrained(tmp_path)
    optimizer, losses = AdamW(model.params, lr=0.1), []
    for idx, targets in shape.batches()[:5]:
        loss, grads = model.loss_and_grads(idx, targets)
        optimizer.step(grads, max_norm=1.0)
        losses.append(loss)
    monkeypatch.setattr(peers, "LR", 0.1)
    work = peers.training(shape, tmp_path, compiled=False)
    assert [work.step(i).item() for i in range(5)] == pytest.approx(losses, rel=1e-5)
    assert max(losses) - min(losses) > 0.3


def test_the_operations_are_those_that_torch_counts():
    """But for the half of attention that the mask hides, which torch counts."""
    torch = pytest.importorskip("torch", reason="the peer")
    import peers
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    shape = ROWS["tiny"]
    model, (idx, targets) = peers.GPT(shape, shape.vocab_size), map(torch.from_numpy, shape.batches()[0])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:     # fused ones are not counted
        model(idx, targets).backward()
    assert counter.get_total_flops() == shape.flops + 3 * shape.n_layer * 2 * shape.T * shape.n_embd * shape.tokens


@linux
def test_a_side_that_fails_is_shown_with_its_traceback_and_the_others_go_on(tmp_path):
    """The whole program. The npgpt of an older checkout is the one that is used as the side old."""
    for folder in ("fake", "older/npgpt"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "fake" / "torch.py").write_text("print('noise')\nraise RuntimeError('no\\nluck')\n")
    (tmp_path / "older" / "npgpt" / "__init__.py").write_text("raise ImportError('the older npgpt')\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "bench", "tiny", "--rounds", "1", "--sides", "npgpt,old,torch", "--old",
         tmp_path / "older", "--out-dir", tmp_path / "out", "--threads", "1"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "fake")}, timeout=60)
    assert done.returncode == 1, done.stderr
    sides = json.loads((tmp_path / "out" / "bench.json").read_text())["rows"]["tiny"]["sides"]
    assert len(sides["npgpt"]["rounds"]) == 1
    for side, error in (("torch", "RuntimeError: no\nluck\n"), ("old", "ImportError: the older npgpt\n")):
        traceback = sides[side]["failed"]
        assert "Traceback (most recent call last)" in traceback and error in traceback
        assert traceback in done.stdout and traceback.splitlines()[0] in (
            tmp_path / "out" / "stderr" / f"tiny-{side}.txt").read_text()


@linux
def test_a_side_that_does_not_answer_is_ended(tmp_path):
    with measure.Side("npgpt", "tiny", tmp_path, setup(tmp_path)) as side, pytest.raises(
            measure.Failed, match=r"no answer within 0\.05 s"):
        side.ask(1, limit=0.05)
    assert side.process.returncode == -9
