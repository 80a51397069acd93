"""Verify the gradient of every line of every layer, or of a layer in your own file, to 30 digits.

Your file needs nothing of npgpt. It may have functions: swish_forward(x, beta) returns the result,
or several, and perhaps a cache; swish_backward(dy, cache) takes a gradient for each result, and
returns one for each input. Or classes, "my_layer.py:RMSNorm(6)" with arguments as in Python, arrays
by their shapes (W=6 5): forward(self, x) keeps what backward(self, dy) needs in self, and the
gradient of a weight self.w is an attribute dw, a local variable, or in a dict grads. Or a function
x_loss that returns the loss and its gradients. Without a name all are checked, or listed with what
they need. Declare inputs with --input, or in the file with a dict
LESSON = {"x": "N D", "w": "D M", "y": "N: 0..M"}.
The gradient of a variable v is found as dv, d_v, grad_v, v_grad, dL_dv or delta_v. A block (see
npgpt train --block) is checked as a whole, by the name block. The code runs in a process with
limits on time, memory and output. That is no sandbox: check only files that you trust.
"""

import importlib.util
import inspect
import os
import sys
from collections import Counter

from npgpt.cli.arguments import add_quiet_argument
from npgpt.cli.exercise import add_input_argument, add_time_limit_argument
from npgpt.errors import UserError, describe, raised_at, remark
from npgpt.study.gradcheck.check import best_check
from npgpt.study.gradcheck.own import Verified
from npgpt.study.gradcheck.verdicts import ARGUMENT, CONSTANT, FUSED, OK, ROUNDED, UNNAMED, WRONG
from npgpt.study.judge.child import check_layer
from npgpt.study.lessons.setting import PLAIN, Setting
from npgpt.study.lessons.table import chosen_lessons, file_and_name

EXACT = Setting(step=1e-20)  # also the difference of lesson 0 has 40 digits then
FULL = 30  # digits of a gradient in whose line no constant is rounded


def add_arguments(parser):
    parser.add_argument(
        "layer",
        nargs="?",
        default="all",
        metavar="LAYER",
        help="a layer, all (the default), a file my_layer.py, or a class in it with the arguments "
        'of its constructor: "my_layer.py:Affine(W=6 5, b=5)"',
    )
    parser.add_argument(
        "name",
        nargs="*",
        metavar="NAME",
        help="one of the layers in the file: swish, for swish_forward; or the names of a forward "
        "and a backward",
    )
    add_input_argument(parser)
    add_time_limit_argument(parser)
    add_quiet_argument(parser)


def run_gradcheck(args):
    file, what = file_and_name(args.layer)
    answer = None
    if file:
        what = " ".join(filter(None, [what, *args.name]))
        answer = check_layer(file, what, args.input, args.time_limit)
        found = answer.layers
    elif args.name or args.input:
        raise UserError(
            f"{args.layer} is a layer of npgpt: leave {' '.join(args.name) or '--input'} out"
        )
    else:
        found = checked_lessons(args.layer)
    for each in dict.fromkeys(one.measured for one in found if one.measured):
        remark(each, file=sys.stderr)
    for one in found:
        print(f"\n{one}")
    if found:
        print_summary(sum((one.lines for one in found), []))
    if answer and answer.left:
        print(f"\nnot checked in {file}:", *answer.left, sep="\n  npgpt gradcheck ")
    if answer and (answer.failed or not found):
        what = "nothing could be checked: declare the inputs, as in --input x=4,5"
        raise UserError(f"{file}: {'not all of it could be checked' if found else what}")
    return not all(one.right for one in found)


def checked_lessons(name):
    """Return the `Verified` of npgpt's own layers."""
    found = []
    for lesson in chosen_lessons(name, EXACT if importlib.util.find_spec("mpmath") else PLAIN):
        try:
            checks, _, said = best_check(lesson)
        except ImportError:
            raise UserError(f'{lesson.name} needs SciPy: pip install "npgpt[study]"') from None
        except Exception as error:  # an edited line
            file = inspect.getsourcefile(lesson.backward)
            line = raised_at(error, file)
            place = f" ({os.path.basename(file)}, line {line})" if line else ""
            raise UserError(f"{lesson.name}{place}: {describe(error)}") from None
        found.append(Verified(checks, measured=said))
    return found


def print_summary(checks):
    """Print the number of variables and their verdicts, and how exact the gradients are."""
    inputs = [each for each in checks if each.forward_text == ARGUMENT]
    count = Counter(each.verdict for each in checks if each.forward_text != ARGUMENT)
    words = "fused" if count[FUSED] else "without a dv"
    print(
        f"\nfloating intermediates in all forwards: {sum(count.values())}, of which {count[OK]} "
        f"verified by their own dv, {count[FUSED] + count[UNNAMED]} {words}, {count[CONSTANT]} "
        f"constant, {count[WRONG]} wrong"
    )
    print(
        f"inputs and parameters: {len(inputs)}, of which "
        f"{sum(each.verdict == WRONG for each in inputs)} wrong"
    )
    right = [each for each in checks if each.verdict in (OK, ROUNDED)]
    if any(each.verdict == WRONG for each in checks):
        return
    found = [each.digits for each in right if each.digits is not None]
    exact = [each for each in found if each >= FULL]
    if exact:
        rounded = len(found) - len(exact)
        but = f", but for {rounded} that a rounded number in the code limits to {min(found)}"
        print(f"right to {min(exact)} digits or more{but if rounded else ''}")
    elif right:
        largest = max(each.relative for each in right)
        print(f"largest relative error {largest:.1e} to the central differences")
