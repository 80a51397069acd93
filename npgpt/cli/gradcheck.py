"""Verify the gradient of every line of every layer by central differences, and by torch if it is installed."""

import dataclasses
import importlib.util
import json
import os
import sys

from npgpt.errors import UserError
from npgpt.study.gradcheck.check import CONSTANT, OK, SHORTCUT, WRONG, check, first_wrong
from npgpt.study.lessons.table import chosen_lessons


def add_arguments(parser):
    parser.add_argument("layer", nargs="?", default="all", help="a layer, or all (the default)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args):
    torch = importlib.util.find_spec("torch") is not None
    checks = []
    for lesson in chosen_lessons(args.layer):
        try:
            found = check(lesson, torch=torch)
        except ImportError:             # the others need only NumPy
            needs = f'{lesson.name} needs SciPy: pip install "npgpt[gelu]"'
            if args.layer != "all":
                raise UserError(needs) from None
            print(f"{needs}; skipped", file=sys.stderr)
            continue
        checks += found
        if not args.json:
            print_table(lesson, found)
    if args.json:
        json.dump([dataclasses.asdict(each) | {"file": os.path.basename(each.file)} for each in checks], sys.stdout,
                  indent=1)
        print()
    else:
        print_summary(checks)
    return 1 if any(each.verdict == WRONG for each in checks) else 0


def print_table(lesson, checks):
    """Print the checks of one layer, one line per variable."""
    print(f"\n{lesson.name}: {lesson.title} ({os.path.basename(checks[0].file)})")
    print(f"  {'variable':<24} {'shape':<14} {'line':>5} {'dv at':>6} {'relative':>9} {'to torch':>9}  verdict")
    for each in checks:
        print(f"  {each.variable:<24} {'x'.join(map(str, each.shape)) or 'number':<14} {each.forward_line:>5} "
              f"{each.backward_line or '':>6} {number(each.relative):>9} "
              f"{number(each.torch):>9}  {each.verdict}" + (f", {each.through}" if each.through else ""))
    wrong = first_wrong(checks)
    if wrong is not None:
        text = wrong.backward_text or f"there is no d{wrong.variable}"
        print(f"  the first wrong line is {wrong.backward_line}: {text}")


def print_summary(checks):
    """Print the number of variables and their verdicts."""
    inputs = [each for each in checks if each.forward_text == "(argument)"]
    lines = [each for each in checks if each.forward_text != "(argument)"]

    def count(verdict):
        return sum(each.verdict == verdict for each in lines)

    print(f"\n{len(lines)} floating intermediates in all forwards: {count(OK)} verified by their own dv, "
          f"{count(SHORTCUT)} as part of a shortcut, {count(CONSTANT)} constant, {count(WRONG)} wrong")
    print(f"{len(inputs)} inputs and parameters, {sum(each.verdict == WRONG for each in inputs)} wrong")
    errors = [each.relative for each in checks if each.relative is not None]
    to_torch = [each.torch for each in checks if each.torch is not None]
    print(f"largest relative error {max(errors):.1e} to the central differences"
          + (f", {max(to_torch):.1e} to torch" if to_torch else ""))


def number(value):
    return "" if value is None else f"{value:.1e}"
