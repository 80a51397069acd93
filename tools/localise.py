"""Does the gradient check report the right line? Run it on every mutant of every backward of the lessons.

    python tools/localise.py [LAYER] [--verbose]

For each mutant, compare the first line that the check calls wrong with the line of the mistake: "exactly" (or the code
raised an exception there), the "next" line that has a gradient (the mistake is in a line without one, such as
`dot = …`), or "elsewhere". Mutants that the check does not see are equivalent, or in a branch that the lesson does not
take, such as a bias that is None.
"""

import argparse
import collections
import re
import signal
import sys
import traceback

from mutants import mutants, swapped_in

from npgpt.study.gradcheck.check import check_lesson, first_wrong
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.lessons.table import chosen_lessons

PLACES = ("exactly", "next", "elsewhere", "unseen")
TIME_LIMIT = 5      # seconds; a mutant may loop forever


def where(lesson, mutant, known):
    """Return the line of the backward that the check, or an exception, reports for a mutant; None if there is none."""
    signal.alarm(TIME_LIMIT)
    try:
        with swapped_in(mutant, lesson.backward):
            found = first_wrong(check_lesson(lesson, known=known))
        return found and (found.backward_line or 0)
    except Exception as error:
        source = read_source(lesson.backward)
        frames = [frame.lineno for frame in traceback.extract_tb((error.__cause__ or error).__traceback__)
                  if frame.filename == source.file and 0 < frame.lineno - source.first < len(source.lines)]
        return frames[-1] if frames else 0
    finally:
        signal.alarm(0)


def place(lesson, mutant, line):
    """Return "exactly", "next" or "elsewhere"; "unseen" if line is None."""
    if line is None:
        return "unseen"
    statements = read_source(lesson.backward).statements
    made_in = next((i for i, each in enumerate(statements) if each.first <= mutant.line <= each.last), None)
    if made_in is None:
        return "elsewhere"
    if statements[made_in].first <= line <= statements[made_in].last:
        return "exactly"
    return "next" if any(each.first <= line <= each.last for each in users(lesson, made_in)) else "elsewhere"


def users(lesson, i):
    """Return the statements with a gradient that use the result of statement i, directly or through others without."""
    statements, forward = read_source(lesson.backward).statements, read_source(lesson.forward).statements
    gradients = {f"d{name}" for name in lesson.inputs} | {f"d{name}" for each in forward for name in each.targets}
    names, found = set(statements[i].targets), []
    for statement in statements[i + 1:]:
        if any(re.search(rf"\b{name}\b", statement.text) for name in names):
            if gradients & set(statement.targets) or not statement.targets:
                found.append(statement)
            else:
                names |= set(statement.targets)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer", nargs="?", default="all")
    parser.add_argument("--verbose", action="store_true", help="print each mutant found elsewhere, or not at all")
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("too long")))
    total = collections.Counter()
    for lesson in chosen_lessons(args.layer):
        known, counts = truth(lesson), collections.Counter()
        for mutant in mutants(lesson.backward):
            line = where(lesson, mutant, known)
            verdict = place(lesson, mutant, line)
            counts[verdict] += 1
            if args.verbose and verdict in ("elsewhere", "unseen"):
                print(f"  {verdict} ({line}) {mutant.function}:{mutant.line}: {mutant.original}  ->  {mutant.mutated}")
        total += counts
        print(f"{lesson.name:<16} " + ", ".join(f"{counts[each]} {each}" for each in PLACES))
    seen = sum(total.values()) - total["unseen"]
    print(f"{sum(total.values())} mutants, {seen} seen: {total['exactly']} exactly ({total['exactly'] / seen:.1%}), "
          f"{total['next']} at the next line with a gradient, {total['elsewhere']} elsewhere; "
          f"{total['unseen']} not seen")


if __name__ == "__main__":
    sys.exit(main())
