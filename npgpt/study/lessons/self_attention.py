"""The lesson of self-attention, and what it shares with that of the block."""

import numpy as np

from npgpt import layers
from npgpt.model.masks import draw_masks
from npgpt.model.transformer import self_attention_backward, self_attention_forward
from npgpt.study.lessons.lesson import Lesson


def block_arguments(setting, rng):
    """Return the arguments of self-attention and of the block, with all dropout masks of a block."""
    masks = draw_masks(setting.model, setting.sizes.B, setting.sizes.T, np.float64, rng)
    return {"config": setting.model, "layer": setting.layer, "mask": setting.attention_mask(rng, setting.sizes.T),
            "dropout_masks": masks.blocks[0], "ops": layers}


def arguments(setting, rng):
    given = block_arguments(setting, rng)
    masks = given.pop("dropout_masks")
    return given | {"dropout_mask": masks.att}


LESSON = Lesson(
    "Self-attention", self_attention_forward, self_attention_backward, {"x": "B T C"}, arguments,
    switches=("bias", "mask", "causal", "dropout"), params="h.0.attn.")
