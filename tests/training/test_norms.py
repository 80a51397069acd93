"""The norms of each layer in the record of a logged step, compared with copies. test_loop.py: they change no bit."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, Trainer, TrainOptions
from npgpt.data.batches import crops_of
from tests.torch_gpt import unit_scale

TOKENS = np.random.default_rng(0).integers(0, 11, 300)
LAYERS = ["wte", "wpe", "h.0", "h.1", "ln_f", "lm_head"]


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize("kernels", ["reference", "numpy"])
def test_the_norms_are_those_of_what_a_step_changes(decay, kernels):
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8, tie_word_embeddings=False)
    options = TrainOptions(batch_size=4, warmup_iters=0, lr_decay_iters=0, weight_decay=0.3, log_interval=2,
                           max_iters=4, decay=decay)
    model = GPT(config, dtype="float64", threads=2, kernels=kernels)
    unit_scale(model.params)
    trainer = Trainer(model, TOKENS, TOKENS, options)
    for step in range(1, 5):
        _, grads = model.loss_and_grads(*crops_of(TOKENS, 8).at(trainer.places(0)))
        before = {name: array.copy() for name, array in model.params.items()}
        record = trainer.train_step()
        norms = {key: value for key, value in record.items() if "." in key}
        changed = {name: model.params[name] - before[name] for name in before}
        expected = {f"{kind}.{layer}": np.sqrt(sum((array**2).sum() for name, array in arrays.items()
                                                   if name.startswith(f"{layer}.")))
                    for kind, arrays in (("grad_norm", grads), ("param_norm", model.params), ("update_norm", changed))
                    for layer in LAYERS}
        assert norms == (pytest.approx(expected, rel=1e-9) if step % 2 == 0 else {})
        assert record["grad_norm"] > 1                      # not clipped
