"""`npgpt train --overfit`: what it says of a model that learns, one that starts wrong, and one that does not learn."""

import math
import re

import pytest

from npgpt.checkpoints.run import find_checkpoint
from npgpt.engine.reference import ReferenceEngine
from npgpt.model import parameters
from tests.conftest import TEXT

QUICK = ["--overfit", "--n-embd", "32", "--learning-rate", "6e-3", "--n-layer", "2", "--dropout", "0.3"]


def losses(out):
    found = re.search(r"first loss (.*), ln V = (.*) \(\+ about (.*), as .*\); last loss (.*)", out)
    return [float(number) for number in found.groups()]


def test_one_batch_is_learnt_by_heart_and_nothing_is_saved(train, tmp_path):
    code, out, err = train(*QUICK)
    first, ln_v, more, last = losses(out)
    assert code == 0 and err == "" and "one batch of 2 x 8 tokens, 500 steps at learning rate 0.006\n" in out
    assert ln_v == pytest.approx(math.log(len(set(TEXT))), abs=1e-4) and more == round(32 * 0.08**2 / 2, 4)
    assert abs(first - ln_v - more) < 0.1 and last < 0.001
    assert out.endswith("good: the batch is known by heart\n")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_the_batch_is_that_of_the_first_step_without_dropout(train, npgpt, monkeypatch):
    seen = []
    loss_and_grads = ReferenceEngine.loss_and_grads

    def watched(engine, idx, targets, rng, *rest):
        masked = engine.params.config.used("embd_pdrop") > 0
        seen.append((idx.tobytes(), targets.tobytes(), masked))
        return loss_and_grads(engine, idx, targets, rng, *rest)

    monkeypatch.setattr(ReferenceEngine, "loss_and_grads", watched)
    assert train(*QUICK, "--max-iters", 3)[0] == 1
    assert train("--max-iters", 1, "--dropout", 0.3)[0] == 0
    assert len(seen) == 4 and {batch[:2] for batch in seen} == {seen[0][:2]}
    assert [masked for *_, masked in seen] == [False] * 3 + [True]


def test_a_run_that_is_there_stays_as_it_is(train, tmp_path):
    assert train("--max-iters", 2)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert train("--overfit", "--max-iters", 2)[0] == 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert find_checkpoint("out").name == "step-00000002"
    code, _, err = train("--overfit", "--overwrite")
    assert code == 2 and "not allowed with" in err


def test_too_few_steps_are_named(train):
    code, out, _ = train(*QUICK, "--max-iters", 20)
    assert code == 1 and losses(out)[-1] > 0.1 and "not known by heart: take more --max-iters" in out


def test_weights_that_are_too_large_are_named_but_not_those_of_a_trained_model(train, monkeypatch):
    initialize = parameters.initialize

    def too_large(params, *others):
        initialize(params, *others)
        params["wte.weight"] *= 40

    monkeypatch.setattr("npgpt.api.initialize", too_large)
    code, out, _ = train(*QUICK)
    assert code == 1 and "far from that of a guess" in out and "not known by heart" not in out


def test_a_trained_model_need_not_begin_at_ln_v(train):
    assert train("--max-iters", 200, "--learning-rate", "1e-2", "--lr-decay-iters", 0)[0] == 0
    code, out, _ = train("--overfit", "--init-from", "out", "--learning-rate", "1e-2")
    first, ln_v, *_ = losses(out)
    assert code == 0 and first < 0.85 * ln_v and "far from that of a guess" not in out
