"""The lesson of the transformer block."""

from npgpt.model.transformer import block_backward, block_forward
from npgpt.study.lessons.lesson import Lesson
from npgpt.study.lessons.self_attention import block_arguments

LESSON = Lesson(
    "Transformer block", block_forward, block_backward, {"x": "B T C"}, block_arguments,
    switches=("bias", "mask", "dropout", "tanh"), params="h.0.")
