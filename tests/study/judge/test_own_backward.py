"""`npgpt train --backward`: the learner's functions train, each of them, and the curve is that of
the package's.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.cli import train as cli_train
from npgpt.errors import BackwardError
from npgpt.study.exercises.exercise import Step, levels_of
from npgpt.study.judge import own_backward
from npgpt.study.judge.own_backward import Backwards, OwnBackwardEngine, linked
from npgpt.study.lessons.table import LAYERS
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import refused
from tests.study.judge.solutions import changed, each_of, play, solved

VARIANTS = """--dropout 0.2 --gradient-accumulation-steps 2 --n-layer 2 --embedding-layer-norm
--threads 2 --activation gelu --no-bias --no-tie-word-embeddings --lm-head-bias
--no-final-layer-norm""".split()
SESSIONS = r"""
# a wrong file is refused before anything is written
own/linear-level3.py = linear | rows.T @ dy_rows => -rows.T @ dy_rows
2$ train --backward own
  own/linear-level3.py, line {line}: linear_backward is not right; see
  own linear_backward is used
own/linear-level3.py = head
2$ train --backward own
  own/linear-level3.py is an exercise on head, not on linear
2$ eval out
  out

# folders without finished exercises are refused
2$ train --backward nowhere
  nowhere: No such file or directory
own/chain-level1.py : x
own/linear-bug3.py : x
own/linear-level2.py = linear blank2
2$ train --backward own
  no exercise on a layer is finished in own

# of several levels the highest that is finished is used
own/linear-level1.py = linear 1
own/linear-level2.py = linear blank2
own/dropout-level1.py = dropout blank1
$ train --backward own --max-iters 1
  functions are yours, from own (linear)\n
"""
UNCHECKED = r"""
# what a function raises in training is one line; corrected, the run continues to the same curve
own/gpt-level3.py = gpt | def gpt_ => calls = []\n\n\ndef gpt_ @@ config = cache => \
config = cache\n    calls.append(0)\n    dlogits[len(calls) // 10 * 8]
2$ train --max-iters 20 --eval-interval 20 --backward own
  own/gpt-level3.py, line {line}: IndexError: index 8 is out of bounds
  stopped at step 9, saved
  continue with: npgpt train --resume --out-dir out --backward own
own/gpt-level3.py = gpt
$ train --resume --backward own
  functions are yours, from own (gpt)\n
  resuming out/step-00000009 at step 9\n
$ train --max-iters 20 --eval-interval 20 --out-dir whole

# whatever goes wrong because of a function is one line
own/mlp-level3.py = mlp | config = cache => config = cache\n    raise SystemExit(3)
2$ train --max-iters 2 --backward own
  npgpt: own/mlp-level3.py, line {line}: SystemExit: the code ends the program; stopped at step 0,\
 saved; fix it, and continue with
own/mlp-level3.py = mlp | config = cache => config = cache\n    open('weights.npy')
2$ train --max-iters 2 --backward own --out-dir other
  line {line}: FileNotFoundError: [Errno 2] No such file or directory: 'weights.npy'
own/gpt-level3.py = gpt | config = cache => config = cache\n    return {'wte': {'weight': dlogits}}
own/mlp-level3.py = mlp
2$ train --max-iters 2 --backward own --out-dir third
  npgpt: own: npgpt cannot use what your functions have returned or changed: ValueError: cannot
"""


@pytest.fixture
def unchecked(monkeypatch):
    """Every file is right: the check of one takes half a second."""
    right = SimpleNamespace(right=True)
    monkeypatch.setattr(own_backward, "run_child", lambda exercise, seconds: right)


@each_of(SESSIONS)
def test_a_session(session, npgpt, train):
    play(session, npgpt, train)


@each_of(UNCHECKED)
@pytest.mark.usefixtures("unchecked")
def test_a_session_without_checks(session, npgpt, train):
    play(session, npgpt, train)
    if "whole" in session:
        assert curve("out") == pytest.approx(curve("whole"), abs=1e-4)


def curve(out_dir):
    """The losses of a run: (step, kind) -> loss."""
    return {
        (record["step"], kind): record[kind]
        for record in read_metrics(out_dir)
        for kind in record
        if kind.endswith("loss")
    }


@pytest.mark.parametrize("flags", [pytest.param([], marks=pytest.mark.slow), VARIANTS])
def test_with_all_the_functions_the_curve_is_the_same(train, flags, request):
    """Without flags the files are checked, and some are the long way."""
    if flags:
        request.getfixturevalue("unchecked")
    Path("own").mkdir()
    for layer in LAYERS:
        step = Step(layer, levels_of(layer)[-1 if flags else 0])
        Path("own", step.file).write_text(solved(step.lesson, step.level))
    steps = ["--max-iters", 10, "--eval-interval", 10, *flags, "--out-dir"]
    assert train(*steps, "without", "--kernels", "reference")[0] == 0
    code, out, err = train(*steps, "with", "--backward", "own")
    assert (code, err) == (0, "")
    assert f"{len(LAYERS)} functions are yours, from own ({', '.join(LAYERS)})\n" in out
    assert curve("with") == pytest.approx(curve("without"), abs=1e-4) and len(curve("with")) >= 10


def engine_with(layer, function, **config):
    """An engine on a small model with the learner's function of a layer, and its gradients."""
    names = {layer: {LAYERS[layer].backward.__name__: function}}
    config = GPTConfig(vocab_size=7, block_size=5, n_layer=2, n_head=2, n_embd=8, **config)
    params = GPT(config, threads=1).params
    engine = OwnBackwardEngine(params, 1, Backwards(Path("own"), {}, linked(names)))
    idx = np.arange(10).reshape(2, 5) % 7
    batch = idx, (idx + 1) % 7
    return lambda n: engine.loss_and_grads([batch] * n, [np.random.default_rng(0)] * n, 10)[1]


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "lora"])
def test_each_of_the_functions_is_called(layer):
    """Alone, beside the package's: a composite layer of the package calls the learner's parts."""
    activation = "gelu" if layer == "gelu_exact" else "gelu_tanh"
    with pytest.raises(BackwardError, match="division by zero"):
        engine_with(layer, lambda *arguments: 1 / 0, activation=activation, dropout=0.1)(1)


def test_another_dtype_and_shared_memory_do_no_harm():
    """A right function may return float64, or one array for two parameters: training adds."""

    def wide(dlogits, cache, ops):
        dp = LAYERS["gpt"].backward(dlogits.astype(np.float64), cache, ops)
        dp["ln_f"]["bias"] = np.broadcast_to(dp["ln_f"]["bias"][:1], 8)
        dp["h"][0]["ln_1"]["bias"] = dp["ln_f"]["bias"]
        return dp

    grads_of = engine_with("gpt", wide, dropout=0.0)
    grads, twice = dict(grads_of(1)), grads_of(2)
    for name, each in grads.items():
        assert each.dtype == np.float32 and each.flags.writeable
        assert np.allclose(twice[name], 2 * each)
    assert not np.shares_memory(grads["ln_f.bias"], grads["h.0.ln_1.bias"])


def test_other_devices_are_refused(train, monkeypatch):
    monkeypatch.setattr(cli_train, "array_module", lambda device: None)
    Path("own").mkdir()
    Path("own/linear-level3.py").write_text(changed("linear")[0])
    refused(train("--backward", "own", "--device", "gpu"), "--backward trains on a CPU only")
    assert not Path("out").exists()
