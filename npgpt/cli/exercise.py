"""Write the missing lines of a backward yourself, and have them checked line by line.

With a layer's name it writes an exercise, with none it lists them; `check FILE` judges a solution, and `bug` plants a
bug to be found. Solutions run in a process of their own. The progress is kept in progress.json beside the files.
"""

import argparse
import secrets
from pathlib import Path

from npgpt.errors import UserError, one_line
from npgpt.study.bugs import LAYERS, bug_statement, bug_text
from npgpt.study.exercise import (
    BLANKS,
    FOLDER,
    LEVELS,
    blanks_left,
    exercise_lesson,
    level_text,
    read_exercise,
    write_new,
)
from npgpt.study.gradcheck import WRONG
from npgpt.study.hints import LAST, hint, unfinished_key, wrong_key
from npgpt.study.judge import run_child
from npgpt.study.progress import Progress

TIME_LIMIT = 20.0
FLAGS = {"list": set(), "layer": {"level", "out"}, "check": {"hint", "line", "time_limit"}, "bug": {"seed", "out"}}


def add_arguments(parser):
    parser.usage = "npgpt exercise [LAYER [--level N] | check FILE [--hint | --line N] | bug [LAYER] [--seed N]]"
    parser.add_argument("what", nargs="?", metavar="LAYER", help=f"{', '.join(BLANKS)}; or check, or bug")
    parser.add_argument("of", nargs="?", metavar="FILE", help="of check: the file to check; of bug: the layer")
    # No defaults: only what is given is in the arguments, so that a flag which does not belong there can be refused.
    optional = {"default": argparse.SUPPRESS}
    parser.add_argument("--level", type=int, choices=LEVELS, help="1 a line, 2 some lines, 3 the whole; by default 1",
                        **optional)
    parser.add_argument("--out", metavar="FILE", help=f"the file to write; by default one in {FOLDER}", **optional)
    parser.add_argument("--hint", action="store_true", help="of check: one hint, the next one at each further call",
                        **optional)
    parser.add_argument("--line", type=int, metavar="N", help="of check, for a bug: is it in line N?", **optional)
    parser.add_argument("--time-limit", type=float, metavar="SECONDS",
                        help=f"of check: how long the solution may run; by default {TIME_LIMIT:g}", **optional)
    parser.add_argument("--seed", type=int, metavar="N", help="of bug: which one; by default any", **optional)


def run(args):
    action = args.what if args.what in ("check", "bug") else "layer" if args.what else "list"
    for name in sorted({name for names in FLAGS.values() for name in names}):
        if hasattr(args, name) and name not in FLAGS[action]:
            does = " or ".join(sorted(other for other, names in FLAGS.items() if name in names))
            raise UserError(f"--{name.replace('_', '-')} goes with {does.replace('layer', 'a LAYER')} only")
    if action == "layer" and args.of is not None:
        raise UserError(f'give one layer, and not "{args.of}" after it')
    solved = {"list": list_exercises, "layer": write_level, "check": check, "bug": write_bug}[action](args)
    return 1 if solved is False else 0


def list_exercises(args):
    """Print the layers in learning order, and how far the learner has come with each."""
    progress = Progress(FOLDER)
    print(f"{'layer':<16}" + "".join(f"{f'level {level}':<22}" for level in LEVELS) + "bugs found")
    for layer in BLANKS:
        states = [state(progress.entry(f"{layer} level {level}")) for level in LEVELS]
        bugs = sum("solved" in entry for name, entry in progress.entries.items() if name.startswith(f"{layer} bug "))
        print(f"{layer:<16}" + "".join(f"{each:<22}" for each in states) + (f"{bugs}" if bugs else "-"))
    print("\nbegin with: npgpt exercise linear")


def state(entry):
    """A word or two on an exercise: "2026-11-21, 1 hint", "tried", "-"."""
    hints = sum(entry["hints"].values())
    words = entry.get("solved") or ("tried" if entry["tries"] or hints else "-")
    return words + (f", {hints} hint{'s' if hints > 1 else ''}" if hints else "")


def write_level(args):
    """Write the exercise file of a layer and a level."""
    lesson, level = exercise_lesson(args.what), getattr(args, "level", 1)
    path = Path(getattr(args, "out", f"{FOLDER}/{lesson.name}-level{level}.py"))
    write_new(path, level_text(lesson, level, path))
    print(f"{path}: write what stands there as `...`; then: npgpt exercise check {path}")


def write_bug(args):
    """Write an exercise file with a bug in it."""
    seed = getattr(args, "seed", None)
    if seed is None:
        seed = secrets.randbelow(10000)
    if seed < 0:
        raise UserError(f"--seed must not be negative, as {seed} is")
    lesson = exercise_lesson(args.of or LAYERS[seed % len(LAYERS)])
    path = Path(getattr(args, "out", f"{FOLDER}/{lesson.name}-bug{seed}.py"))
    write_new(path, bug_text(lesson, seed, path))
    print(f"{path}: one line of {lesson.backward.__name__} is wrong; answer with: npgpt exercise check {path} --line N")


def check(args):
    """Judge a learner's file, or give a hint. Returns whether it is solved; None after a hint."""
    if args.of is None:
        raise UserError("give the file to check: npgpt exercise check FILE")
    seconds = getattr(args, "time_limit", TIME_LIMIT)
    if not 0 < seconds < 1e6:
        raise UserError(f"--time-limit must be a positive number of seconds, not {seconds:g}")
    exercise = read_exercise(args.of)
    progress = Progress(exercise.path.parent)
    if hasattr(args, "line"):
        if hasattr(args, "hint"):
            raise UserError("--line and --hint are two questions: ask one at a time")
        return check_line(exercise, progress, args.line)
    if hasattr(args, "hint"):
        return give_hint(exercise, progress, seconds)
    left = blanks_left(exercise)
    if left:
        raise UserError(f"{exercise.path}, line {left[0].lineno}: `...` is still to be written"
                        + (f", and {len(left) - 1} more" if left[1:] else ""))
    report = run_child(exercise, seconds)
    progress.tried(exercise.name, report.right)
    print_bug_report(exercise, report) if exercise.is_bug else print_report(exercise, report)
    return report.right


def print_report(exercise, report):
    """Print a line for each gradient with its line in the file, and then what to do."""
    print(f"{exercise.path}: {exercise.name}, {exercise.lesson.backward.__name__}")
    width = max(len(line.variable) for line in report.lines) + 3
    for line in report.lines:
        error = f"error {line.relative:.1e}" if line.relative is not None else ""
        at = f"line {line.line}" if line.line else ""
        print(f"  {at:<9} {f'd{line.variable}':<{width}} {line.verdict:<9} {error}".rstrip())
        if line.verdict == WRONG:
            follows = line.line is not None and line.line > report.first
            unnamed = f"may follow from line {report.first}" if follows else "none of the mistakes that have a name"
            print(f"            {line.diagnosis or unnamed}")
    for note in report.notes:
        print(f"  {note}")
    if report.right:
        print("right: every gradient is what differences say it is")
    elif report.first is not None:
        print(f"wrong: the first mistake shows at line {report.first}; for a hint: npgpt exercise check "
              f"{exercise.path} --hint")
    else:
        print("wrong")


def print_bug_report(exercise, report):
    """Print whether the bug is mended. Where it is not, which results are wrong, but not the line."""
    if report.right:
        print(f"{exercise.path}: mended; every gradient is right")
        return
    wrong = [f"d{line.variable}" for line in report.lines if line.verdict == WRONG and line.variable in report.results]
    right = [f"d{name}" for name in report.results if f"d{name}" not in wrong]
    print(f"{exercise.path}: the bug is still there; wrong: {', '.join(wrong) or 'no result, but what is on the way'}"
          f"{'; right: ' if right else ''}{', '.join(right)}")
    for note in report.notes:
        print(f"  {note}")


def check_line(exercise, progress, number):
    """Say whether a line is the one with the bug. Returns whether it is."""
    if not exercise.is_bug:
        raise UserError(f"{exercise.path} has no bug to be found: check it without --line")
    bug = bug_statement(exercise)
    if bug is None:
        raise UserError(f"{exercise.path}: no line differs from the package's any more: check it without --line")
    first, last, wrong, right = bug
    found = first <= number <= last
    progress.tried(exercise.name, found)
    if found:
        print(f"yes, line {number}:\n    {one_line(wrong)}\nin the package it is:\n    {right}")
    else:
        print(f"no, the bug is not in line {number}")
    return found


def give_hint(exercise, progress, seconds):
    """Print the next hint, on the first line that is missing or wrong."""
    key = unfinished_key(exercise)
    if key is None:
        report = run_child(exercise, seconds)
        if report.right:
            print(f"{exercise.path}: every gradient is right, there is nothing to hint at")
            return
        key = wrong_key(exercise, report)
    number = progress.next_hint(exercise.name, key, LAST)
    print(f"hint {number + 1} of {LAST + 1}: {hint(exercise.lesson, key, number)}")
