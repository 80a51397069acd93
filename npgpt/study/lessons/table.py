"""All lessons, in learning order: lesson 0, then the layers."""

from npgpt.errors import UserError
from npgpt.study.lessons import (
    attention,
    block,
    cross_entropy,
    dropout,
    embedding,
    gelu_exact,
    gelu_tanh,
    gpt,
    head,
    layernorm,
    lesson_0,
    linear,
    lora,
    mlp,
    self_attention,
)
from npgpt.study.lessons.setting import PLAIN

LESSON_0 = {each.name: each for each in (lesson_0.CHAIN, lesson_0.TWICE, lesson_0.BROADCAST, lesson_0.DIFFERENCE)}
LAYERS = {each.LESSON.name: each.LESSON for each in (
    linear, gelu_tanh, gelu_exact, layernorm, cross_entropy, embedding, head, dropout, attention, mlp, self_attention,
    block, gpt, lora)}
LESSONS = LESSON_0 | LAYERS


def lesson_named(name, setting=PLAIN):
    """Return a lesson with its arrays. Raises UserError for an unknown name."""
    if name not in LESSONS:
        raise UserError(f'there is no layer "{name}": choose one of {", ".join(LESSONS)}, or all')
    return LESSONS[name].at(setting)


def chosen_lessons(name):
    """Return the lesson of a name in a list, or all for "all", with arrays. Raises UserError for an unknown name."""
    return [lesson_named(each) for each in (LESSONS if name == "all" else [name])]
