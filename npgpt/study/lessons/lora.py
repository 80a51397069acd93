"""The lesson of LoRA. Its rank is D, which differs from the other sizes; what is frozen is constant."""

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson


def frozen(setting, rng):
    C, V = setting.sizes.C, setting.sizes.V
    return {"weight": rng.standard_normal((C, V)), "bias": rng.standard_normal(V)}


LESSON = Lesson(
    "LoRA", layers.lora_forward, layers.lora_backward, {"x": "B T C", "lora_a": "C D", "lora_b": "D V"}, frozen,
    torch=lambda torch, x, weight, bias, lora_a, lora_b: torch.nn.functional.linear(
        x, (weight + lora_a @ lora_b).T, bias))
