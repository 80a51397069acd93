"""The lesson of the language-model head."""

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson

LESSON = Lesson(
    "Language-model head", layers.head_forward, layers.head_backward, {"x": "B T C", "weight": "V C", "bias": "V"},
    switches=("bias",), torch=lambda torch, x, weight, bias: torch.nn.functional.linear(x, weight, bias))
