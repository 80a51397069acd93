"""The lesson of dropout."""

import numpy as np

from npgpt import layers
from npgpt.model.masks import dropout_mask
from npgpt.study.lessons.lesson import Lesson

LESSON = Lesson(
    "Dropout", layers.dropout_forward, layers.dropout_backward, {"x": "B T C"},
    lambda setting, rng: {"mask": dropout_mask(rng, setting.sizes[:3], setting.dropout, np.float64)},
    switches=("dropout",), torch=lambda torch, x, mask: x if mask is None else x * mask)
