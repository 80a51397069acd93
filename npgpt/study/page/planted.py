"""The mistakes that the page can plant without a server, and what the judge says of them; tools/plant.py makes them."""

import hashlib
import inspect
import json
from pathlib import Path

from npgpt import layers
from npgpt.model import transformer
from npgpt.study.gradcheck.check import WRONG
from npgpt.study.gradcheck.source import read_source

FILE = Path(__file__).with_name("planted.json")


def planted(lesson, steps):
    """Return line, "b57" -> [{"text", "answer"}, …]: wrong texts for it, and the answers of `Live.judge_edit`.

    {} if the lesson's code is not the code that was judged. An array that is in `steps` is given by its index there.
    """
    found = json.loads(FILE.read_text(encoding="utf-8")).get(lesson.key, {"digest": ""})
    if found["digest"] != digest(lesson):
        return {}
    empty, places = {"verdict": "wrong", "first": None, "lines": [], "arrays": {}}, places_in(steps)
    for entry in (entry for texts in found["lines"].values() for entry in texts):
        answer = entry["answer"] = empty | entry["answer"]
        answer["lines"] = [{"verdict": WRONG, "said": []} | each for each in answer["lines"]]
        for array in (each for arrays in answer["arrays"].values() for each in arrays):
            array["given"] = places[array["given"]] if isinstance(array["given"], str) else array["given"]
    return found["lines"]


def places_in(steps):
    """Return "b57 dx" -> the index of an array on the page, that of the last time that the line ran."""
    return {f"{step['line']} {name}": i for step in steps.steps for name, i in step["arrays"]}


def digest(lesson):
    """Return a digest of all that the answers depend on: a lesson's functions, those that they call, their lines."""
    called = [each for module in (layers, transformer) for each in vars(module).values() if inspect.isfunction(each)]
    sources = map(read_source, [lesson.forward, lesson.backward, *(called if lesson.is_composite else [])])
    return hashlib.sha256(repr([(each.first, each.lines) for each in sources]).encode()).hexdigest()[:12]
