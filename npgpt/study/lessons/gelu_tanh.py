"""The lesson of GELU's tanh form."""

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson

LESSON = Lesson(
    "GELU, the tanh form", layers.gelu_tanh_forward, layers.gelu_tanh_backward, {"x": "B T C"},
    torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"))
