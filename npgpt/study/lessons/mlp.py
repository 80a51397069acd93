"""The lesson of the MLP."""

from npgpt import layers
from npgpt.model.transformer import mlp_backward, mlp_forward
from npgpt.study.lessons.lesson import Lesson

LESSON = Lesson(
    "MLP", mlp_forward, mlp_backward, {"x": "B T C"}, lambda setting, rng: {"config": setting.model, "ops": layers},
    switches=("bias", "tanh"), params="h.0.mlp.")
