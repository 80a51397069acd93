"""All lessons, in learning order: lesson 0, then the layers. Each is one record, and has a
derivation of its name.
"""

import math
import re

import numpy as np

from npgpt import layers
from npgpt.errors import UserError
from npgpt.model import transformer
from npgpt.model.masks import draw_masks, dropout_mask
from npgpt.study.lessons import basics, long_way
from npgpt.study.lessons.lesson import Lesson
from npgpt.study.lessons.own_make import read_pair
from npgpt.study.lessons.setting import PLAIN


def difference_arguments(setting, rng):
    """Return a random function f, with a kink or without one, and the step h of the central
    difference.
    """
    a, b = rng.uniform(0.5, 2.0, 2).tolist()
    kink = float(setting.seed % 2)
    return {"f": lambda x: np.sin(a * x) + b * (x * x) + kink * abs(x), "h": setting.step}


def attention_arguments(setting, rng):
    """Return the scale, the mask that is added to the scores, and dropout's."""
    B, T, C, H, V, S, F, P = setting.sizes
    return {
        "scale": setting.scale or 1.0 / math.sqrt(C // H),
        "mask": setting.attention_mask(rng, S),
        "dropout_mask": dropout_mask(rng, (B, H, T, S), setting.dropout, np.float64),
    }


def attention_in_torch(torch, q, k, v, scale, mask, dropout_mask):
    """Compute attention by torch. With unit vectors as values it returns the weights, to which
    dropout is applied.
    """
    units = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        att = torch.nn.functional.scaled_dot_product_attention(q, k, units, mask, scale=scale)
    return (att if dropout_mask is None else att * dropout_mask) @ v


def gpt_arguments(setting, rng):
    masks = draw_masks(setting.model, setting.sizes.B, setting.sizes.T, np.float64, rng)
    return {
        "idx": setting.tokens(rng),
        "config": setting.model,
        "dropout_masks": masks,
        "ops": layers,
    }


def block_arguments(setting, rng):
    masks = draw_masks(setting.model, setting.sizes.B, setting.sizes.T, np.float64, rng)
    return {
        "config": setting.model,
        "layer": setting.layer,
        "mask": setting.attention_mask(rng, setting.sizes.T),
        "dropout_masks": masks.blocks[0],
        "ops": layers,
    }


def self_attention_arguments(setting, rng):
    arguments = block_arguments(setting, rng)
    masks = arguments.pop("dropout_masks")
    return arguments | {"dropout_mask": masks.att}


def lora_weights(setting, rng):
    """Return the frozen weight and bias, which are constants."""
    C, V = setting.sizes.C, setting.sizes.V
    return {"weight": rng.standard_normal((C, V)), "bias": rng.standard_normal(V)}


LESSON_0 = {
    each.name: each
    for each in (
        Lesson(
            "The chain rule", basics.chain_forward, basics.chain_backward, {"x": "T C", "a": "T C"}
        ),
        Lesson("A variable used twice", basics.twice_forward, basics.twice_backward, {"x": "T C"}),
        Lesson(
            "Broadcasting",
            basics.broadcast_forward,
            basics.broadcast_backward,
            {"x": "N C", "gain": "N 1", "bias": "C"},
        ),
        Lesson(
            "A derivative, measured",
            basics.difference_forward,
            basics.difference_backward,
            {"x": "T C"},
            difference_arguments,
        ),
    )
}
LAYERS: dict[str, Lesson] = {
    each.name: each
    for each in (
        Lesson(
            "Linear layer",
            layers.linear_forward,
            layers.linear_backward,
            {"x": "B T C", "weight": "C V", "bias": "V"},
            switches=("bias",),
            torch=lambda torch, x, weight, bias: torch.nn.functional.linear(x, weight.T, bias),
        ),
        Lesson(
            "GELU, the tanh form",
            layers.gelu_tanh_forward,
            layers.gelu_tanh_backward,
            {"x": "B T C"},
            torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        ),
        Lesson(
            "GELU, the exact form",
            layers.gelu_exact_forward,
            layers.gelu_exact_backward,
            {"x": "B T C"},
            skipped=("phi",),
            torch=lambda torch, x: torch.nn.functional.gelu(x),
        ),
        Lesson(
            "LayerNorm",
            layers.layernorm_forward,
            layers.layernorm_backward,
            {"x": "B T C", "weight": "C", "bias": "C"},
            lambda setting, rng: {"eps": setting.eps},
            switches=("bias",),
            skipped=("mean", "centred", "var", "rstd"),
            long_way=long_way.layernorm_backward,
            torch=lambda torch, x, weight, bias, eps: torch.nn.functional.layer_norm(
                x, weight.shape, weight, bias, eps
            ),
        ),
        Lesson(
            "Softmax cross-entropy",
            layers.cross_entropy_forward,
            layers.cross_entropy_backward,
            {"logits": "B T V"},
            lambda setting, rng: {"targets": setting.targets(rng)},
            switches=("ignored",),
            skipped=("shifted", "exps", "total", "probs", "at_target"),
            long_way=long_way.cross_entropy_backward,
            torch=lambda torch, logits, targets: torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), targets.flatten(), ignore_index=layers.IGNORE_INDEX
            ),
        ),
        Lesson(
            "Embedding",
            layers.embedding_forward,
            layers.embedding_backward,
            {"wte": "V C", "wpe": "P C"},
            lambda setting, rng: {"idx": setting.tokens(rng)},
            switches=("repeated",),
            torch=lambda torch, idx, wte, wpe: wte[idx] + wpe[torch.arange(idx.shape[1])],
        ),
        Lesson(
            "Language-model head",
            layers.head_forward,
            layers.head_backward,
            {"x": "B T C", "weight": "V C"},
            torch=lambda torch, x, weight: torch.nn.functional.linear(x, weight),
        ),
        Lesson(
            "Dropout",
            layers.dropout_forward,
            layers.dropout_backward,
            {"x": "B T C"},
            lambda setting, rng: {
                "mask": dropout_mask(rng, setting.sizes[:3], setting.dropout, np.float64)
            },
            switches=("dropout",),
            torch=lambda torch, x, mask: x if mask is None else x * mask,
        ),
        Lesson(
            "Attention",
            layers.attention_forward,
            layers.attention_backward,
            {"q": "B H T D", "k": "B H S D", "v": "B H S D"},
            attention_arguments,
            switches=("mask", "causal", "dropout"),
            skipped=("largest", "exps", "total"),
            torch=attention_in_torch,
            long_way=long_way.attention_backward,
        ),
        Lesson(
            "MLP",
            transformer.mlp_forward,
            transformer.mlp_backward,
            {"x": "B T C"},
            lambda setting, rng: {"config": setting.model, "ops": layers},
            switches=("bias", "tanh"),
            params="h.0.mlp.",
        ),
        Lesson(
            "Self-attention",
            transformer.self_attention_forward,
            transformer.self_attention_backward,
            {"x": "B T C"},
            self_attention_arguments,
            switches=("bias", "mask", "causal", "dropout"),
            params="h.0.attn.",
        ),
        Lesson(
            "Transformer block",
            transformer.block_forward,
            transformer.block_backward,
            {"x": "B T C"},
            block_arguments,
            switches=("bias", "mask", "causal", "dropout", "tanh"),
            params="h.0.",
        ),
        Lesson(
            "The whole GPT-2",
            transformer.gpt_forward,
            transformer.gpt_backward,
            {},
            gpt_arguments,
            switches=("bias", "dropout", "tanh"),
            params="",
        ),
        # Its rank is D, which differs from the other sizes.
        Lesson(
            "LoRA",
            layers.lora_forward,
            layers.lora_backward,
            {"x": "B T C", "lora_a": "C D", "lora_b": "D V"},
            lora_weights,
            torch=lambda torch, x, weight, bias, lora_a, lora_b: torch.nn.functional.linear(
                x, (weight + lora_a @ lora_b).T, bias
            ),
        ),
    )
}
LESSONS = LESSON_0 | LAYERS


def lesson_named(key, setting=PLAIN):
    """Return a lesson with its arrays, by its name; or by "my_layer.py:swish" that of a pair in a
    file, which runs.

    Texts of --input may follow, as in "my_layer.py:Affine(6 5, 5) --input x=4,6".
    Raises UserError for an unknown name, and as `read_pair`.
    """
    key = str(key)
    path, what = file_and_name(key)
    if key not in LESSONS and not (path and what):
        raise UserError(
            f'there is no layer "{key}": choose one of {", ".join(LESSONS)}, all, or a file '
            "my_layer.py"
        )
    if key in LESSONS:
        return LESSONS[key].at(setting)
    what, *given = what.split(" --input ")
    return read_pair(path, what, tuple(given)).at(setting)


def chosen_lessons(name, setting=PLAIN):
    """Return a list of lessons: that of a name, or all for "all"."""
    return [lesson_named(each, setting) for each in (LESSONS if name == "all" else [name])]


def file_and_name(target):
    """Return the file and the rest of "my_layer.py:swish"; "" and "" if there is no file."""
    match = re.fullmatch(r"(.*?\.py)(?::(.*))?", str(target), re.DOTALL)
    return (match[1], match[2] or "") if match else ("", "")


def is_file(target):
    """Return whether a lesson is called by a file."""
    return bool(file_and_name(target)[0])
