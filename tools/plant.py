"""Plant mistakes in the lines of each lesson's backward, and store what the judge says of them, for the static page.

    python tools/plant.py [LESSON …]

It writes npgpt/study/page/planted.json; with names of lessons only these are made anew. A line has up to three texts
that are wrong in the plain case, of its derivation, then of plant.txt; the first should give the right shapes.
"""

import ast
import json
import re
import sys
from pathlib import Path
from unittest import mock

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.gradcheck.check import WRONG
from npgpt.study.gradcheck.source import backward_tree
from npgpt.study.judge.judge import judge
from npgpt.study.judge.names import UNKNOWN
from npgpt.study.judge.outcome import load_solution
from npgpt.study.lessons.table import LESSONS, lesson_named
from npgpt.study.page import live
from npgpt.study.page.edits import typed_statements
from npgpt.study.page.planted import FILE, digest, places_in
from npgpt.study.page.steps import Steps, known_truth

SEED = 1                # of the judge's random cases


def candidates(lesson):
    """Return line, "b57" -> texts of the derivation and of plant.txt for it."""
    notes, found, file = read_notes(lesson), {}, Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    texts = {each.partition("\n")[0]: [text.replace("\n    ", "\n") for text in re.split(r"\n {4}(?! )", each)[1:]]
             for each in re.split(r"\n(?=\S)", file.rstrip())}
    known = [text for note in notes.values() for text, _ in note.known]
    for line, each in zip(typed_statements(lesson), statements(backward_tree(lesson)), strict=True):
        key = key_of(each)
        own = [text for text in known if [*map(key_of, ast.parse(text).body)] == [key]]        # not of several lines
        own = [key in notes and notes[key].mistake, *own, *texts.get(f"{lesson.key}: {key}", [])]
        found[line] = [*dict.fromkeys(filter(None, own))]
    return found


def answer(lesson, line, text):
    """Return what the live page answers to a line with another text; the judge runs in this process."""
    def judged(each, _):
        return judge(each.layer, load_solution(each), SEED)

    with mock.patch.object(live, "run_child", judged):
        return live.Live("", *[None] * 3).judge_edit(
            {"layer": lesson.name, "level": 0, "edits": {line: text}, "shown": []})


def stored(answer, line, places, is_first):
    """Return what `planted` needs of an answer: of the first all, of others only the words; places: see `places_of`."""
    wrong = {each["line"]: each for each in reversed(answer["lines"]) if each["verdict"] == WRONG}
    words = [each for each in wrong.get(answer["first"], {"said": []})["said"] if each != str(UNKNOWN)][:2]
    if not is_first:
        first, *faults = answer["text"].split("\n")
        return {"text": "\n".join([first] * (answer["first"] != line) + (faults or words[:1]))}
    arrays = [{"name": each["name"], "given": places.get(json.dumps(each["given"]), each["given"])}
              for each in wrong_arrays(answer, line)[:2]]
    lines = [{"line": each["line"], "name": each["name"]} | (
        {"said": words} if each["line"] == answer["first"] else {}) for each in reversed(wrong.values())]
    found = {"text": answer["text"], "first": answer["first"], "lines": lines, "arrays": arrays and {line: arrays}}
    return {name: value for name, value in found.items() if value}


def wrong_arrays(answer, line):
    """Return the arrays of a line in an answer that are not the true ones."""
    return [each for each in answer["arrays"].get(line, []) if each["given"] and each["true"]
            and each["given"]["values"] != each["true"]["values"]]


def places_of(lesson):
    """Return what the page shows of an array, as JSON -> its place, "b57 dx"; an equal array is stored by it."""
    steps = Steps(lesson, known_truth(lesson.key), live.gradient_lines(lesson.key)[0])
    return {json.dumps(steps.arrays[i]): place for place, i in reversed(places_in(steps).items())}


def entries(lesson):
    """Return line, "b57" -> the wrong texts and answers that are stored."""
    found, places = {}, places_of(lesson)
    for line, texts in candidates(lesson).items():
        said = {text: answer(lesson, line, text) for text in texts}
        wrong = [text for text in texts if said[text]["verdict"] == "wrong" and "--seed" not in said[text]["text"]]
        # First one whose array is wrong, and its line the first wrong one: it shows the most.
        wrong = sorted(wrong, key=lambda text: (not wrong_arrays(said[text], line), said[text]["first"] != line))[:3]
        print(f"{lesson.name} {line}:", *wrong, sep="\n    ")
        found[line] = [{"text": each, "answer": stored(said[each], line, places, each == wrong[0])} for each in wrong]
    return {line: texts for line, texts in found.items() if texts}


if __name__ == "__main__":
    known = json.loads(FILE.read_text(encoding="utf-8")) if sys.argv[1:] else {}
    known |= {name: {"digest": digest(lesson_named(name)), "lines": entries(lesson_named(name))}
              for name in sys.argv[1:] or LESSONS}
    text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, separators=(",", ":"))
    FILE.write_text(re.sub(r'(?<=[\[,])(?=\{"text":)', "\n", text) + "\n", encoding="utf-8")
