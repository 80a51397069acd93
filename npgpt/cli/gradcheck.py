"""Verify the gradient of every line of every layer, or of a layer in your own file, to 30 digits.

Your file needs nothing of npgpt: swish_forward(x, beta) returns the result, or several, and
a cache; swish_backward(dy, cache), with a gradient for each result, returns a gradient for
each input. A function x_loss may return the loss and its gradients. What the inputs are is
said by --input, or in the file by a dict LESSON = {"x": "N D", "w": "D M", "y": "N: 0..M"}.
A gradient is checked if it is called dv for a variable v of the forward; the results always
are. A block (see npgpt train --block) is checked as a whole, by the name block. The code runs
in a process with limits on time, memory and output. That is no sandbox: check only files that
you trust.
"""

import importlib.util
import inspect
import os
import sys
from collections import Counter

from npgpt.cli.arguments import add_quiet_argument
from npgpt.cli.exercise import add_time_limit_argument
from npgpt.errors import UserError, describe, raised_at, remark
from npgpt.study.gradcheck.check import CONSTANT, FUSED, OK, WRONG, best_check, table_text
from npgpt.study.judge.child import check_layer
from npgpt.study.lessons.setting import PLAIN, Setting
from npgpt.study.lessons.table import chosen_lessons, is_file

EXACT = Setting(step=1e-20)     # also the difference of lesson 0 has 40 digits then
FULL = 30                       # digits of a gradient in whose line no constant is rounded


def add_arguments(parser):
    parser.add_argument("layer", nargs="?", default="all", help="a layer, all (the default), or a file my_layer.py")
    parser.add_argument("name", nargs="?", help="one of the layers in the file: swish, for swish_forward")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=SHAPE",
                        help="of your file: x=4,5,6 for a shape, y=4:0..9 for integers below 9, p=4,5:0.1..0.9 for "
                             "numbers in a range, mask=4,5:constant for what has no gradient, eps=1e-5 for a value")
    add_time_limit_argument(parser)
    add_quiet_argument(parser)


def run(args):
    if is_file(args.layer):
        answer = check_layer(args.layer, args.name, args.input, args.time_limit)
        found = answer.layers
        remarks = answer.remarks
    elif args.name or args.input:
        raise UserError(f"{args.layer} is a layer of npgpt: leave {args.name or '--input'} out")
    else:
        found, remarks = checked_lessons(args.layer)
    for each in remarks:
        remark(each, file=sys.stderr)
    for one in found:
        print(f"\n{table_text(one)}")
    checks = sum(found, [])
    print_summary(checks)
    return any(each.verdict == WRONG for each in checks)


def checked_lessons(name):
    """Return the checks of npgpt's own layers, and remarks."""
    found = []
    remarks = {}
    for lesson in chosen_lessons(name, EXACT if importlib.util.find_spec("mpmath") else PLAIN):
        try:
            checks, said = best_check(lesson)
        except ImportError:
            raise UserError(f'{lesson.name} needs SciPy: pip install "npgpt[study]"') from None
        except Exception as error:      # an edited line
            file = inspect.getsourcefile(lesson.backward)
            line = raised_at(error, file)
            place = f" ({os.path.basename(file)}, line {line})" if line else ""
            raise UserError(f"{lesson.name}{place}: {describe(error)}") from None
        found.append(checks)
        remarks[said] = None
    return found, [*filter(None, remarks)]


def print_summary(checks):
    """Print the number of variables and their verdicts, and how exact the gradients are."""
    inputs = [each for each in checks if each.forward_text == "(argument)"]
    count = Counter(each.verdict for each in checks if each.forward_text != "(argument)")
    print(f"\n{sum(count.values())} floating intermediates in all forwards: {count[OK]} verified by their own dv, "
          f"{count[FUSED]} fused, {count[CONSTANT]} constant, {count[WRONG]} wrong")
    print(f"{len(inputs)} inputs and parameters, {sum(each.verdict == WRONG for each in inputs)} wrong")
    right = [each for each in checks if each.verdict == OK]
    found = [each.digits for each in right if each.digits is not None]
    exact = [each for each in found if each >= FULL]
    if exact:
        rounded = len(found) - len(exact)
        but = f", but for {rounded} that a rounded constant in the code limits to {min(found)}"
        print(f"right to {min(exact)} digits or more{but if rounded else ''}")
    elif right:
        print(f"largest relative error {max(each.relative for each in right):.1e} to the central differences")
