"""Hints: what the mistake is, then the forward line to look at, then the rule in words, then the package's own line."""

import ast
import collections
import itertools

from npgpt.study.exercises.exercise import blanks_left, key_of, statements, without_explanation
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.gradcheck.check import WRONG
from npgpt.study.gradcheck.source import backward_tree, names_in, read_source
from npgpt.study.judge.child import run_child
from npgpt.study.judge.explain import UNKNOWN
from npgpt.study.judge.walk import stored_names

PREPARATION = "It only prepares what the next lines need: the same numbers in another shape, or what the cache holds."


def next_hint(exercise, progress, seconds, report=None, seed=None):
    """The next hint on the first line that is wrong, or missing if none is wrong, in one line; the number is noted.

    report: the verdict on the file, if there is one. Otherwise the file is judged, for at most `seconds`, in the random
    cases of `seed`; raises UserError as `run_child` does.
    """
    report = report or run_child(exercise, seconds, seed)
    key = key_in_question(exercise, report)
    if key is None:
        return f"{exercise.path}: every gradient is right, no hint is needed"
    mistake = what_is_wrong(report)
    found = [*filter(None, [mistake]), *hints(exercise.lesson, key)]
    # A mistake of another kind on the same line begins again.
    number = progress.next_hint(exercise.name, f"{key}: {mistake}" if mistake else key, len(found) - 1)
    return f"hint {number + 1} of {len(found)}: {found[number]}"


def what_is_wrong(report):
    """The mistake at the first wrong line in words, or None if there is none or it was not recognised."""
    wrong = [*report.faults, *(line for line in report.lines if line.verdict == WRONG)]
    said = [each.diagnosis for each in wrong if each.line == report.first and each.diagnosis]
    return next((each for each in said if each != UNKNOWN and not each.startswith("may follow")), None)


def key_in_question(exercise, report):
    """The key of the line of the package's backward that is wrong in a learner's, or missing; None if all is right.

    report: the verdict, or None if the file was not judged: then nothing is wrong so far.
    """
    return unfinished_key(exercise) if report is None or report.sound else wrong_key(exercise, report)


def package_line(lesson, key):
    """The line of the package's source file on which a line of the lesson's backward begins, by its key."""
    return read_source(lesson.backward).first + dict(package_statements(lesson))[key].lineno - 1


def package_statements(lesson):
    """(key, statement) of each line of the package's backward, in order, without the one that unpacks the cache."""
    return [(key_of(each), each) for each in statements(backward_tree(lesson)) if ast.unparse(each.value) != "cache"]


def unfinished_key(exercise):
    """The key of the first line of the package's backward that the learner has still to write, or None."""
    left = blanks_left(exercise)
    if not left:
        return None
    notes = read_notes(exercise.lesson.name)
    wanted = [key for key, _ in package_statements(exercise.lesson) if key in notes]
    first = key_of(left[0])
    if first in wanted:
        return first
    if exercise.what != "level 3":      # a bare `...`: the line of this level that assigns nothing
        return next(key for key in wanted if key.startswith("np.") and notes[key].level <= exercise.level)
    written = {key_of(each) for each in exercise.statements if each not in left}
    return next((key for key in wanted if key not in written), wanted[-1])


def wrong_key(exercise, report):
    """The key of the line of the package's backward at which a learner's solution first differs."""
    wanted = package_statements(exercise.lesson)
    first = next((key_of(each) for each in exercise.statements
                  if each.lineno <= (report.first or 0) <= each.end_lineno), None)
    if first in {key for key, _ in wanted} - {"return"}:
        return first
    stored = collections.Counter(name for _, statement in wanted for name in stored_names(statement))
    for key, statement in wanted:
        # gpt_backward assigns dx in five lines: that dx differs does not say in which.
        if any(stored[name] == 1 and name in report.differs for name in stored_names(statement)):
            return key
    # Nothing that has a name differs: it is a line that fills an array, or a result without a name.
    wrong = {line.name for line in report.lines if line.verdict == WRONG}
    for key, statement in reversed(wanted):
        fills = key.endswith("]") or isinstance(statement, ast.Expr)
        if wrong & (names_in(statement) if fills else stored_names(statement).keys()):
            return key
    return wanted[-1][0]


def hints(lesson, key):
    """The three hints on a line of the lesson's backward: the forward's line, the rule, the line itself."""
    lines = read_source(lesson.backward).lines
    statement = dict(package_statements(lesson))[key]
    comments = [list(run) for is_comment, run in itertools.groupby(
        lines[:statement.lineno - 1], lambda line: line.strip().startswith("# ")) if is_comment]
    quoted = [without_explanation(line).strip(" #").partition(", these ")[0] for line in (comments or [[]])[-1]]
    where = f"the forward's line{'s' * (len(quoted) > 1)}: {'; '.join(quoted)}" if quoted else "what the cache holds"
    notes = read_notes(lesson.name)
    return [f"look at {where}", notes[key].hint if key in notes else PREPARATION,
            f"the package writes: {' '.join(ast.unparse(statement).split())}"]
