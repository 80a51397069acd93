"""The bare loop trains as the Trainer does."""

import numpy as np
import pytest

from npgpt.training.loop import train
from tests.training.test_trainer import TOKENS, trainer_of


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bare_loop_has_the_bits_of_the_trainer(threads, tmp_path, monkeypatch):
    monkeypatch.setattr("npgpt.api.available_cores", lambda: threads)
    options = {"dropout": 0.1, "warmup_iters": 2, "lr_decay_iters": 6, "grad_clip": 0.5, "decay": "all"}
    (tmp_path / "other").mkdir()
    trainer, other = trainer_of(tmp_path, **options), trainer_of(tmp_path / "other", **options)
    losses = []
    trainer.on_step = lambda trainer, record: losses.append(record["loss"])
    trainer.run(progress=False)
    assert list(train(other.model, TOKENS, other.options)) == losses and len(losses) == 6
    assert np.array_equal(trainer.model.params.flat, other.model.params.flat)
