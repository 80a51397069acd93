"""All lessons, in learning order: lesson 0, then the layers."""

import importlib

from npgpt.errors import UserError
from npgpt.study.lessons import lesson_0
from npgpt.study.lessons.lesson import Lesson
from npgpt.study.lessons.own import read_pairs
from npgpt.study.lessons.setting import PLAIN

LESSON_0 = {each.name: each for each in (lesson_0.CHAIN, lesson_0.TWICE, lesson_0.BROADCAST, lesson_0.DIFFERENCE)}
# Each name is also that of the file with its record.
LAYERS: dict[str, Lesson] = {name: importlib.import_module(f"npgpt.study.lessons.{name}").LESSON for name in (
    "linear", "gelu_tanh", "gelu_exact", "layernorm", "cross_entropy", "embedding", "head", "dropout", "attention",
    "mlp", "self_attention", "block", "gpt", "lora")}
LESSONS = LESSON_0 | LAYERS


def lesson_named(key, setting=PLAIN):
    """Return a lesson with its arrays, by its name; or by "my_layer.py:swish" that of a pair in a file, which runs.

    Raises UserError for an unknown name, and as `read_pairs`.
    """
    key = str(key)
    path, _, name = key.rpartition(":")
    if key not in LESSONS and not path.endswith(".py"):
        raise UserError(f'there is no layer "{key}": choose one of {", ".join(LESSONS)}, all, or a file my_layer.py')
    return (LESSONS[key] if key in LESSONS else read_pairs(path, name)[0]).at(setting)


def chosen_lessons(name, setting=PLAIN):
    """Return lessons with their arrays in a list: that of a name, all for "all", or those of a file, which runs.

    Raises UserError as `lesson_named`.
    """
    if is_file(name):
        return [pair.at(setting) for pair in read_pairs(name)]
    return [lesson_named(each, setting) for each in (LESSONS if name == "all" else [name])]


def is_file(name):
    """Return whether the name of a lesson is that of a file."""
    return name.endswith(".py")
