"""The mistakes that the page plants in a backward: those of the derivation's notes, then small edits of its lines.

Each is run when the page is built, and planted if a gradient that the backward returns then has wrong numbers.
"""

import ast
import collections

import numpy as np

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.exercises.findings import Finding
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.exercises.repairs import mistakes
from npgpt.study.exercises.walk import RESULT, changed_names, made_at, package_walk
from npgpt.study.gradcheck.check import WRONG, relative_error
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.gradcheck.truth import Case
from npgpt.study.judge.shapes import CLOSE
from npgpt.study.lessons.setting import PLAIN
from npgpt.study.page.steps import known_truth, summary

MOST = 3                # mistakes for a line: one to plant, and two more to choose from in "Predict"
TRIES = 10              # edits of a kind that are tried for a line; the first that fits is taken
SEEN = 0.01             # relative: a smaller error is not seen in the pictures
# The kinds of small edits, the most instructive first. Those of SHAPES may also give a wrong shape, or fail.
SHAPES = ["matmul order", "transposed", "not transposed"]
KINDS = ["factor", "term", "division", "reduction", *SHAPES, "uses", "swapped", "power", "multiplied", "divided",
         "axis", "call", "instead", "term sign", "uses part", "sign", "results order", "part sign"]


def planted(lesson, entries):
    """Return line, "b57" -> [{"text", "answer"}, …]: wrong texts for it, and answers as those of `Live.judge_edit`.

    Only the first is planted: the others are choices in "Predict". entries: of the page's lines. The lesson's backward
    must be right.
    """
    walk, found, tries = package_walk(Case(lesson.key, PLAIN)), {}, collections.Counter()
    for i, line, kind, sentence, new in candidates(lesson, walk):
        key = key_at(lesson, line)
        made = found.setdefault(key, {})        # the last of what is said -> {"text", "said", "answer"}
        has_enough = len(made) >= MOST and any(each["answer"] for each in made.values())
        if has_enough or tries[key, kind] >= TRIES:
            continue
        tries[key, kind] += 1
        answer = answer_to(lesson, walk, entries, i, line, new, sentence)
        if answer or kind in SHAPES:
            said = answer["lines"][0]["said"] if answer else [sentence]
            made.setdefault(said[-1], {"text": text_of(made_at(new, line)), "said": said, "answer": answer})
            tries[key, kind] = TRIES
    return {key: chosen(made.values()) for key, made in found.items() if any(each["answer"] for each in made.values())}


def chosen(made):
    """Return the mistakes that the page stores for a line: of the first the whole answer, of the others the words."""
    first, *others = sorted(made, key=lambda each: not each["answer"])[:MOST]
    return [{"text": first["text"], "answer": first["answer"]},
            *({"text": each["text"], "answer": {"text": "; ".join(each["said"])}} for each in others)]


def candidates(lesson, walk):
    """Yield (number of the statement, line, kind, sentence or "", new statement) for each mistake in a `Walk`."""
    small = sorted(small_edits(walk), key=lambda each: KINDS.index(each[2]))
    notes = read_notes(lesson)
    for i, statement in enumerate(walk.statements):
        note = notes.get(key_of(statement))
        if note is None:
            continue
        sentences = {text_of(new): said for number, _, _, said, new in reversed(small) if number == i}
        known = [(text, said) for text, said in note.known if key_of(ast.parse(text).body[0]) == key_of(statement)]
        for text, said in [(note.mistake, ""), *known] if note.mistake else known:
            new, *more = ast.parse(text).body
            if not more:
                ast.copy_location(new, statement)
                yield i, statement.lineno, text, said or sentences.get(text_of(new), ""), new
    yield from small


def small_edits(walk):
    """Yield the same for each small edit of a line that still assigns the same names."""
    for i, line, finding, new in mistakes(walk):
        of_part = finding.kind == "uses" and not finding.operands[1].isidentifier()
        kind = "uses part" if of_part else finding.kind
        if kind in KINDS and targets(new, line) == targets(walk.statements[i], line):
            yield i, line, kind, str(finding), new


def targets(statement, line):
    """Return what a line of a statement assigns, sorted texts."""
    return sorted(key_of(made_at(statement, line)).split(", "))


def answer_to(lesson, walk, entries, i, line, new, said):
    """Return the answer to a new statement i, or None if no returned gradient has the right shape and wrong numbers."""
    known, ran = known_truth(lesson.key), []
    after = walk.run(i, {i: new}, ran)
    given = lesson.named(after[RESULT]) if after else {}
    errors = [relative_error(given.get(f"d{name}"), true) for name, true in known.inputs.items()]
    if not SEEN < max(errors) < np.inf:
        return None
    own, wrong, arrays = key_at(lesson, line), {}, []
    for statement, now, true in zip([new, *walk.statements[i + 1:]], ran, walk.before[i + 1:], strict=False):
        for each in statements(statement):
            key = key_at(lesson, each.lineno)
            checked = [entry["name"] for entry in entries.get(key, ()) if entry["verdict"]]
            for name in sorted(changed_names(each) - {RESULT}):
                if not is_floating(now.get(name)) or relative_error(now[name], true.get(name)) <= CLOSE:
                    continue
                if key == own:
                    arrays.append({"name": name, "given": summary(now[name])})
                if name in checked:
                    wrong[key, name] = now[name]
    lines = [{"line": key, "name": name, "verdict": WRONG, "said": []} for key, name in wrong]
    if own not in {key for key, _ in wrong}:        # it computes no gradient
        lines.insert(0, {"line": own, "name": key_of(made_at(new, line)), "verdict": WRONG, "said": []})
    worst = worst_number(known, [*((name, value) for (_, name), value in wrong.items()), *given.items()])
    lines[0]["said"] = [*filter(None, [said]), str(worst)]
    return {"verdict": "wrong", "text": f"the first wrong line is {own[1:]}", "first": own, "lines": lines,
            "arrays": {own: arrays}}


def worst_number(known, given):
    """Return a `Finding` of the worst number of the first wrong gradient whose central differences are known.

    given: (name, value) of gradients; one of them is wrong.
    """
    count = collections.Counter(each.name for each in known.variables)
    pairs = zip(known.variables, known.gradients, strict=True)
    measured = {f"d{each.name}": true for each, true in pairs if count[each.name] == 1 and true is not None}
    measured |= {f"d{name}": true for name, true in known.inputs.items()}
    name, value = next((name, value) for name, value in given if name in measured
                       and SEEN < relative_error(value, measured[name]) < np.inf)
    true = measured[name]
    at = np.unravel_index(np.abs(value - true).argmax(), np.shape(true))
    place = f"{name}[{', '.join(map(str, at))}]" if at else name
    ratio = f", ratio {value[at] / true[at] + 0.0:.5g}" if true[at] else ""         # + 0.0: no "-0"
    return Finding("worst", [place, f"{value[at] + 0.0:.5g}", f"{true[at]:.5g}", ratio])


def key_at(lesson, line):
    """Return the page's name for a line of a `Walk`."""
    return f"b{read_source(lesson.backward).first + line - 1}"


def text_of(statement):
    """Return the text of a statement of a `Walk`."""
    return ast.unparse(statement).replace(f"{RESULT} = ", "return ").replace(", keepdims=False", "")
