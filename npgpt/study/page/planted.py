"""The mistakes that the page plants in a backward.

They are those of the derivation's notes, and small edits of its lines. Each is run when the page is
built, and planted if a gradient that the backward returns then has wrong numbers.
"""

import ast
import collections

import numpy as np

from npgpt.study.exercises.exercise import key_of, notes_of, statements
from npgpt.study.exercises.findings import Finding
from npgpt.study.exercises.mutants import mistakes
from npgpt.study.exercises.walk import RESULT, Walk, changed_names, made_at, stored_names
from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.gradcheck.truth import Case
from npgpt.study.gradcheck.verdicts import WRONG
from npgpt.study.judge.shapes import CLOSE
from npgpt.study.lessons.setting import PLAIN
from npgpt.study.page.steps import known_truth, summary

TRIES = 10      # edits of a kind that are tried for a line
SEEN = 0.01     # relative: a smaller error is not seen in the pictures


def planted(lesson):
    """Return line, "b57" -> {"text", "answer"}: a wrong text for it, and what is said of it.

    An answer is that of `Live.judge_edit`. The backward must be right.
    """
    walk = Walk(Case(lesson.key, PLAIN), lesson)
    found = {}
    tries = collections.Counter()
    for i, line, kind, sentence, new in candidates(lesson, walk):
        key = key_at(lesson, line)
        if key in found or tries[line, kind] >= TRIES:
            continue
        tries[line, kind] += 1
        if answer := answer_to(lesson, walk, i, line, new):
            answer["lines"][0]["said"][:0] = [sentence] if sentence else []
            found[key] = {"text": text_of(made_at(new, line)), "answer": answer}
    return found


def candidates(lesson, walk):
    """Yield (number of the statement, line, kind, sentence or "", new statement) of mistakes."""
    small = [*small_edits(walk)]
    notes = notes_of(lesson)
    for i, statement in enumerate(walk.statements):
        if note := notes.get(key_of(statement)):
            sentences = {text_of(new): said for number, _, _, said, new in reversed(small)
                         if number == i}
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


def answer_to(lesson, walk, i, line, new):
    """Return the answer to a new statement i; None if the numbers of no returned gradient are
    wrong.
    """
    known = known_truth(lesson.key)
    ran = []
    after = walk.run(i, {i: new}, seen=ran)
    given = lesson.named(after[RESULT]) if after else {}
    measured = {f"d{name}": true for name, true in known.inputs.items()}
    errors = [relative_error(given.get(name), true) for name, true in measured.items()]
    if not SEEN < max(errors) < np.inf:         # infinite: it failed, or a shape is wrong
        return None
    # Of a variable that is assigned several times, the last gradient is that of the first value.
    measured = {f"d{each.name}": each.true for each in reversed(known.variables)
                if each.true is not None} | measured
    below = [each for statement in walk.statements[i:] for each in statements(statement)]
    wrong = [(each.lineno, name) for each in below for name in stored_names(each)
             if differs(after, measured, name) and not differs(walk.after, measured, name)]
    values = [(name, after[name]) for _, name in wrong] + [*given.items()]
    own = key_at(lesson, line)
    made = made_at(new, line)
    names = [name for name in sorted(changed_names(made) - {RESULT})
             if differs(ran[0], walk.before[i + 1], name)]
    said = str(worst_number(values, measured))
    lines = [{"line": own, "name": (names or [key_of(made)])[0], "verdict": WRONG, "said": [said]}]
    lines += [{"line": key_at(lesson, at), "name": name, "verdict": WRONG, "said": []}
              for at, name in wrong if at != line]
    arrays = [{"name": name, "given": summary(ran[0][name])} for name in names]
    return {"verdict": "wrong", "text": f"the first wrong line is {own[1:]}", "first": own,
            "lines": lines, "arrays": {own: arrays}}


def differs(names, true, name):
    """Return whether the array of a name is not the true one; False if there is none."""
    is_known = name in true and is_floating(names.get(name))
    return is_known and relative_error(names[name], true[name]) > CLOSE


def worst_number(values, measured):
    """Return a `Finding` of the worst number of the first wrong gradient, and its central
    difference.

    values: (name, value) in the order of the lines; measured: name -> central differences.
    """
    name, value = next((name, value) for name, value in values if name in measured
                       and SEEN < relative_error(value, measured[name]) < np.inf)
    true = measured[name]
    at = np.unravel_index(np.abs(value - true).argmax(), np.shape(true))
    place = f"{name}[{', '.join(map(str, at))}]" if at else name
    ratio = f", ratio {value[at] / true[at] + 0.0:.5g}" if true[at] else ""     # + 0.0: no "-0"
    return Finding("worst", [place, f"{value[at] + 0.0:.5g}", f"{true[at]:.5g}", ratio])


def key_at(lesson, line):
    """Return the page's name for a line of a `Walk`."""
    return f"b{read_source(lesson.backward).first + line - 1}"


def text_of(statement):
    """Return the text of a statement of a `Walk`."""
    return ast.unparse(statement).replace(f"{RESULT} = ", "return ").replace(", keepdims=False", "")
