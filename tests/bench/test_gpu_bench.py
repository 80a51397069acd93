"""The benchmark for a card, as far as it can be tested without one: its sizes, processes, table and exit statuses."""

import dataclasses
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from npgpt.api import GPT
from npgpt.bench.measure import ChildError
from npgpt.errors import UserError
from npgpt.model.parameters import parameter_shapes
from npgpt.training.adamw import AdamW

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import gpu_bench
from gpu_bench import SHAPES, CardShape

ROOT = Path(__file__).resolve().parents[2]
TINY = CardShape(n_layer=2, n_head=2, n_embd=16, T=8, B=3, vocab_size=31, block_size=16, padded_vocab_size=31)
MACHINE = {"card": "NVIDIA H200", "driver": "580.1", "memory": "143771 MiB", "cuda": {"npgpt": "12.9"},
           "cupy": "14.2.0", "python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "numpy": "2.5.2",
           "date": "2026-11-21"}

linux = pytest.mark.skipif(sys.platform != "linux", reason="select on pipes, sessions and signals")


def run(*command, path=None, **environment):
    """A command's exit status, standard output and standard error, with the PATH alone that is given."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment, "PATH": str(path or os.environ["PATH"])})
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def no_card(tmp_path):
    """A PATH with the tools that a script needs, without nvidia-smi. More programs may be put into it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "mkdir", "dirname", "rm", "uname", "grep", "tail", "head", "cut", "cat", "timeout", "sleep"):
        found = next((Path(place) / tool for place in os.environ["PATH"].split(os.pathsep)
                      if (Path(place) / tool).exists()), None)
        if found:
            (folder / tool).symlink_to(found)
    return folder


def program(path, text, interpreter="/bin/sh"):
    path.write_text(f"#!{interpreter}\n{text}")
    path.chmod(0o755)


def figures(seconds, loss=9.0, **more):
    return {"seconds": seconds, "loss": loss, "card_memory": 2 * 10**9, "pool_memory": 10**9, "differs": False, **more}


# The sizes

def test_the_operations_of_gpt2_by_hand():
    """12 C² weights in each of 12 blocks and V C in the head, 6 for each and token; 6 L C T for causal attention."""
    blocks, head = 12 * 12 * 768 * 768, 50257 * 768
    assert (blocks, head) == (84_934_656, 38_597_376)
    attention = 6 * 12 * 768 * 1024
    assert SHAPES["124M"].flops == (6 * (blocks + head) + attention) * 16 * 1024 == 797_815_296 * 16_384
    assert SHAPES["baby"].flops == (6 * (6 * 12 * 384 * 384 + 65 * 384) + 6 * 6 * 384 * 256) * 64 * 256


def test_the_weights_that_operations_are_counted_for_are_the_models():
    shapes = parameter_shapes(SHAPES["124M"].config)
    matrices = [int(np.prod(size)) for name, size in shapes.items() if len(size) == 2 and name != "wpe.weight"]
    assert 6 * sum(matrices) == SHAPES["124M"].flops / (16 * 1024) - 6 * 12 * 768 * 1024


def test_the_batches_are_a_language_and_the_same_every_time():
    shape = dataclasses.replace(SHAPES["baby"], B=8)
    batches = shape.batches()
    assert len(batches) == gpu_bench.N_BATCHES
    for (idx, targets), (again, _) in zip(batches, shape.batches(), strict=True):
        assert idx.shape == targets.shape == (8, 256) and idx.dtype == np.int64
        np.testing.assert_array_equal(idx[:, 1:], targets[:, :-1])
        np.testing.assert_array_equal(idx, again)
        assert 0 <= idx.min() and idx.max() < 65
        assert 0.5 < np.mean(targets == (idx + 1) % 65) < 0.6       # half of them, and a few by chance
    assert not np.array_equal(batches[0][0], batches[1][0])


def test_every_side_is_measured_once_and_those_that_take_turns_have_one_dtype():
    groups = gpu_bench.groups()
    sides = [side for group in groups for side in group]
    assert len(sides) == len(set(sides)) == 2 * 10
    for group in groups:
        assert len(group) == 1 or {(name, dtype) for name, _, dtype in group} == {("baby", group[0][2])}
    assert [kind for _, kind, _ in sides[-2:]] == ["compile", "compile"]
    assert {dtype for group in groups[:4] for _, _, dtype in group} == {"bfloat16"}


def test_only_takes_the_sides_that_are_called_so():
    assert gpu_bench.selected(["124M/fused", "eager/tf32"]) == [
        [("124M", "fused", "bfloat16")], [("baby", "eager", "tf32")], [("124M", "fused", "tf32")],
        [("124M", "eager", "tf32")], [("124M", "fused", "float32")]]
    assert gpu_bench.selected([]) == gpu_bench.groups()
    with pytest.raises(UserError, match="--only fussed.*124M/fused/bfloat16"):
        gpu_bench.selected(["124M", "fussed"])


# The processes

WORKER = """
import json, sys, time
name = sys.argv[2]
if name == "dies/eager/tf32":
    sys.exit("bad luck")
if name == "cannot/eager/tf32":
    print(json.dumps({"error": "ImportError: no\\ntorch"}))
    sys.exit()
print(json.dumps({"cuda": None if name.startswith("none") else "13.0"}), flush=True)
for i, line in enumerate(sys.stdin):
    n = json.loads(line)["steps"]
    if name.startswith("late") and i == 3:
        print(json.dumps({"error": "OutOfMemoryError: x"}), flush=True)
        sys.exit()
    if name.startswith("hangs"):
        time.sleep(60)
    print(json.dumps({"seconds": n * (0.125 if i != 3 else 0.5), "loss": 5.0 - i, "pool_memory": 10 + i,
                      "card_memory": 20 + i}), flush=True)
"""


@pytest.fixture
def fake_sides(tmp_path, monkeypatch):
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(gpu_bench.Side, "script", tmp_path / "worker.py")


def measure(*names, seconds=30.0):
    sides = {name: gpu_bench.Side(name) for name in names}
    try:
        return gpu_bench.measure(sides, {}, 3, 10, time.monotonic() + seconds), sides
    finally:
        for side in sides.values():
            side.close()


@linux
def test_sides_take_turns_and_those_that_fail_say_why(fake_sides):
    names = [f"{name}/eager/tf32" for name in ("good", "dies", "cannot", "late", "none")]
    measured, sides = measure(*names)
    good = measured["good/eager/tf32"]
    assert good["block_steps"] == 5                         # of 0.125 s each: no more than 0.7 s
    assert good["blocks"] == [0.125, 0.5, 0.125] and good["seconds"] == 0.125       # the median
    assert (good["loss"], good["pool_memory"], good["card_memory"]) == (5.0, 10, 20)        # of the first steps
    assert measured["dies/eager/tf32"] == {"failed": "bad luck"}
    assert measured["cannot/eager/tf32"] == {"failed": "ImportError: no torch"}
    assert measured["late/eager/tf32"] == {"failed": "OutOfMemoryError: x"}
    assert measured["none/eager/tf32"]["seconds"] == 0.125
    assert (sides[names[0]].cuda, sides[names[-1]].cuda) == ("13.0", None)


@linux
def test_a_side_that_hangs_is_ended(fake_sides, monkeypatch):
    monkeypatch.setattr(gpu_bench, "SIDE_SECONDS", 1)
    side = gpu_bench.Side("hangs/eager/tf32")
    process = side.process
    with side, pytest.raises(ChildError, match="no answer within 1 s"):
        side.wait(time.monotonic() + 30)
        side.ask(1, time.monotonic() + 30)
    assert process.returncode == -9
    assert measure("good/eager/tf32", seconds=-1)[0] == {"good/eager/tf32": {"failed": "no time was left"}}


@linux
def test_what_a_side_has_started_ends_with_it(tmp_path, monkeypatch):
    (tmp_path / "side.py").write_text("""import json, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(json.dumps({"cuda": child.pid}), flush=True)
sys.stdin.read()
""")
    monkeypatch.setattr(gpu_bench.Side, "script", tmp_path / "side.py")
    with gpu_bench.Side("x") as side:
        side.wait(time.monotonic() + 30)
        state = Path(f"/proc/{side.cuda}/stat")
        assert state.exists()
        began = time.monotonic()
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":    # ended, if not yet buried
        time.sleep(0.01)
    assert time.monotonic() - began < 30


@linux
def test_measuring_all_fills_the_results_group_by_group(fake_sides, monkeypatch, capsys):
    saved = []
    results = gpu_bench.new_results({**MACHINE, "cuda": {}}, quick=True)
    chosen = [[("124M", "fused", "bfloat16")], [("baby", "eager", "tf32"), ("baby", "fused", "tf32")]]
    gpu_bench.measure_all(results, chosen, time.monotonic() + 30,
                          lambda: saved.append(json.loads(json.dumps(results))))
    assert [[len(shape["sides"]) for shape in state["shapes"].values()] for state in saved] == [[0, 0], [0, 1], [2, 1]]
    assert results["peak"] == {"datasheet": 989e12, "measured": 2 * 8192**3 / 0.3125}    # of 0.125 and 0.5 s
    assert results["machine"]["cuda"] == {"npgpt": "13.0", "torch": "13.0"}
    assert results["shapes"]["124M"]["sides"]["fused/bfloat16"]["block_steps"] == 3
    assert "baby/eager/tf32: 312.50 ms" in capsys.readouterr().err
    assert gpu_bench.sound(results) and json.loads(json.dumps(results)) == saved[-1]


def test_a_block_is_timed_from_an_idle_card_to_an_idle_card(monkeypatch):
    done, clock = [], iter([10.0, 12.5])
    monkeypatch.setattr(gpu_bench.time, "perf_counter", lambda: (done.append("clock"), next(clock))[1])
    steps = (lambda i: done.append(i), lambda: done.append("wait"), lambda: (done.append("loss"), 3.0)[1], lambda: 7)
    assert gpu_bench.timed_block(steps, range(4, 6)) == {"seconds": 2.5, "loss": 3.0, "pool_memory": 7}
    assert done == ["wait", "clock", 4, 5, "wait", "clock", "loss"]


@linux
def test_a_side_uses_the_card_from_the_first_request_on_and_goes_on_counting_its_steps(tmp_path, monkeypatch):
    (tmp_path / "side.py").write_text(f"""import os, sys
sys.path.insert(0, {str(ROOT / "tools")!r})
import gpu_bench
free = [1000]
def make_steps():
    free[0] -= 600
    done = []
    def step(i):
        os.write(1, b"noise")
        print("noise")
        free[0] -= 1
        done.append(i)
        if i == 5:
            raise MemoryError("no more")
    return step, lambda: None, lambda: float(sum(done)), lambda: 7
gpu_bench.load_side = lambda name: (make_steps, lambda: free[0], name)
gpu_bench.main(sys.argv[1:])
""")
    monkeypatch.setattr(gpu_bench.Side, "script", tmp_path / "side.py")
    deadline = time.monotonic() + 30
    with gpu_bench.Side("the name") as side:
        answers = [side.ask(n, deadline) for n in (2, 3)]
        assert [(a["loss"], a["card_memory"], a["pool_memory"]) for a in answers] == [(1.0, 602, 7), (10.0, 605, 7)]
        assert side.cuda == "the name" and min(a["seconds"] for a in answers) > 0
        with pytest.raises(ChildError, match="^MemoryError: no more$"):
            side.ask(1, deadline)


@linux
def test_the_process_of_a_side_without_a_card_says_so_in_its_answer():
    """The whole way: the real worker, which has no CUDA to work with."""
    torch = pytest.importorskip("torch", reason="the peer")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    with gpu_bench.Side("baby/eager/float32") as side, pytest.raises(ChildError, match="CUDA|NVIDIA"):
        side.wait(time.monotonic() + 60)
        assert side.failure is None
        side.ask(1, time.monotonic() + 60)


# What torch does

@pytest.fixture
def torch_gpu():
    """The peer's module; afterwards torch computes as precisely as it did."""
    pytest.importorskip("torch", reason="the peer")
    import torch

    from npgpt.bench import torch_gpu

    before = torch.get_float32_matmul_precision()
    yield torch_gpu
    torch.set_float32_matmul_precision(before)


def torch_losses(torch_gpu, shape, lr, n, dtype="float32"):
    """The losses of n steps of torch on the processor."""
    step, _, last_loss, _ = torch_gpu.training(shape, dtype, lr, compiled=False, device="cpu")
    losses = []
    for i in range(n):
        step(i)
        losses.append(last_loss())
    return losses


def test_torchs_steps_on_a_card_are_those_of_npgpt(torch_gpu):
    """At a rate so high that betas, decay and clipping show in the losses."""
    model = GPT(TINY.config, 0, threads=1)
    optimizer, losses = AdamW(model.params, 0.1, threads=1), []
    for idx, targets in TINY.batches()[:5]:
        loss, grads = model.loss_and_grads(idx, targets)
        optimizer.step(grads, max_norm=1.0)
        losses.append(loss)
    theirs = torch_losses(torch_gpu, TINY, 0.1, 5)
    assert theirs == pytest.approx(losses, rel=1e-4) and max(losses) - min(losses) > 0.3
    rounded = torch_losses(torch_gpu, TINY, 0.1, 5, "bfloat16")
    assert rounded != theirs and rounded[0] == pytest.approx(theirs[0], abs=0.02)


def test_torchs_padded_vocabulary_hardly_shows_in_the_loss(torch_gpu):
    padded = dataclasses.replace(TINY, vocab_size=3100, padded_vocab_size=3136)
    plain = dataclasses.replace(padded, padded_vocab_size=3100)
    losses = [torch_losses(torch_gpu, shape, 1e-4, 2) for shape in (padded, plain)]
    difference = np.subtract(*losses)
    assert difference == pytest.approx(np.log(3136 / 3100), abs=1e-3)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "highest"), ("tf32", "high")])
def test_torchs_products_are_of_the_precision_that_was_asked_for(torch_gpu, dtype, precision):
    torch_losses(torch_gpu, TINY, 1e-4, 1, dtype)
    import torch

    assert torch.get_float32_matmul_precision() == precision


def test_torch_drops_in_all_four_places(torch_gpu):
    import torch

    idx, targets = map(torch.from_numpy, TINY.batches()[0])
    for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
        model = torch_gpu.GPT(dataclasses.replace(TINY.config, **{name: 0.5}))
        assert model(idx, targets).item() != model(idx, targets).item()
        for block in model.h:
            if name == "resid_pdrop":       # two places: one of them at a time
                block.attn.resid_pdrop = 0.0
        assert model(idx, targets).item() != model(idx, targets).item()
        for block in model.h:
            block.mlp.resid_pdrop = 0.0
        same = model(idx, targets).item() == model(idx, targets).item()
        assert same == (name == "resid_pdrop")
    attention = torch_gpu.Attention(dataclasses.replace(TINY.config, resid_pdrop=0.5))
    x = torch.randn(1, 4, 16)
    assert not torch.equal(attention(x), attention(x))
    model = torch_gpu.GPT(TINY.config)
    assert model(idx, targets).item() == model(idx, targets).item()


def test_npgpts_step_on_a_fake_card(monkeypatch):
    """The step is the model's loss and gradients, then AdamW with clipping; CuPy is asked for the rest."""
    calls = []

    class FakeGPT:
        params = "params"

        def __init__(self, config, seed, dtype, device, kernels):
            calls.append((config, seed, dtype, device, kernels))

        def dropout_rng(self, *numbers):
            return numbers

        def loss_and_grads(self, idx, targets, rng):
            calls.append((idx[0, 0], rng))
            return np.float32(2.5), "grads"

    class FakeAdamW:
        def __init__(self, params, lr):
            assert (params, lr) == ("params", gpu_bench.LR)

        def step(self, grads, max_norm):
            calls.append((grads, max_norm))

    pool = types.SimpleNamespace(total_bytes=lambda: 99)
    device = types.SimpleNamespace(synchronize=lambda: calls.append("wait"))
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(Device=lambda: device),
                                 get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "npgpt.api", types.SimpleNamespace(GPT=FakeGPT))
    monkeypatch.setitem(sys.modules, "npgpt.training.adamw", types.SimpleNamespace(AdamW=FakeAdamW))
    steps = gpu_bench.npgpt_steps(TINY, "tf32", "fused")
    answer = gpu_bench.timed_block(steps, range(8, 10))      # the ninth batch is the first again
    batches = TINY.batches()
    assert calls == [(TINY.config, 0, "tf32", "gpu", "fused"), "wait", (batches[0][0][0, 0], (0, 8, 0)), ("grads", 1.0),
                     (batches[1][0][0, 0], (0, 9, 0)), ("grads", 1.0), "wait"]
    assert answer["loss"] == 2.5 and answer["pool_memory"] == 99


def test_each_name_makes_its_side(torch_gpu, monkeypatch):
    asked = []
    runtime = types.SimpleNamespace(runtimeGetVersion=lambda: 12090, memGetInfo=lambda: (5, 9))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(gpu_bench, "npgpt_steps", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(torch_gpu, "training", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(torch_gpu, "products", lambda *arguments: asked.append(arguments))
    for name in ("baby/plain/float32", "124M/fused/tf32"):
        make_steps, free_memory, cuda = gpu_bench.load_side(name)
        make_steps()
        assert (free_memory(), cuda) == (5, "12.9")
    for name in ("baby/eager/tf32", "124M/compile/bfloat16", "peak"):
        make_steps, free_memory, cuda = gpu_bench.load_side(name)
        make_steps()
        assert free_memory is torch_gpu.free_memory and cuda == torch_gpu.cuda_version()
    assert asked == [(SHAPES["baby"], "float32", "reference"), (SHAPES["124M"], "tf32", "fused"),
                     (SHAPES["baby"], "tf32", gpu_bench.LR, False), (SHAPES["124M"], "bfloat16", gpu_bench.LR, True),
                     (8192,)]


# The losses and the table

@pytest.fixture
def results():
    """A measurement of which much is missing."""
    results = gpu_bench.new_results(json.loads(json.dumps(MACHINE)), quick=False)
    results["peak"]["measured"] = 800e12
    results["shapes"]["124M"]["sides"] = {
        "fused/bfloat16": figures(0.04, 9.015), "eager/bfloat16": figures(0.06, 9.019),
        "compile/bfloat16": {"failed": "no | compiler"}, "eager/float32": figures(0.5, 9.0),
        "plain/float32": figures(0.8, 9.03), "fused/float32": figures(0.4, float("nan"))}
    results["shapes"]["baby"]["sides"] = {"fused/tf32": figures(0.01, 3.51), "eager/tf32": figures(0.02, 3.45)}
    gpu_bench.compare_losses(results["shapes"])
    return results


def cells(results):
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in gpu_bench.markdown(results).splitlines()
             if line.startswith("|")]
    assert {len(row) for row in table} == {len(gpu_bench.HEADER)}
    return table[2:]


def test_losses_that_differ_are_marked(results):
    sides = results["shapes"]["124M"]["sides"]
    assert {side for side, of_side in sides.items() if of_side.get("differs")} == {"plain/float32", "fused/float32"}
    assert not any(of_side["differs"] for of_side in results["shapes"]["baby"]["sides"].values())   # loosely equal
    del sides["eager/float32"]
    gpu_bench.compare_losses(results["shapes"])             # with the first one, then
    assert {side for side, of_side in sides.items() if of_side.get("differs")} == {"fused/float32"}
    assert not gpu_bench.sound(results)
    assert "that side is wrong" in gpu_bench.markdown(results)
    del sides["plain/float32"], sides["fused/float32"]
    assert gpu_bench.sound(results)                         # that torch.compile failed is no fault of npgpt's
    assert "that side is wrong" not in gpu_bench.markdown(results)
    sides["fused/tf32"] = {"failed": "no time was left"}
    assert not gpu_bench.sound(results)


def test_the_table(results):
    table = cells(results)
    assert [row[2] for row in table] == 2 * (["float32"] * 4 + ["tf32"] * 3 + ["bfloat16"] * 3)
    assert [row[0] for row in table if row[0]] == [f"{name}: {shape.description}" for name, shape in SHAPES.items()]
    by_side = {(row[1], row[2]): row[3:] for row in table[10:]}
    flops = 797_815_296 * 16_384
    assert by_side["npgpt, fused", "bfloat16"] == [
        "40.0 ms", "", "409,600", "2,000 MB", f"{flops / 0.04 / 1e12:.0f}", f"{flops / 0.04 / 800e12:.1%}",
        f"{flops / 0.04 / 989e12:.1%}", "9.0150"]
    assert by_side["PyTorch", "bfloat16"][:2] == ["60.0 ms", "1.50"]
    assert by_side["torch.compile", "bfloat16"] == ["failed: no / compiler", *[""] * 7]
    assert by_side["PyTorch", "tf32"] == ["not yet measured", *[""] * 7]
    assert by_side["npgpt, the layers' lines", "float32"][1] == "2.00"
    assert by_side["npgpt, the layers' lines", "float32"][-1] == "9.0300, **differs**"
    assert by_side["npgpt, fused", "float32"][-1] == "nan, **differs**"
    text = gpu_bench.markdown(results)
    assert text.startswith("NVIDIA H200, 143771 MiB, driver 580.1, Python 3.12.3, NumPy 2.5.2, "
                           "CuPy 14.2.0 (CUDA 12.9), PyTorch 2.11.0; 2026-11-21.\n")
    assert "8192 x 8192 matrices, 800 TFLOP/s; the datasheet's, 989 TFLOP/s." in text
    assert text.endswith("to a validation loss of 1.47: not yet measured.\n")


def test_the_table_of_nothing(results):
    empty = gpu_bench.new_results({**MACHINE, "card": "Some Card", "cupy": None, "torch": None}, quick=True)
    assert {row[3] for row in cells(empty)} == {"not yet measured"} and len(cells(empty)) == 20
    text = gpu_bench.markdown(empty)
    assert "matrices, not yet measured; the datasheet's, not known here" in text and "a quick run" in text
    assert "no CuPy, no PyTorch" in text
    empty["peak"]["failed"] = "no torch"
    assert "matrices, failed: no torch" in gpu_bench.markdown(empty)
    results["train"] = {"seconds": 61.4, "step": 2500, "val_loss": 1.4688}
    assert "1.47: 61 s from start, with all evaluations and checkpoints (step 2500, 1.4688)." in gpu_bench.markdown(
        results)
    results["train"] = {"failed": "out of time"}
    assert gpu_bench.markdown(results).endswith("1.47: failed: out of time.\n")
    results["peak"] = {"datasheet": None}
    assert {row[8] for row in cells(results)} == {row[9] for row in cells(results)} == {""}


# The whole run of training

@linux
@pytest.mark.parametrize(("code", "expected"), [
    ("write(250, 1.5); write(500, 1.4699); write(750, 1.46); time.sleep(60)", {"step": 500, "val_loss": 1.4699}),
    ("write(250, 1.6); write(500, 1.55)", {"failed": "the best validation loss was 1.5500 after"}),
    ("write(250, 1.6); time.sleep(60)", {"failed": "the best validation loss was 1.6000 after"}),
    ("sys.exit('no such device')", {"failed": "no such device"}),
    ("pass", {"failed": "nothing was evaluated after"}),
])
def test_training_is_watched_until_the_loss_is_reached(tmp_path, monkeypatch, code, expected):
    monkeypatch.setattr(gpu_bench, "TRAIN_SECONDS", 2)
    program = ("import json, sys, time\n"
               "def write(step, loss):\n"
               "    with open(sys.argv[1], 'a') as file:\n"
               "        file.write(json.dumps({'step': step, 'loss': 0.1}) + '\\n')\n"
               "        file.write(json.dumps({'step': step, 'train_loss': 0.1, 'val_loss': loss}) + '\\n')\n" + code)
    with gpu_bench.Process() as process:
        process.start("-c", program, tmp_path / "metrics.jsonl")
        found = gpu_bench.wait_for_loss(process, tmp_path, time.perf_counter())
    if "failed" in expected:
        assert found["failed"].startswith(expected["failed"])
    else:
        assert 0 < found.pop("seconds") < 2 and found == expected


def test_without_the_text_there_is_no_training(tmp_path, monkeypatch):
    monkeypatch.setenv("NPGPT_DATA_DIR", str(tmp_path))
    assert gpu_bench.train() == {"failed": "NPGPT_DATA_DIR/tinyshakespeare/input.txt is not at hand"}


# The commands

def test_the_table_goes_between_the_markers(results, tmp_path, monkeypatch, capsys):
    (tmp_path / "bench.json").write_text(json.dumps(results))
    (tmp_path / "README.md").write_text("above\n<!-- gpu-bench -->\nold\n<!-- /gpu-bench -->\nbelow\n")
    monkeypatch.setattr(gpu_bench, "README", tmp_path / "README.md")
    assert gpu_bench.main(["--table", str(tmp_path / "bench.json")]) == 0
    table = gpu_bench.markdown(results)
    expected = f"above\n<!-- gpu-bench -->\n{table}<!-- /gpu-bench -->\nbelow\n"
    assert (tmp_path / "README.md").read_text() == expected
    assert gpu_bench.main(["--show", str(tmp_path / "bench.json")]) == 0
    assert capsys.readouterr().out == table
    (tmp_path / "README.md").write_text("nothing\n")
    assert gpu_bench.main(["--table", str(tmp_path / "bench.json")]) == 2
    assert "<!-- gpu-bench -->" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == "nothing\n"


@pytest.mark.parametrize("text", [None, "no JSON", "[1]", '{"machine": 1}'])
def test_a_file_that_is_no_measurement_is_one_line(tmp_path, capsys, text):
    if text:
        (tmp_path / "bench.json").write_text(text)
    assert gpu_bench.main(["--show", str(tmp_path / "bench.json")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "--json wrote" in err


@linux
def test_without_a_card_it_is_one_line_and_exit_2(no_card):
    tool = ROOT / "tools" / "gpu_bench.py"
    assert run(sys.executable, tool, path=no_card) == (2, "", "no NVIDIA card here: there is no nvidia-smi\n")
    program(no_card / "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert run(sys.executable, tool, path=no_card) == (
        2, "", "no NVIDIA card here: nvidia-smi says 'No devices were found'\n")
    code, out, err = run(sys.executable, tool, "--only", "fussed", path=no_card)
    assert (code, out) == (2, "") and err.startswith("--only fussed: no side is called so") and err.count("\n") == 1


@linux
def test_the_card_is_described(no_card, monkeypatch):
    program(no_card / "nvidia-smi", "echo 'NVIDIA H200, 580.159.03, 143771 MiB'")
    monkeypatch.setenv("PATH", str(no_card))
    described = gpu_bench.describe_card()
    assert (described["card"], described["driver"], described["memory"]) == ("NVIDIA H200", "580.159.03", "143771 MiB")
    assert described["numpy"] == np.__version__ and described.keys() == MACHINE.keys()


# tools/gpu_check.sh, with a card and tests that only pretend

CHECK = ROOT / "tools" / "gpu_check.sh"
SUITE = '<testsuites><testsuite name="pytest" errors="0" failures="{failures}" skipped="{skipped}" tests="{tests}"/>'


def pretend(no_card, pytest_code=0, bench_code=0, tests=5, failures=0, skipped=0, bench="print('the table')"):
    """A card, and a Python whose pytest and benchmark do as they are told."""
    program(no_card / "nvidia-smi", "echo 'GPU 0: Some Card'")
    suite = SUITE.format(tests=tests, failures=failures, skipped=skipped) + "</testsuites>"
    program(no_card / "python3", f"""import os, sys
arguments = sys.argv[1:]
if arguments[:2] == ["-m", "pytest"]:
    path = next(a.split("=", 1)[1] for a in arguments if a.startswith("--junitxml="))
    open(path, "w").write({suite!r})
    print("log of the tests")
    sys.exit({pytest_code})
if arguments[0] == "tools/gpu_bench.py" and "--show" not in arguments:
    open(arguments[arguments.index("--json") + 1], "w").write("{{}}")
    {bench}
    print("log of the benchmark", arguments[-1], os.environ["PYTHONPATH"], file=sys.stderr)
    sys.exit({bench_code})
if arguments[0] == "tools/gpu_bench.py":
    print("the table so far")
    sys.exit()
os.execv({sys.executable!r}, [{sys.executable!r}, *arguments])
""", sys.executable)


@linux
def test_the_check_is_a_script_and_without_a_card_says_so(no_card, tmp_path):
    assert run("bash", "-n", CHECK) == (0, "", "")
    assert os.access(CHECK, os.X_OK)
    code, out, err = run(CHECK, tmp_path / "out", path=no_card)
    assert (code, out) == (2, "") and err == "gpu_check: no NVIDIA card here: command not found\n"


@linux
def test_a_check_that_is_all_well(no_card, tmp_path):
    pretend(no_card)
    code, out, err = run(CHECK, tmp_path / "out", "--quick", path=no_card, PYTHONPATH="")
    assert (code, err) == (0, "")
    assert out.endswith("gpu_check: all well\nthe table\n") and "tests: 5 tests, 0 failures, 0 errors, 0 skipped" in out
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert files.keys() == {"environment.txt", "tests.log", "tests.xml", "bench.json", "bench.log", "bench.md"}
    assert files["bench.log"] == f"log of the benchmark --quick {ROOT}\n" and files["bench.md"] == "the table\n"
    assert "Some Card" in files["environment.txt"] and files["tests.log"] == "log of the tests\n"


@linux
@pytest.mark.parametrize(("how", "says"), [
    ({"skipped": 1}, "1 skipped"),
    ({"pytest_code": 1, "failures": 2}, "2 failures"),
    ({"pytest_code": 5, "tests": 0}, "exit status 5 of pytest"),
    ({"tests": 0}, "0 tests"),
    ({"bench_code": 1}, "gpu_bench: exit status 1"),
])
def test_a_check_that_is_not_all_well_says_so_and_still_shows_the_table(no_card, tmp_path, how, says):
    pretend(no_card, **how)
    code, out, _ = run(CHECK, tmp_path / "out", path=no_card)
    assert code == 1 and says in out and "gpu_check: not all well" in out and out.endswith("the table\n")


@linux
def test_a_benchmark_that_is_cut_off_shows_what_it_has(no_card, tmp_path):
    pretend(no_card, bench="pass", bench_code=124)
    code, out, _ = run(CHECK, tmp_path / "out", path=no_card)
    assert code == 1 and out.endswith("the table so far\n")
