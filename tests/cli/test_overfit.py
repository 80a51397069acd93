"""`npgpt train --overfit`: what it says of a model that learns, one that starts wrong, and one that does not learn."""

import math
import re

import pytest

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


def test_only_fresh_weights_must_begin_at_ln_v(train):
    wide = ["--init", "torch", "--max-iters", 1]            # the tied head has deviation 1
    code, out, _ = train(*QUICK, *wide)
    assert code == 1 and "far from that of a guess" in out
    assert train(*wide)[0] == 0
    _, out, _ = train("--overfit", "--init-from", "out", "--max-iters", 1)
    first, ln_v, *_ = losses(out)
    assert first > 1.2 * ln_v and "far from that of a guess" not in out
