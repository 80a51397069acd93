"""`npgpt train --overfit`: what it says of a model that learns, one that starts wrong, and one that does not learn."""

import math
import re

import pytest

from npgpt import Trainer, load
from npgpt.cli.overfit import overfit
from npgpt.training.options import TrainOptions
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
    code, out, _ = train(*QUICK, "--max-iters", 20)
    assert code == 1 and losses(out)[-1] > 0.1 and "not known by heart: take more --max-iters" in out


def test_only_fresh_weights_must_begin_at_ln_v(train, capsys):
    assert train("--max-iters", 200, "--learning-rate", "1e-2", "--lr-decay-iters", 0)[0] == 0
    code, out, _ = train("--overfit", "--init-from", "out", "--learning-rate", "1e-2")
    first, ln_v, *_ = losses(out)
    assert code == 0 and first < 0.85 * ln_v and "far from that of a guess" not in out
    model, tokenizer = load("out")
    options = TrainOptions(batch_size=2, max_iters=500, learning_rate=1e-2, lr_decay_iters=0, warmup_iters=0)
    assert overfit(Trainer(model, tokenizer.encode(TEXT), None, options), fresh=True) == 1
    out = capsys.readouterr().out
    assert "far from that of a guess" in out and "not known by heart" not in out
