"""The lesson of the whole model."""

import numpy as np

from npgpt import layers
from npgpt.model.masks import draw_masks
from npgpt.model.transformer import gpt_backward, gpt_forward
from npgpt.study.lessons.lesson import Lesson


def arguments(setting, rng):
    masks = draw_masks(setting.model, setting.sizes.B, setting.sizes.T, np.float64, rng)
    return {"idx": setting.tokens(rng), "config": setting.model, "dropout_masks": masks, "ops": layers}


LESSON = Lesson(
    "The whole GPT-2", gpt_forward, gpt_backward, {}, arguments,
    switches=("ln_e", "ln_f", "tied", "head_bias", "bias", "dropout", "causal", "tanh"), params="")
