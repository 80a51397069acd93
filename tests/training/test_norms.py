"""The norms of each layer in metrics.jsonl: compared with copies, and without effect on the run."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.training.metrics import read_metrics
from npgpt.training.norms import layer_of
from npgpt.training.options import TrainOptions
from npgpt.training.trainer import Trainer
from tests.torch_gpt import unit_scale

TOKENS = np.random.default_rng(0).integers(0, 11, 300)


def trainer_of(out_dir=None, kernels="reference", val_tokens=TOKENS, **options):
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8, tie_word_embeddings=False)
    options = TrainOptions(**{"batch_size": 4, "warmup_iters": 0, "dtype": "float64", "max_iters": 6, "log_interval": 3,
                              "eval_interval": 6, "lr_decay_iters": 0, "weight_decay": 0.3, **options})
    model = GPT(config, dtype="float64", threads=2, kernels=kernels)
    unit_scale(model.params)
    return Trainer(model, TOKENS, val_tokens, options, out_dir)


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize("kernels", ["reference", "numpy"])
def test_the_norms_are_those_of_what_a_step_changes(decay, kernels):
    trainer, given = trainer_of(kernels=kernels, decay=decay), []
    layers = ["wte", "wpe", "h.0", "h.1", "ln_f", "lm_head"]
    for step in range(1, 7):
        before = {name: array.copy() for name, array in trainer.model.params.items()}
        take, given = trainer.optimizer.step, []
        trainer.optimizer.step = lambda *args, take=take, given=given: (given.append(args[0]), take(*args))[1]
        record = trainer.train_step()
        trainer.optimizer.step = take
        if step % 3:
            assert record.keys() == {"step", "loss", "lr", "grad_norm"}
            continue
        assert record.keys() == {"step", "loss", "lr", "grad_norm"} | {
            f"{kind}.{layer}" for kind in ("grad_norm", "param_norm", "update_norm") for layer in layers}
        for layer in layers:
            names = [name for name in before if layer_of(name) == layer]
            for kind, arrays in (("grad_norm", given[0]), ("param_norm", trainer.model.params),
                                 ("update_norm", {name: trainer.model.params[name] - before[name] for name in names})):
                expected = np.linalg.norm(np.concatenate([arrays[name].ravel() for name in names]))
                assert record[f"{kind}.{layer}"] == pytest.approx(expected, rel=1e-9)
        total = sum(record[f"grad_norm.{layer}"]**2 for layer in layers)
        assert record["grad_norm"] > 1 and total == pytest.approx(record["grad_norm"]**2, rel=1e-9)     # not clipped


def test_they_are_in_the_file_and_change_no_bit(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path)
    trainer.run(progress=False)
    logged = [record for record in read_metrics(tmp_path) if "loss" in record]
    assert [record["step"] for record in logged] == [3, 6] and all("update_norm.h.1" in record for record in logged)
    monkeypatch.setattr("npgpt.engine.reference.ReferenceEngine.shows_gradients", False)
    silent = trainer_of(tmp_path / "silent")
    silent.run(progress=False)
    assert np.array_equal(silent.model.params.flat, trainer.model.params.flat)
    assert not any("update_norm.h.1" in record for record in read_metrics(tmp_path / "silent"))
