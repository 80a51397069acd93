"""copy.deepcopy and pickle: a copy of a model and its optimizer is independent, and trains on with the same bits."""

import copy
import pickle
import types

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.model import transformer
from tests.cases import MODERN, SMALL, B, T, V

OWN = types.SimpleNamespace(parameters=transformer.block_parameters, forward=transformer.block_forward,
                            backward=transformer.block_backward)
IDX = np.random.default_rng(1).integers(0, V, (B, T))


def steps(model, optimizer):
    return [(float(loss), optimizer.step(grads)) for loss, grads in (model.loss_and_grads(IDX, IDX) for _ in range(3))]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize(("fields", "options"), [
    ({}, {"kernels": "reference"}), ({"lora_rank": 2}, {"kernels": "numpy"}), ({}, {"freeze": "wte"}),
    ({}, {"block": MODERN}), ({}, {"block": OWN}),
    pytest.param({}, {"kernels": "xla"}, marks=pytest.mark.slow)])
def test_a_copy_trains_on_alone(fields, options, copied):
    model = GPT(GPTConfig(**SMALL | fields), **options)
    optimizer = AdamW(model.params, engine=model.engine)
    steps(model, optimizer)
    before = model.params.flat.copy()
    (ours, its), params = copied((model, optimizer)), copied(model.params)
    assert its.params is ours.params is ours.engine.params and its.engine is ours.engine
    assert ours.engine.description == model.engine.description and params.frozen == model.params.frozen
    there = steps(ours, its)
    assert (model.params.flat == before).all() and (params.flat == before).all() and (ours.params.flat != before).any()
    assert steps(model, optimizer) == there and (model.params.flat == ours.params.flat).all()
    ours.forward(IDX, IDX)                      # whose cache is not copied
    with pytest.raises(UserError, match="forward with targets"):
        copied(ours).backward()
