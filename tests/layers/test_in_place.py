"""The large gradients are written to the arrays that a backward is given for them, and to new ones otherwise."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.engine import rowwise
from npgpt.engine.threads import using_cores
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.model import transformer as gpt
from npgpt.model.parameters import Parameters
from npgpt.model.transformer import gpt_backward, gpt_forward, loss_and_dlogits
from tests.cases import layer_cases

CASES = {case.name: case for case in layer_cases()}


@pytest.mark.parametrize(("name", "weights"), [
    ("linear", ["dweight"]), ("linear without bias", ["dweight"]), ("head", ["dweight"]),
    ("mlp, gelu_tanh", ["dc_fc_weight", "dc_proj_weight"]), ("mlp, gelu_tanh", ["dc_proj_weight"]),
    ("mlp, gelu", ["dc_fc_weight"]), ("self-attention", ["dc_attn_weight", "dc_proj_weight"]),
    ("self-attention", ["dc_proj_weight"]), ("self-attention", ["dc_attn_weight"])], ids=str)
def test_a_weights_gradient_is_written_to_the_array_that_is_given(name, weights):
    case = CASES[name]
    y, cache = case.forward(**case.inputs)
    dy = np.random.default_rng(0).standard_normal(y.shape)
    names = [f"d{argument}" for argument in case.inputs]
    expected = dict(zip(names, case.backward(dy, cache), strict=False))
    given = {weight: np.full(expected[weight].shape, np.nan) for weight in weights}
    grads = dict(zip(names, case.backward(dy, cache, **given), strict=False))
    for weight, array in given.items():
        assert grads[weight] is array
    for argument in names:
        np.testing.assert_array_equal(grads[argument], expected[argument], err_msg=argument)


class Noting(Parameters):
    """A gradient buffer that notes which arrays are copied to it, not having been written there."""

    def __init__(self, config):
        super().__init__(config)
        self.copied = set()

    def __setitem__(self, name, value):
        if isinstance(value, np.ndarray) and value is not self[name]:
            self.copied.add(name)
        super().__setitem__(name, value)


@pytest.mark.parametrize("tied", [True, False])
def test_the_models_backward_copies_no_matrix_but_that_of_the_positions(tied):
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=3, n_embd=12, tie_word_embeddings=tied)
    params, grads = GPT(config).params, Noting(config)
    logits, cache = gpt_forward(np.random.default_rng(0).integers(0, 11, (3, 6)), params)
    gpt_backward(np.ones_like(logits), cache, grads)
    assert grads.copied == {name for name, array in grads.items() if array.ndim == 1} | {"wpe.weight"}


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(("rows_in_a_block", "blocks"), [(1, 15), (4, 4), (15, 1)])
def test_dlogits_are_written_over_the_logits_a_few_rows_at_a_time(rows_in_a_block, blocks, cores, monkeypatch):
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((3, 5, 11)), rng.integers(-1, 11, (3, 5))
    loss, cache = cross_entropy_forward(logits, targets, 40)
    expected = cross_entropy_backward(1.0, cache)
    worked_on = []
    monkeypatch.setattr(rowwise, "BLOCK_BYTES", rows_in_a_block * 11 * 8)
    monkeypatch.setattr(gpt, "cross_entropy_forward",
                        lambda *arguments: worked_on.append(1) or cross_entropy_forward(*arguments))
    with using_cores(cores):
        loss_in_blocks, dlogits = loss_and_dlogits(logits, targets, 40)
    assert dlogits is logits and len(worked_on) == blocks
    assert loss_in_blocks == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(dlogits, expected, rtol=1e-12, atol=1e-15)
