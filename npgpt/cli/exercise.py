"""Write the missing lines of a backward yourself, and have them checked line by line.

Without an argument it lists the exercises. With a layer's name it writes an exercise file, with a
file my_layer.py one for each pair and class in it (see npgpt gradcheck --help);
`check FILE` checks a solution, and `bug` plants a bug to be found. Solutions run in their own
process. So does a layer of your own, but once it was found to be right it runs in this one, too:
that is no sandbox, so use only files that you trust. The progress is kept in progress.json beside
the files.
"""

import argparse
import csv
import io
import json
import os
import secrets
import shlex
from pathlib import Path

from npgpt.checks import check_real, check_whole, writable_file
from npgpt.cli.arguments import add_quiet_argument
from npgpt.errors import UserError, one_line
from npgpt.files import write_atomically
from npgpt.study.exercises.exercise import (
    FOLDER,
    Step,
    bug_layers,
    forward_remark,
    levels_of,
    read_exercise,
    read_title,
    step_named,
)
from npgpt.study.exercises.path import CORE, MORE, write_step
from npgpt.study.exercises.progress import Progress, folder_here
from npgpt.study.gradcheck.check import first_wrong
from npgpt.study.judge.child import TIME_LIMIT, check_layer, run_child
from npgpt.study.judge.grade import Row, grade
from npgpt.study.judge.hints import next_hint, why
from npgpt.study.judge.judge import new_seed
from npgpt.study.judge.report import hunt_text, report_text
from npgpt.study.lessons.own_state import is_generator
from npgpt.study.lessons.table import LESSONS, chosen_lessons, file_and_name, is_file, lesson_named

COLUMNS = ["long way", "level 1", "level 2", "level 3"]
CENTRAL_DIFFERENCE = (
    "The central difference measures a gradient without a backward: "
    "(loss(v + h) - loss(v - h)) / 2h for one entry v and a small h."
)


def add_arguments(parser):
    parser.set_defaults(action=list_exercises)
    forms = "LAYER | my_layer.py | check | bug | grade"
    actions = parser.add_subparsers(dest="layer", metavar=forms)
    first, *others = LESSONS
    write = actions.add_parser(
        first,
        aliases=others,
        prog="npgpt exercise LAYER",
        help="write an exercise on the backward of one of these layers",
    )
    write.set_defaults(action=write_level)
    own = actions.add_parser(
        "file", help="write exercises on the layers in a file: npgpt exercise my_layer.py"
    )
    # `npgpt exercise my_layer.py` is `npgpt exercise file my_layer.py`
    own.set_defaults(action=write_own)
    own.add_argument(
        "file", metavar="my_layer.py", help='or a class in it, "my_layer.py:Affine(W=6 5, b=5)"'
    )
    own.add_argument(
        "name",
        nargs="*",
        metavar="NAME",
        help="one of the layers in the file: swish, for swish_forward; or the names of two "
        "functions",
    )
    add_input_argument(own)
    for each in (write, own):
        each.add_argument(
            "--level",
            metavar="N",
            help="1: one line (the default), 2: some lines, 3: all; long: each "
            "gradient that a fused one skips; step1: the first of them",
        )

    bug = actions.add_parser("bug", help="plant a bug to be found")
    bug.set_defaults(action=write_bug)
    bug.add_argument(
        "layer", nargs="?", choices=bug_layers(), metavar="LAYER", help="by default any"
    )
    bug.add_argument("--seed", type=int, metavar="N", help="which bug; by default any")
    for each in (write, own, bug):
        each.add_argument(
            "--out", metavar="FILE", help=f"the file to write; by default one in {FOLDER}"
        )

    check = actions.add_parser("check", help="check a solution, or ask for a hint")
    check.set_defaults(action=check_file)
    check.add_argument("file", metavar="FILE")
    check.add_argument(
        "--hint",
        action="store_true",
        help="what is wrong, the rule, the formula, at last the line: one hint a call",
    )

    class_ = actions.add_parser(
        "grade",
        help="check the exercises of a class",
        description="Check all exercise files of a class in the same random cases, one after "
        "another, each in a process of its own. That is no sandbox: grade in a container without "
        "network, not as root.",
    )
    class_.set_defaults(action=grade_class)
    class_.add_argument(
        "folder", metavar="FOLDER", help="holds a folder for each student, or is that of one"
    )
    class_.add_argument(
        "--out", metavar="grades.csv", help="also write a row for each student and exercise"
    )
    class_.add_argument(
        "--json",
        metavar="results.json",
        help="also write what an autograder of Gradescope's writes",
    )
    add_quiet_argument(class_)
    for each in (check, class_):
        each.add_argument(
            "--seed", type=int, metavar="N", help="repeat the random cases of another check"
        )
        add_time_limit_argument(each)


def positive_seconds(text):
    check_real("the time limit", seconds := float(text), below=1e6, above=0.0)
    return seconds


def add_time_limit_argument(parser):
    parser.add_argument(
        "--time-limit",
        type=positive_seconds,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=f"how long a solution may run; by default {TIME_LIMIT:g}",
    )


def add_input_argument(parser):
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=SHAPE",
        help="of your file: x=4,5,6 for a shape, n=4, for that of one axis, y=4:0..9 for integers "
        "below 9, t=4,9:onehot for labels, p=4,5:0.1..0.9 for numbers in a range, "
        "mask=4,5:constant for what has no gradient, heads=2 or eps=1e-5 for a value",
    )


def run_exercise(args):
    return 1 if args.action(args) is False else 0


def list_exercises(args):
    progress = Progress(folder_here())
    row = "{:<15} {:<22}{:<22}{:<22}{:<22}{}"
    print(row.format("layer", *COLUMNS, "bugs found"))
    solved = [name for name, entry in progress.entries.items() if "solved" in entry]
    for layer in LESSONS:
        levels = levels_of(layer)
        cells = [
            status(progress.entry(f"{layer} {level}")) * (level in levels) for level in COLUMNS
        ]
        steps = [f"{layer} {level}" in solved for level in levels if level.startswith("step")]
        if any(steps) and cells[0] == "-":
            cells[0] = f"{sum(steps)} of {len(steps)} steps"
        bugs = sum(name.startswith(f"{layer} bug ") for name in solved)
        print(row.format(layer, *cells, bugs or "-"))
    print(f"\nnpgpt learn leads through {len(CORE)} of them, and has {len(MORE)} to practise")


def status(entry):
    """Return an exercise's progress in words: "2026-11-21, 1 hint", "tried", "-"."""
    hints = sum(entry["hints"].values())
    words = entry.get("solved") or ("tried" if entry["tries"] or hints else "-")
    return words + (f", {hints} hint{'s' if hints > 1 else ''}" if hints else "")


def write_level(args):
    """Write the exercise file of a layer and a level, by default the lowest."""
    path = write_exercise(step_named(args.layer, args.level), args.out)
    print(f"{path}: replace each `...` with code; then: npgpt exercise check {path}")


def write_exercise(step, out):
    """Write the file of a `Step`, by default below FOLDER, and return its path."""
    path = Path(out or f"{FOLDER}/{step.file}")
    if os.path.lexists(path):
        raise UserError(f"{path} exists: choose another name with --out, or delete it")
    write_step(step, path)
    return path


def write_own(args):
    pairs = own_pairs(args.file, args.name, args.input, right=True)
    if args.out and len(pairs) > 1:
        names = ", ".join(each.name for each in pairs)
        raise UserError(f"--out is one file: name one of {names} after {args.file}")
    for pair in pairs:
        if kept := [name for name, each in pair.world.saved.items() if not is_generator(each)]:
            raise UserError(
                f"{args.file}: {pair.name} changes {', '.join(kept)}: for an exercise all must be "
                "in the cache, or in the object"
            )
        write_level(argparse.Namespace(layer=pair.key, level=args.level, out=args.out))


def own_pairs(target, names=(), given=(), right=False):
    """Return the layers of a file, or the one that is named, as lessons. given: texts of --input.

    The file is checked in a process with limits before it runs in this one. Raises UserError as
    `check_layer` does, if there is no pair, and with `right` also if a gradient is wrong.
    """
    file, what = file_and_name(target)
    layers = check_layer(file, " ".join(filter(None, [what, *names])), given).layers
    command = f"npgpt gradcheck {shlex.quote(target)}"
    wrong = first_wrong([each for layer in layers for each in layer.lines])
    if wrong and right:
        line = f", line {wrong.backward_line}" if wrong.backward_line else ""
        raise UserError(f"{file}{line}: d{wrong.variable} is not right: see {command}")
    pairs = [lesson_named(each.key) for each in layers if each.key]
    if not pairs:
        raise UserError(f"{file}: nothing could be checked: see {command}")
    found = [each for each in pairs if not each.is_one_function]
    if not found:
        name = pairs[0].name
        needed = f"a pair {name}_forward and {name}_backward is needed here"
        raise UserError(f"{file}: {name} is one function: {needed}")
    return found


def lessons_of(args, right=False):
    """Return the lessons of a file or a name. right: raise UserError if a gradient is wrong."""
    if is_file(args.layer):
        return own_pairs(args.layer, (), args.input, right)
    return chosen_lessons(args.layer)


def write_bug(args):
    number = secrets.randbelow(10000) if args.seed is None else args.seed
    check_whole("--seed", number)
    step = Step(args.layer or bug_layers()[number % len(bug_layers())], f"bug {number}")
    path = write_exercise(step, args.out)
    print(
        f"{path}: one line of {step.lesson.backward.__name__} is wrong: correct it; then: "
        f"npgpt exercise check {path}"
    )


def check_file(args):
    """Judge a learner's file, or give a hint. Return whether it is solved; None after a hint."""
    own, *given = read_title(args.file).layer.split(" --input ")
    if is_file(own):
        own_pairs(own, (), given, right=True)
    exercise = read_exercise(args.file)
    progress = Progress(exercise.path.parent)
    if args.hint:
        print(next_hint(exercise, progress, args.time_limit, seed=args.seed))
        return None
    report, text = judged(exercise, progress, args.time_limit, args.seed)
    print(text)
    if exercise.is_bug:
        return report.right
    if report.is_measured and not any("solved" in entry for entry in progress.entries.values()):
        print(CENTRAL_DIFFERENCE)
    if not report.right:
        seed = f" --seed {report.seed}" if report.case else ""  # other cases may all be right
        print(f"for a hint: npgpt exercise check {exercise.path} --hint{seed}")
    return report.right


def judged(exercise, progress, seconds, seed=None):
    """Judge an exercise and note it in the progress. Return the report, and its text."""
    report = run_child(exercise, seconds, seed)
    progress.tried(exercise.name, report.right)
    title = f"{exercise.path}: {exercise.name}"
    text = report_text(report, title, with_mistakes=False)
    if exercise.is_bug:
        text = hunt_text(report, title)
    said = why(exercise) if report.right else None
    return report, "\n".join(filter(None, [text, said, forward_remark(exercise)]))


def grade_class(args):
    """Grade a class; print a table, and write it as CSV and as JSON for Gradescope."""
    seed = new_seed() if args.seed is None else args.seed
    for flag, path in {"--out": args.out, "--json": args.json}.items():
        if path is not None:
            writable_file(flag, path)
    rows, others = grade(args.folder, seed, args.time_limit)
    said = [f"all in the same random cases (--seed {seed})"]
    said += [f"not judged: {each}" for each in others]
    print(*class_table(rows), "", *map(one_line, said), sep="\n")
    if args.out:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([Row._fields, *map(plain_cells, rows)])
        write_atomically(args.out, text.getvalue().encode(), follow=True)
    if args.json:
        is_class = len({row.student for row in rows}) > 1
        tests = [autograder_test(row, is_class) for row in rows]
        content = json.dumps({"output": "\n".join(said), "tests": tests}, indent=1)
        write_atomically(args.json, content.encode(), follow=True)


def class_table(rows):
    """Return the lines of a table: students by exercises, and how many of them are right."""
    table = {"": [*dict.fromkeys(row.exercise for row in rows)]}
    for row in rows:
        verdicts = {"missing": "-", "wrong": f"wrong {row.line or ''}".rstrip()}
        shown = verdicts.get(row.verdict, row.verdict)
        table.setdefault(row.student, []).append(shown)
    lines = [[student, *cells, str(cells.count("right"))] for student, cells in table.items()]
    lines[0][-1] = "right"
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def plain_cells(row):
    """Return the cells of a row, none of them a formula of a spreadsheet."""
    cells = [*row[:-1], "; ".join(row.remarks)]
    return [f"'{each}" if str(each).startswith(("=", "+", "-", "@")) else each for each in cells]


def autograder_test(row, is_class):
    """Return what Gradescope's autograder reads of a row; is_class: name the student."""
    is_right = row.verdict == "right"
    line = row.line and f"line {row.line}"
    said = filter(None, [row.verdict, line, row.gradient, row.mistake, *row.remarks])
    return {
        "name": f"{row.student}: {row.exercise}" if is_class else row.exercise,
        "score": int(is_right),
        "max_score": 1,
        "status": "passed" if is_right else "failed",
        "output": ", ".join(said),
    }
