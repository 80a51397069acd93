"""The lesson of the linear layer."""

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson

LESSON = Lesson(
    "Linear layer", layers.linear_forward, layers.linear_backward, {"x": "B T C", "weight": "C V", "bias": "V"},
    switches=("bias",),
    torch=lambda torch, x, weight, bias: torch.nn.functional.linear(x, weight.T, bias))
