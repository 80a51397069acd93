"""Odd command lines: every flag of the real parsers with odd values, alone and several together."""

import argparse
import functools
import os
import random
import shutil

from torture_parts.running import complaints, run
from torture_parts.runs import TINY

import npgpt.cli.main

NUMBERS = ["1", "2", "0", "-1", "1e400", "nan", "1.5", "", "10_0", "٣", "4000000000", "1e-320",
           *(f"{10**i}" for i in (10, 18, 19, 30))]
STRINGS = ["", "--", "-n=--", "-", ".", "missing", "missing/x", "text.txt", "run", "model", "/dev/null", "/dev/zero",
           os.fsdecode(b"\xff\xfe"), "x" * 4000, "a/" * 2100, "\x1b[31mred", "a\nb", "'", "é✓",
           "model/model.safetensors", "hf:", "hf:bpe.json", "hf:/dev/zero", "no/where", "~", "*", "char", "byte",
           "gpt2", "tokens", "preset.toml"]
NEVER_MUCH = {"max_iters", "epochs", "gradient_accumulation_steps", "max_new_tokens"}     # large values take long
LEFT_OUT = {("study", "open"), ("exercise", "open"), ("gradcheck", "layer")}    # a browser; minutes
GOOD_LINES = {"train": f"--out-dir new/run --corpus text.txt {TINY} --max-iters 2", "eval": "run", "plot": "run",
              "sample": "run --max-new-tokens 2", "export": "run --out new/it", "gradcheck": "linear",
              "data prepare": "text.txt --tokenizer char --out new/it", "data get": "tinyshakespeare",
              "study": "linear", "exercise": "linear gelu_tanh", "score": "run --text be", "look": "run --prompt be"}


@functools.cache
def all_flags():
    """[(words of a command, action of its parser)] of the real parsers."""
    found = []
    for name, module in npgpt.cli.main.COMMANDS.items():
        parser = argparse.ArgumentParser(add_help=False)
        module.add_arguments(parser)
        nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        parsers = [(f"{name} {word}", each) for action in nested for word, each in action.choices.items()]
        found += [(words, action) for words, each in parsers or [(name, parser)] for action in each._actions]
    return [(words, action) for words, action in found
            if action.dest != "help" and (words, action.dest) not in LEFT_OUT]


def odd_values(action):
    """The values of a flag to try, strings; None for a switch."""
    if action.nargs == 0:
        return [None]
    numbers = NUMBERS[:2] if action.dest in NEVER_MUCH else NUMBERS
    return [*(action.choices or ()), *(numbers if action.type in (int, float) else STRINGS)]


def commands(rng, number, folder, made):
    """One flag with an odd value, in turns; after all of them several flags together."""
    shutil.copytree(folder.parent / "commands", folder, dirs_exist_ok=True)
    single = [(words, action, value) for words, action in all_flags() for value in odd_values(action)]
    random.Random(0).shuffle(single)
    words, action, value = single[number % len(single)]
    changes = [(action, value)]
    if number >= len(single):
        others = [other for command, other in all_flags() if command == words and other.option_strings] or [action]
        changes += [(other, rng.choice(odd_values(other))) for other in rng.choices(others, k=rng.randint(1, 5))]
    arguments = GOOD_LINES.get(words, "").split()
    for action, value in changes:
        if not action.option_strings:
            arguments[:1] = [value]
        else:
            flag = rng.choice(action.option_strings)
            arguments += [flag] if value is None else [f"{flag}={value}"] if rng.random() < 0.3 else [flag, value]
    tried = " ".join(action.dest for action, _ in changes)
    return [f"{text} | {tried}" for text in
            complaints(run([*words.split(), *arguments], folder), words, codes=(0, 1, 2, 130))]
