"""Training by XLA: exact resume, no waiting, several devices and processes, the command line."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, Trainer, TrainOptions
from npgpt.checkpoints.run import find_checkpoint
from tests.conftest import TINY
from tests.helpers.runs import bits

slow = pytest.mark.slow
XLA = ["--kernels", "xla"]
TOKENS = np.random.default_rng(0).integers(0, 11, 600).astype(np.uint16)
OPTIONS = TrainOptions(
    batch_size=6, max_iters=12, lr_decay_iters=12, warmup_iters=2, eval_iters=2, log_interval=5
)


@slow
def test_the_command_line_and_ten_and_ten_are_twenty(train, npgpt):
    """With dropout and accumulation: the bits of an uninterrupted run. Then continued by NumPy."""
    options = [*XLA, "--dropout", 0.2, "--gradient-accumulation-steps", 3]
    assert train("--out-dir", "whole", "--max-iters", 20, *options)[0] == 0
    code, out, err = train("--out-dir", "parts", "--max-iters", 10, *options)
    assert code == 0 and "XLA on cpu" in out
    assert "XLA compiles loss and gradients of 3 x 2 x 8 tokens" in err and "it needs" in err
    again = "train --out-dir parts --resume --max-iters"
    assert npgpt(*again.split(), 20)[0] == 0  # its kernels are kept
    assert bits("whole") == bits("parts")
    assert npgpt(*again.split(), 22, "--kernels", "numpy")[0] == 0
    assert find_checkpoint("parts").name == "step-00000022"
    assert "perplexity" in npgpt("eval", "parts", *XLA)[1]
    code, out, _ = npgpt("sample", "parts", *XLA, "--max-new-tokens", 20)
    assert code == 0 and len(out) > 20


NOBODY = (
    "import pwd, sys; from npgpt.cli.main import main; pwd.getpwuid = {}.__getitem__; "
    "sys.exit(main())"
)


@slow
@pytest.mark.parametrize(
    ("variables", "code", "says"),
    [
        ({}, 0, "XLA compiles AdamW's step"),
        ({"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""}, 2, "npgpt: JAX finds no cpu ("),
    ],
)
def test_without_a_home_a_cache_or_a_device(text_file, tmp_path, variables, code, says):
    """As a user whose id has no name: a run without a cache, or one line."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")
    } | {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **variables,
    }
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            NOBODY,
            "train",
            *XLA,
            *TINY,
            "--max-iters=1",
            "--corpus",
            text_file,
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == code and says in result.stderr and "Traceback" not in result.stderr
    assert code == 0 or result.stderr.count("\n") == 1


@pytest.mark.slow
def test_nothing_waits_between_log_intervals(monkeypatch, jax):
    """Only loss and norm are read, at the end of an interval; JAX makes no implicit transfers."""
    from jax._src.array import ArrayImpl

    from npgpt.engine.xla.devices import DeviceParameters

    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=16, dropout=0.1)
    model, waits = GPT(config, kernels="xla"), []
    made = Trainer(model, TOKENS[:500], TOKENS[500:], OPTIONS)
    monkeypatch.setattr(made, "evaluate_and_save", lambda bar: None)
    right, finished = ArrayImpl._value, ArrayImpl.block_until_ready
    monkeypatch.setattr(
        ArrayImpl, "_value", property(lambda self: (waits.append(made.step), right.fget(self))[1])
    )
    monkeypatch.setattr(
        ArrayImpl, "block_until_ready", lambda self: (waits.append(made.step), finished(self))[1]
    )
    monkeypatch.setattr(DeviceParameters, "_fetch", lambda self: waits.append("parameters"))
    with jax.transfer_guard("disallow"):
        made.run()
    assert waits == [5, 5, 10, 10, 12, 12]
    assert made.model.params.there is not None


FIFTY = """
import json, sys
import numpy as np
import jax
from npgpt import GPT, AdamW, GPTConfig
config = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, dropout=0.1)
model = GPT(config, seed=0, kernels="xla")
optimizer = AdamW(model.params, lr=1e-2, engine=model.engine)
losses, rng = [], np.random.default_rng(0)
for step in range(50):
    idx, targets = rng.integers(0, 11, (2, 6, 8))
    targets[:2] = -1
    rngs = [model.engine.dropout_rng(1, step, 0)]
    loss, grads = model.engine.loss_and_grads([(idx, targets)], rngs, 32)
    # XLA's CPU devices share threads: with many steps in flight they wait for each other forever.
    float(optimizer.step(grads, 1.0))
    losses.append(float(loss))
divided = "h.0.mlp.c_fc.weight"
arrays = optimizer.m.there["wte.weight"], optimizer.m.there[divided], model.params.there[divided]
text = next(iter(model.engine._executables.values())).as_text()
print(json.dumps([len(jax.devices()), losses, float(model.evaluate(idx, targets)),
                  [each.sharding.is_fully_replicated for each in arrays], model.engine.description,
                  float(optimizer.v.flat.sum()), text]))
"""


@slow
def test_four_devices_train_as_one():
    """6 rows on 4 devices, so two rows are added; two rows have no target. Moments of 16 rows are
    divided.
    """
    found = []
    for n in (1, 4):
        environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={n}"}
        result = subprocess.run(
            [sys.executable, "-c", FIFTY], capture_output=True, text=True, env=environment
        )
        assert result.returncode == 0, result.stderr
        found.append(json.loads(result.stdout))
    (
        (_, losses, evaluated, _, _, v, _),
        (devices, losses_4, evaluated_4, replicated, where, v_4, program),
    ) = found
    assert devices == 4 and where == "XLA on cpu, 4 devices" and replicated == [True, False, True]
    assert np.abs(np.subtract(losses, losses_4)).max() < 1e-5 and losses[-1] < losses[0]
    assert evaluated_4 == pytest.approx(evaluated, abs=1e-5) and v_4 == pytest.approx(v, rel=1e-3)
    # Each device sorts the tokens of its two rows, and no device gets rows of another's gradient.
    assert re.findall(r"\(s32\[([0-9,]*)\]\S*, s32\[\S+ sort\(", program) == ["1,16"]
    assert not re.findall(r"f32\[[0-9,]*8,8,16\]\S* all-gather\(", program)
