"""The mistakes that the page plants in a backward.

They are those of the derivation's notes, and small edits of its lines. Each is run when the page is
built, and planted if a gradient that the backward returns then has wrong numbers.
"""

import ast
import collections
import dataclasses

import numpy as np

from npgpt.study.exercises.exercise import key_of, notes_of
from npgpt.study.exercises.findings import Finding
from npgpt.study.exercises.mutants import mistakes
from npgpt.study.exercises.walk import RESULT, Walk, made_at
from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.truth import Case
from npgpt.study.gradcheck.verdicts import OK
from npgpt.study.judge.blame import UNKNOWN, Blame
from npgpt.study.judge.judge import Judgement
from npgpt.study.judge.outcome import load_solution
from npgpt.study.lessons.setting import PLAIN
from npgpt.study.page.edits import answer_of, edited
from npgpt.study.page.steps import known_truth

TRIES = 10  # edits of a kind that are tried for a line
SEEN = 0.01  # relative: a smaller error is not seen in the pictures


def planted(lesson):
    """Return line, "b57" -> {"text", "answer"}: a wrong text for it, and the judge's answer.

    The backward must be right.
    """
    walk = Walk(Case(lesson.key, PLAIN), lesson)
    first = read_source(lesson.backward).first
    found = {}
    tries = collections.Counter()
    for i, line, kind, sentence, new in candidates(lesson, walk):
        key = f"b{first + line - 1}"
        if key in found or tries[line, kind] >= TRIES:
            continue
        tries[line, kind] += 1
        text = text_of(made_at(new, line))
        if is_seen(walk, i, new):
            answer = answer_to(lesson, first + line - 1, text, sentence)
            if answer["first"] == key:
                found[key] = {"text": text, "answer": answer}
    return found


def candidates(lesson, walk):
    """Yield (number of the statement, line, kind, sentence or "", new statement) of mistakes."""
    small = [*small_edits(walk)]
    notes = notes_of(lesson)
    for i, statement in enumerate(walk.statements):
        if note := notes.get(key_of(statement)):
            sentences = {
                text_of(new): said for number, _, _, said, new in reversed(small) if number == i
            }
            for text, said in [(note.mistake or "", ""), *note.known]:
                new, *more = ast.parse(text).body or [None]
                is_of_line = new and (text == note.mistake or key_of(new) == key_of(statement))
                if is_of_line and not more:
                    ast.copy_location(new, statement)
                    yield i, statement.lineno, text, said or sentences.get(text_of(new), ""), new
    yield from small


def small_edits(walk):
    """Yield the same for each small edit of a line that still assigns the same names."""
    for i, line, kind, sentence, new in mistakes(walk):
        now, before = (key_of(made_at(each, line)) for each in (new, walk.statements[i]))
        if sorted(now.split(", ")) == sorted(before.split(", ")):
            yield i, line, kind, sentence, new


def is_seen(walk, i, new):
    """Return whether numbers of a returned gradient are wrong with a new statement i."""
    true = known_truth(walk.lesson.key).inputs
    after = walk.run_edited(i, {i: new})
    given = walk.lesson.named(after[RESULT]) if after else {}
    errors = [relative_error(given.get(f"d{name}"), value) for name, value in true.items()]
    return SEEN < max(errors) < np.inf  # infinite: it failed, or a shape is wrong


def answer_to(lesson, line, text, sentence):
    """Return the judge's answer to a new text of a line, in the plain case only.

    sentence: what the mistake is, or "".
    """
    exercise, own_lines = edited(lesson, {line: text})
    judgement = Judgement(load_solution(exercise), Case(lesson.key, PLAIN))
    wrong = [each for each in Blame(judgement).blamed([]) if each.verdict != OK]
    wrong.sort(key=lambda each: each.line or 0)
    for each in wrong:
        each.mistakes = [] if each.mistakes == [UNKNOWN] else each.mistakes
    if sentence:
        wrong[0].mistakes = [Finding("mistake", [sentence])]
    report = dataclasses.replace(judgement.report(), lines=wrong, record=judgement.record)
    return answer_of(report, own_lines, [line])


def text_of(statement):
    """Return the text of a statement of a `Walk`."""
    return ast.unparse(statement).replace(f"{RESULT} = ", "return ").replace(", keepdims=False", "")
