"""The lesson of the embedding."""

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson

LESSON = Lesson(
    "Embedding", layers.embedding_forward, layers.embedding_backward, {"wte": "V C", "wpe": "P C"},
    lambda setting, rng: {"idx": setting.tokens(rng)}, switches=("repeated",),
    torch=lambda torch, idx, wte, wpe: wte[idx] + wpe[torch.arange(idx.shape[1])])
