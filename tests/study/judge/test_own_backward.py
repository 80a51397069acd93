"""`npgpt train --backward`: the learner's functions train, each of them, and the curve is that of the package's."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.cli import train as cli_train
from npgpt.errors import BackwardError
from npgpt.study.exercises.exercise import level_text
from npgpt.study.exercises.path import path_of
from npgpt.study.judge import own_backward
from npgpt.study.judge.own_backward import Backwards, OwnBackwardEngine, linked
from npgpt.study.lessons.table import LAYERS, lesson_named
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import refused
from tests.study.judge.solutions import solved

LESSONS = {name: lesson_named(name) for name in LAYERS}
STEPS = ["--max-iters", 20, "--eval-interval", 20]
OURS = "npgpt: own: npgpt cannot use what your functions have returned or changed: "
UNCHECKED = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def unchecked(monkeypatch):
    """Every file is right: the check of one takes half a second."""
    monkeypatch.setattr(own_backward, "run_child", lambda exercise, seconds: SimpleNamespace(right=True))


def write(layers=LESSONS, number=-1, blank=False):
    """Exercises on some layers in the folder own, solved or blank; number: of the steps of its path, without bugs."""
    Path("own").mkdir(exist_ok=True)
    for layer in layers:
        step = [step for step in path_of(layer) if not step.is_bug][number]
        text = level_text(step.lesson, step.level, step.file) if blank else solved(step.lesson, step.level)
        Path("own", step.file).write_text(text)


def change(layer, old, new):
    """Change the text of a solved exercise. Returns the number of the first changed line."""
    file = Path(f"own/{layer}-level3.py")
    before, found, after = file.read_text().partition(old)
    assert found
    file.write_text(before + new + after)
    return before.count("\n") + 1


def insert(layer, line):
    """Insert a line into a solved exercise, after the cache is unpacked. Returns its number."""
    return change(layer, " = cache\n", f" = cache\n    {line}\n") + 1


def same_curve(*out_dirs):
    """Whether metrics.jsonl of two runs has the same losses: (step, kind) -> loss."""
    a, b = ({(record["step"], kind): record[kind] for record in read_metrics(out_dir) for kind in record
             if kind.endswith("loss")} for out_dir in out_dirs)
    return a.keys() == b.keys() and len(a) >= 20 and all(abs(a[key] - b[key]) < 1e-4 for key in a)


@pytest.mark.parametrize(
    "flags",
    [
        [],
        [
            "--dropout",
            0.2,
            "--gradient-accumulation-steps",
            2,
            "--n-layer",
            2,
            "--embedding-layer-norm",
            "--threads",
            2,
            "--activation",
            "gelu",
            "--no-bias",
            "--no-tie-word-embeddings",
            "--lm-head-bias",
            "--no-final-layer-norm",
        ],
    ],
)
def test_with_all_the_functions_the_curve_is_the_same(train, flags, request):
    """Every variant of the model can be trained. Without flags the files are checked, and some are the long way."""
    if flags:
        request.getfixturevalue("unchecked")
    write(number=-1 if flags else 0)
    for out_dir, own in (("without", ["--kernels", "reference"]), ("with", ["--backward", "own"])):
        code, out, err = train(*STEPS, *flags, *own, "--out-dir", out_dir)
        assert code == 0 and err == ""
    all_of_them = f"{len(LESSONS)} of {len(LESSONS)} functions are yours, from own ({', '.join(LESSONS)})"
    assert f"backward: {all_of_them}\n" in out
    assert same_curve("with", "without")


def engine_with(functions, **config):
    """An engine on a small model with dropout, and a batch for it; functions: layer -> the learner's."""
    names = {layer: {LESSONS[layer].backward.__name__: function} for layer, function in functions.items()}
    backwards = Backwards(Path("own"), {}, linked(names))
    config = {"vocab_size": 7, "block_size": 5, "n_layer": 2, "n_head": 2, "n_embd": 8, "dropout": 0.1, **config}
    model = GPT(GPTConfig(**config), threads=1)
    idx = np.arange(10).reshape(2, 5) % 7
    return OwnBackwardEngine(model.params, 1, backwards), (idx, (idx + 1) % 7, np.random.default_rng(0)), model


@pytest.mark.parametrize("layer", [name for name in LESSONS if name != "lora"])
def test_each_of_the_functions_is_called(layer):
    """Alone, beside the package's: a composite layer of the package calls the learner's parts."""
    def failing(dy, cache, *ops):
        raise ZeroDivisionError("it was called")

    engine, batch, _ = engine_with({layer: failing}, activation="gelu" if layer == "gelu_exact" else "gelu_tanh")
    with pytest.raises(BackwardError, match="it was called"):
        engine.loss_and_grads([batch[:2]], batch[2:], 10)
    assert all(lesson.backward is LESSONS[name].backward for name, lesson in LAYERS.items())


@pytest.mark.parametrize(("old", "new", "says"), [
    ("rows.T @ dy_rows", "-rows.T @ dy_rows", "own/linear-level3.py, line {line}: linear_backward is not right; see"),
    ("exercise: linear", "exercise: head", "own/linear-level3.py is an exercise on head, not on linear"),
])
def test_a_wrong_file_is_refused_before_anything_is_written(train, old, new, says):
    write(["linear"])
    line = change("linear", old, new)
    refused(train("--backward", "own"), says.format(line=line), "own linear_backward is used")
    assert not Path("out").exists()


def test_folders_without_exercises_and_other_devices_are_refused(train, monkeypatch):
    refused(train("--backward", "nowhere"), "nowhere: No such file or directory")
    Path("own").mkdir()
    for name in ("chain-level1.py", "linear-bug3.py"):
        Path("own", name).write_text("")
    write(["linear"], 1, blank=True)
    refused(train("--backward", "own"), "no exercise on a layer is finished in own")
    write(["linear"])
    monkeypatch.setattr(cli_train, "array_module", lambda device: None)
    refused(train("--backward", "own", "--device", "gpu"), "--backward trains on a CPU only")
    assert not Path("out").exists()


@UNCHECKED
@pytest.mark.usefixtures("train")
def test_of_several_levels_the_highest_that_is_right_is_used():
    write(["linear"], 0)
    write(["linear"], 1, blank=True)
    write(["dropout"], 0, blank=True)
    assert own_backward.read_backwards("own").files == {"linear": Path("own/linear-level1.py")}


@UNCHECKED
def test_what_a_function_raises_in_training_is_one_line_and_the_steps_before_are_saved(train, npgpt):
    """It was right on the lesson. It fails in the tenth step. Once corrected, the run continues to the same curve."""
    write(["gpt"])
    change("gpt", "import numpy as np\n", "import itertools\nimport numpy as np\ncalls = itertools.count(1)\n")
    line = insert("gpt", "dlogits[next(calls) // 10 * 8]")
    refused(train(*STEPS, "--backward", "own"),
            f"own/gpt-level3.py, line {line}: IndexError: index 8 is out of bounds", "stopped at step 9, saved",
            "continue with: npgpt train --resume --out-dir out --backward own")
    write(["gpt"])
    code, out, _ = npgpt("train", "--resume", "--backward", "own")
    assert code == 0 and f"1 of {len(LESSONS)} functions are yours, from own (gpt)\n" in out
    assert "resuming out/step-00000009 at step 9\n" in out
    assert train(*STEPS, "--out-dir", "whole")[0] == 0
    assert same_curve("out", "whole")


@UNCHECKED
@pytest.mark.parametrize(("layer", "line", "says"), [
    ("mlp", "raise SystemExit(3)", "SystemExit: 3"),
    ("mlp", "raise FileNotFoundError(2, 'no file', 'weights.npy')", "FileNotFoundError: [Errno 2] no file"),
    ("gpt", "return {'wte': {'weight': dlogits}}", f"{OURS}ValueError: cannot reshape array"),
])
def test_whatever_goes_wrong_because_of_a_function_is_one_line(train, layer, line, says):
    write([layer])
    number = insert(layer, line)
    says = says if says.startswith(OURS) else f"npgpt: own/{layer}-level3.py, line {number}: {says}"
    refused(train("--max-iters", 2, "--backward", "own"), says, "; stopped at step 0, saved; fix it, and continue with")


def test_another_dtype_and_shared_memory_do_no_harm():
    """Some right functions return float64 for float32, or one array for two parameters; training adds in place."""
    def wide(dlogits, cache, ops):
        dp = LESSONS["gpt"].backward(dlogits.astype(np.float64), cache, ops)
        dp["ln_f"]["bias"] = np.broadcast_to(dp["ln_f"]["bias"][:1], 8)
        dp["h"][0]["ln_1"]["bias"] = dp["ln_f"]["bias"]
        return dp

    engine, batch, model = engine_with({"gpt": wide}, dropout=0.0)
    _, grads = engine.loss_and_grads([batch[:2]], batch[2:], 10)
    assert all(grads[name].dtype == np.float32 and grads[name].flags.writeable for name in model.params)
    assert not np.shares_memory(grads["ln_f.bias"], grads["h.0.ln_1.bias"])
    _, twice = engine.loss_and_grads([batch[:2]] * 2, [None] * 2, 10)
    assert all(np.allclose(twice[name], 2 * grads[name]) for name in grads)
