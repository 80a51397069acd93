"""The lesson of GELU's exact form."""

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson

LESSON = Lesson(
    "GELU, the exact form", layers.gelu_exact_forward, layers.gelu_exact_backward, {"x": "B T C"}, skipped=("phi",),
    torch=lambda torch, x: torch.nn.functional.gelu(x))
