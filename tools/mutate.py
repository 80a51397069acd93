"""Mutation test: would the tests notice if a line of a backward were wrong?

    python tools/mutate.py                                  every line of every backward, a minute or two
    python tools/mutate.py linear_backward head_backward    only these
    python tools/mutate.py --json mutants.json              everything, for a program to read

It makes small wrong versions ("mutants") of every line of every `*_backward`, one mistake each: a sign flipped, a term
dropped, a wrong axis, a neighbouring variable, … Each is put in the function's place and the tests that call the
function are run, until one fails. A mutant that no test fails on is either a gap in the tests, or no mistake at all: a
line that computes the same. Those stand in `EQUIVALENT`, each with the reason. Exit code 1 if a mutant is missed.

Needs the extra `test`, and a system with fork. Each mutant lives in a forked child, which shares the imported torch and
the collected tests with its parent, and takes the mistake with it when it ends.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import gc
import importlib
import inspect
import itertools
import json
import os
import pkgutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
TESTS = ["tests/layers", "tests/engine/test_scatter.py", "tests/test_api.py", "tests/model/test_dtype.py"]
LEFT_OUT = "overfits or trains or fresh"    # these take long and only see a loss, which a wrong gradient can lower
TIME_LIMIT = 60         # seconds; a mutant may loop for ever, which counts as caught
ROUNDING = 32           # units in the last place by which an equivalent mutant, adding in another order, may differ


@dataclasses.dataclass
class Mutant:
    """One function with one mistake in it. `line` is the line's number in the file, `code` takes `__code__`'s place."""

    function: str
    file: str
    line: int
    kind: str
    original: str
    mutated: str
    code: CodeType


def mutants(function):
    """Every mutant of a function, each once: an iterator of `Mutant`."""
    function = inspect.unwrap(function)
    lines, first_line = inspect.getsourcelines(function)
    file = inspect.getsourcefile(function)
    tree = ast.increment_lineno(ast.parse("".join(lines)).body[0], first_line - 1)
    tree.decorator_list = []
    if ast.get_docstring(tree) is not None:
        del tree.body[0]
    tree = FoldNegativeConstants().visit(tree)
    neighbours = Neighbours(tree, function)
    seen = {ast.unparse(tree)}
    for kind, wrong, (before, after) in variations(tree, neighbours):
        text = ast.unparse(wrong)
        if text not in seen:
            seen.add(text)
            yield Mutant(function.__name__, file, before.lineno, kind, first_line_of(before), first_line_of(after),
                         compiled(wrong, file))


def variations(node, neighbours):
    """(kind, node with one mistake in it, (statement, statement with the mistake)), for the node and all below it."""
    for kind, wrong in mistakes(node, neighbours):
        yield kind, wrong, (node, wrong) if isinstance(node, ast.stmt) else None
    for field, child in ast.iter_fields(node):
        parts = child if isinstance(child, list) else [child]
        for i, part in enumerate(parts):
            if isinstance(part, ast.AST):
                for kind, wrong_part, statement in variations(part, neighbours):
                    wrong_parts = [*parts[:i], wrong_part, *parts[i + 1:]]
                    wrong = changed(node, **{field: wrong_parts if isinstance(child, list) else wrong_part})
                    yield kind, wrong, statement or ((node, wrong) if isinstance(node, ast.stmt) else None)


def mistakes(node, neighbours):
    """(kind, replacement) for each small mistake that can be made at this very node."""
    if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
        yield "dropped statement", ast.copy_location(ast.Pass(), node)
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            yield "sign", changed(node, value=negative(value))
            if isinstance(target, ast.Subscript) or target.id in neighbours.before(node.lineno):
                yield "+= for =", ast.copy_location(ast.AugAssign(target, ast.Add(), value), node)
        case ast.AugAssign(target, op, value):
            yield "= for += or -=", ast.copy_location(ast.Assign([target], value), node)
            yield "sign", changed(node, op=ast.Sub() if isinstance(op, ast.Add) else ast.Add())
        case ast.If(test):
            yield "condition", changed(node, test=ast.UnaryOp(ast.Not(), test))
            yield "condition", changed(node, test=ast.Constant(True))
        case ast.IfExp(test, body, orelse):
            yield "condition", changed(node, body=orelse, orelse=body)
            yield "condition", body
            yield "condition", orelse
            yield "sign", changed(node, body=negative(body))
            yield "sign", changed(node, orelse=negative(orelse))
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            added = isinstance(op, ast.Add)
            yield "sign", changed(node, op=ast.Sub() if added else ast.Add())
            yield "sign", changed(node, left=negative(left))
            yield "dropped term", left
            yield "dropped term", right if added else negative(right)
        case ast.BinOp(left, ast.Mult() | ast.Div() | ast.MatMult() as op, right):
            yield "dropped factor", left
            yield "dropped factor", right
            yield "wrong operator", changed(node, op=ast.Div() if isinstance(op, ast.Mult) else ast.Mult())
            if isinstance(op, ast.MatMult):
                yield "swapped", changed(node, left=right, right=left)
                yield "transposed operand", changed(node, left=transposed(left))
                yield "transposed operand", changed(node, right=transposed(right))
        case ast.Compare(left, [op], [right]):
            for other in COMPARISONS.get(type(op), ()):
                yield "condition", changed(node, ops=[other()])
        case ast.Attribute(value, "T"):
            yield "transposed operand", value
        case ast.Call(function, arguments, keywords):
            match function:
                case ast.Attribute(value, "swapaxes" | "transpose"):
                    yield "transposed operand", value
                case ast.Attribute(value, "sum" | "mean" as method):
                    yield "dropped call", value
                    other = "mean" if method == "sum" else "sum"
                    yield "mean for sum", changed(node, func=changed(function, attr=other))
                case ast.Attribute(value):
                    yield "dropped call", value
            if arguments and not isinstance(arguments[0], ast.Starred):     # which stands in no other place
                yield "dropped call", arguments[0]
            if getattr(function, "attr", None) != "swapaxes":       # for which the order is all the same
                for wrong in swapped(arguments):
                    yield "swapped", changed(node, args=wrong)
            if len(arguments) > 1:
                yield "dropped argument", changed(node, args=arguments[:-1])
            for i in range(len(keywords)):
                yield f"dropped {keywords[i].arg}", changed(node, keywords=keywords[:i] + keywords[i + 1:])
        case ast.keyword("axis", ast.Constant(int(axis))):
            yield "wrong axis", changed(node, value=ast.Constant(axis - 1))
            yield "wrong axis", changed(node, value=ast.Constant(axis + 1))
        case ast.Tuple(items) | ast.List(items):
            for wrong in swapped(items):
                yield "swapped", changed(node, elts=wrong)
        case ast.Subscript(value, ctx=ast.Load()):
            yield "dropped index", value
        case ast.Name(name, ast.Load()):
            for other in neighbours.of(name, node.lineno):
                yield "neighbouring variable", changed(node, id=other)
        case ast.Constant(bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(int(n)):
            for other in (n + 1, n - 1, -n):
                yield "constant", ast.Constant(other)
        case ast.Constant(float(x)):
            for other in (2 * x, x * (1 + 1e-6), -x):
                yield "constant", ast.Constant(other)
        case ast.Constant(str()):
            for other in neighbours.keys:
                yield "neighbouring key", ast.Constant(other)


COMPARISONS = {ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq],
               ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt],
               ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt]}


class FoldNegativeConstants(ast.NodeTransformer):
    """Makes one constant of a minus and its number, so that `axis=-1` is a number like any other."""

    def visit_UnaryOp(self, node):
        match node:
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
                return ast.copy_location(ast.Constant(-number), node)
        return self.generic_visit(node)


class Neighbours:
    """What one could have written instead: the variables known so far, the module's numbers, the function's keys."""

    def __init__(self, tree, function):
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.stored = []        # (line, last line of the innermost function that holds it, name)
        for node in ast.walk(tree):
            name = node.arg if isinstance(node, ast.arg) else node.id if is_stored(node) else "_"
            if name != "_":
                around = [f for f in functions if f.lineno <= node.lineno <= f.end_lineno]
                self.stored.append((node.lineno, min(f.end_lineno for f in around), name))
        self.numbers = [name for name, value in vars(inspect.getmodule(function)).items()
                        if type(value) in (int, float)]
        self.keys = list(dict.fromkeys(node.value for node in ast.walk(tree)
                                       if isinstance(node, ast.Constant) and isinstance(node.value, str)))

    def before(self, line):
        """The parameters and variables that have a value when the line is reached."""
        return list(dict.fromkeys(name for stored, last, name in self.stored if stored < line <= last))

    def of(self, name, line):
        """The names that could stand in a name's place."""
        variables = self.before(line) + self.numbers
        local = name in variables or any(name == stored for _, _, stored in self.stored)
        return [other for other in variables if other != name] if local else []


def is_stored(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def changed(node, **fields):
    """A copy of a node with other fields; the parts that stay are shared."""
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)


def negative(node):
    return ast.UnaryOp(ast.USub(), node)


def transposed(node):
    """The node with its last two axes swapped; an operand that is transposed already is left as it is."""
    match node:
        case ast.Attribute(_, "T") | ast.Call(ast.Attribute(_, "swapaxes")):
            return node
    axes = [ast.Constant(-1), ast.Constant(-2)]
    return ast.Call(ast.Attribute(node, "swapaxes", ast.Load()), axes, [])


def swapped(items):
    """The list with two of its items in each other's place, for every two."""
    for i, j in itertools.combinations(range(len(items)), 2):
        wrong = list(items)
        wrong[i], wrong[j] = items[j], items[i]
        yield wrong


def first_line_of(statement):
    return ast.unparse(statement).splitlines()[0]


def compiled(tree, file):
    """The code object of a function's tree."""
    module = compile(ast.fix_missing_locations(ast.Module([tree], [])), file, "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


@contextlib.contextmanager
def swapped_in(mutant, function):
    """The function with the mutant's code: in place, so that whoever has imported the function gets the mutant."""
    function = inspect.unwrap(function)
    original = function.__code__
    function.__code__ = mutant.code
    try:
        yield
    finally:
        function.__code__ = original


def in_child(work, time_limit=0):
    """Fork a child that does the work and keeps what it returns in a file: (process id, file). It prints nothing."""
    file = tempfile.TemporaryFile()
    child = os.fork()
    if child:
        return child, file
    try:
        signal.alarm(time_limit)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        file.write(json.dumps(work()).encode())
        file.flush()
    except BaseException:
        file.write(json.dumps(traceback.format_exc()).encode())
        file.flush()
    finally:
        os._exit(0)


def functions_under_test():
    """name -> every `x_backward` of the layers and the model, and the scatter-add that the embedding's is made of."""
    modules = [f"npgpt.layers.{module.name}" for module in pkgutil.iter_modules([str(ROOT / "npgpt" / "layers")])]
    found = {}
    for module in map(importlib.import_module, [*modules, "npgpt.model.transformer", "npgpt.engine.scatter"]):
        for name, value in vars(module).items():
            if (name.endswith("_backward") or name == "add_rows_by_index") and value.__module__ == module.__name__:
                found[name] = value
    return found


def failure(item):
    """The name of the exception that a collected test ends with, or None."""
    try:
        item.ihook.pytest_runtest_setup(item=item)
        item.runtest()
    except BaseException as error:      # pytest's own outcomes are no Exceptions
        return type(error).__name__
    finally:
        item.ihook.pytest_runtest_teardown(item=item, nextitem=None)
    return None


def clean_run(items, functions):
    """Run every test once, unmutated: for each how it failed, its seconds, and the functions that it calls."""
    names = {inspect.unwrap(function).__code__: name for name, function in functions.items()}
    runs = []
    for item in items:
        called = set()

        def notice(frame, event, _, called=called):
            if event == "call" and frame.f_code in names:
                called.add(names[frame.f_code])

        start = time.perf_counter()
        threading.setprofile(notice)
        sys.setprofile(notice)
        failed = failure(item)
        sys.setprofile(None)
        runs.append((failed, time.perf_counter() - start, sorted(called)))
    return runs


def gradients():
    """What all backwards give, on all cases and model variants, in both dtypes: an equivalent mutant gives it too."""
    import numpy as np
    from tests.model.test_gpt import SMALL, VARIANTS, batch

    from npgpt import GPT, GPTConfig
    from npgpt.model.transformer import gpt_backward, gpt_forward
    from tests.cases import arrays_in, layer_cases
    from tests.torch_gpt import unit_scale

    results = []
    for dtype in ("float32", "float64"):
        for case in layer_cases():
            y, cache = case.forward(**{name: array.astype(dtype) for name, array in case.inputs.items()})
            dy = np.random.default_rng(1).standard_normal(np.shape(y)).astype(dtype)
            results += arrays_in((case.backward(dy, cache),))
        for variant in VARIANTS.values():
            model = GPT(GPTConfig(**{**SMALL, **variant}), dtype=dtype)
            unit_scale(model.params)
            logits, cache = gpt_forward(batch(model.config)[0], model.params, np.random.default_rng(2))
            grads = model.params.zeros_like()
            grads.flat[:] = 1.0                     # a buffer that holds the last step's gradients
            gpt_backward(np.random.default_rng(3).standard_normal(logits.shape).astype(dtype), cache, grads)
            results.append(grads.flat)
    return results


def difference(ours, theirs):
    """The largest difference of two lists of results, in units in the last place of each array's largest value."""
    import numpy as np

    if [(a.shape, a.dtype) for a in ours] != [(b.shape, b.dtype) for b in theirs]:
        return float("inf")
    return max(float(abs(a - b).max() / (abs(a).max() * np.finfo(a.dtype).eps))
               for a, b in zip(ours, theirs, strict=True))


def judge(mutant, function, items, expected):
    """What becomes of a mutant: {"by": the test that fails, "error": how} or {"difference": from the right results}."""
    with swapped_in(mutant, function):
        for item in items:
            error = failure(item)
            if error is not None:
                return {"by": item.nodeid, "error": error}
        return {"difference": difference(expected, gradients())}


def verdicts(todo, functions, tests, expected, jobs):
    """(mutant, what `judge` says of it) as they come; at most so many children at a time."""
    todo, running = iter(todo), {}
    while True:
        for mutant in itertools.islice(todo, jobs - len(running)):
            work = functools.partial(judge, mutant, functions[mutant.function], tests[mutant.function], expected)
            child, file = in_child(work, TIME_LIMIT)
            running[child] = mutant, file
        if not running:
            return
        child, status = os.wait()
        mutant, file = running.pop(child)
        if os.WIFSIGNALED(status):                      # the alarm; or it crashed the interpreter
            yield mutant, {"by": "", "error": signal.Signals(os.WTERMSIG(status)).name}
            continue
        verdict = result_of(file)
        if "by" in verdict:                             # what caught this one is likely to catch the next
            tests[mutant.function].sort(key=lambda item, by=verdict["by"]: item.nodeid != by)
        yield mutant, verdict


def result_of(file):
    """What a child's work returned; an error in the work itself is raised here."""
    file.seek(0)
    result = json.load(file)
    if isinstance(result, str):
        raise RuntimeError(f"in a child:\n{result}")
    return result


def run(items, functions, jobs):
    """Judge every mutant of the functions with the tests: a list of dicts, one a mutant, each with its "outcome"."""
    from tqdm import tqdm

    child, file = in_child(functools.partial(clean_run, items, functions))
    os.waitpid(child, 0)
    runs = result_of(file)
    failed = [item.nodeid for item, (error, _, _) in zip(items, runs, strict=True) if error not in (None, "Skipped")]
    if failed:
        sys.exit("the unmutated functions fail these tests:\n  " + "\n  ".join(failed))
    tests = {}
    for name in functions:
        seconds = {item: time for item, (error, time, called) in zip(items, runs, strict=True)
                   if name in called and error is None}
        tests[name] = sorted(seconds, key=seconds.get)
        if not tests[name]:
            sys.exit(f"no test calls {name}")

    todo = [mutant for function in functions.values() for mutant in mutants(function)]
    rows = []
    gc.freeze()         # what is shared with the children stays shared: their collector leaves it alone
    bar = tqdm(verdicts(todo, functions, tests, gradients(), jobs), total=len(todo), unit="mutant", disable=None)
    for mutant, verdict in bar:
        row = {field.name: getattr(mutant, field.name) for field in dataclasses.fields(mutant) if field.name != "code"}
        row |= verdict
        row["file"] = str(Path(mutant.file).relative_to(ROOT))
        reason = EQUIVALENT.get((mutant.function, mutant.original, mutant.mutated))
        if "by" in verdict:
            row["outcome"] = "caught"
        elif reason is not None and verdict["difference"] <= ROUNDING:
            row |= {"outcome": "equivalent", "reason": reason}
        else:
            row["outcome"] = "missed"
        rows.append(row)
    return sorted(rows, key=lambda row: (list(functions).index(row["function"]), row["line"]))


def stale(rows, functions):
    """The entries of EQUIVALENT for these functions that no surviving mutant needed."""
    used = {(row["function"], row["original"], row["mutated"]) for row in rows if row["outcome"] == "equivalent"}
    return [key for key in EQUIVALENT if key[0] in functions and key not in used]


def report(rows, functions):
    """Print the table, the equivalent mutants with their reasons, and the missed ones."""
    def line(name, some):
        outcomes = [row["outcome"] for row in some]
        crashed = sum(row["outcome"] == "caught" and row["error"] != "AssertionError" for row in some)
        print(f"{name:26}{len(some):9}{outcomes.count('caught'):9}{crashed:12}{outcomes.count('equivalent'):12}"
              f"{outcomes.count('missed'):9}")

    print(f"{'function':26}{'mutants':>9}{'caught':>9}{'(crashed)':>12}{'equivalent':>12}{'missed':>9}")
    for name in functions:
        line(name, [row for row in rows if row["function"] == name])
    line("total", rows)
    print("\nOf the caught, the crashed raised an exception in the first test that failed; the others were just wrong.")
    for outcome in ("equivalent", "missed"):
        some = [row for row in rows if row["outcome"] == outcome]
        print(f"\n{outcome}: {len(some)}")
        for row in some:
            how = f"differs by {row['difference']:.1f} units in the last place" if row["difference"] else "same results"
            print(f"  {row['file']}:{row['line']} {row['function']}: {row['kind']}, {how}\n"
                  f"      {row['original']}\n    > {row['mutated']}")
            if outcome == "equivalent":
                print(f"    = {row['reason']}")


class Collected:
    """A pytest plugin that, instead of running the collected tests, hands them to a function.

    What the function raises is kept in `error`, because pytest would swallow it.
    """

    def __init__(self, work):
        self.work = work
        self.result = None
        self.error = SystemExit("the tests cannot be collected: run pytest to see why")

    def pytest_runtestloop(self, session):
        if not session.testsfailed:
            try:
                self.result, self.error = self.work(session.items), None
            except BaseException as error:
                self.error = error
        return True


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", nargs="*", help="only mutants of these functions")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="children at a time; by default the cores")
    parser.add_argument("--json", metavar="FILE", help="write every mutant and what became of it")
    args = parser.parse_args(arguments)

    os.environ["OPENBLAS_NUM_THREADS"] = "1"        # before NumPy is imported: the children are what fills the cores
    sys.path.insert(0, str(ROOT))
    functions = functions_under_test()
    unknown = set(args.function) - set(functions)
    if unknown:
        sys.exit(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(functions)}")
    functions = {name: function for name, function in functions.items() if not args.function or name in args.function}

    import pytest
    import torch

    start = time.perf_counter()
    torch.set_num_threads(1)
    torch.ones(1, requires_grad=True).backward(torch.ones(1))       # loads half of torch: once, not in every child
    plugin = Collected(functools.partial(run, functions=functions, jobs=args.jobs))
    options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts=", "-s", "--rootdir", str(ROOT),
               "-k", f"not ({LEFT_OUT})"]
    pytest.main([*options, *(str(ROOT / path) for path in TESTS)], plugins=[plugin])
    if plugin.error:
        raise plugin.error
    rows = plugin.result
    report(rows, functions)
    leftover = stale(rows, functions)
    for key in leftover:
        print(f"\nstale, no such survivor: {key}")
    print(f"\n{time.perf_counter() - start:.0f} s")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if leftover or any(row["outcome"] == "missed" for row in rows) else 0


ALIAS = "two names of one array"
ANY_NEGATIVE = "reshape takes any negative length for -1: the one that the others leave"
EITHER_WAY = "the condition only chooses the faster of two ways to the same sums (they may differ by rounding)"
MINUS_ZERO = "minus zero is zero"
SAME_AXIS = "the axes -2 and 2 of four are one"
NAMES_ONLY = "the three names are for who reads, and for gradcheck: the next line takes dheads"
COMMUTES = "a product of two numbers is the same in either order"
DWPE = "dwpe = np.zeros((block_size, C), dtype=dx.dtype, like=dx)"
DWTE = "dwte = np.zeros((vocab_size, C), dtype=dx.dtype, like=dx)"
EACH_TILE = "for (rows, keys), tile in reversed(list(zip(tiles(T, T, causal), caches[i], strict=True))):"
DHEADS = "dq, dk, dv = dheads = tiled_attention_backward(dmix, attention)"
FEW_INDICES = "if len(out) <= ONE_HOT_LIMIT:"
ONE_HOT = "one_hot = (np.arange(len(out), like=out)[:, None] == index).astype(rows.dtype)"
ELSEWHERE = "if not isinstance(out, np.ndarray):"
ONE_LIBRARY = "the three arrays are of one library"

# (function, line, mutated line): why it computes the same. No entry without having thought it through.
EQUIVALENT = {
    ("attention_backward", "dkept = dmix @ v.swapaxes(-1, -2)", "dkept = dmix @ v.swapaxes(-1, 2)"): SAME_AXIS,
    ("attention_backward", "dv = kept.swapaxes(-1, -2) @ dmix", "dv = kept.swapaxes(-1, 2) @ dmix"): SAME_AXIS,
    ("attention_backward", "dot = row_dot(datt, att)", "dot = row_dot(att, datt)"): COMMUTES,
    ("attention_backward", "dscaled = dscores @ k", "dscaled = dmasked @ k"): ALIAS,
    ("attention_backward",
     "dk = dscores.swapaxes(-1, -2) @ scaled", "dk = dmasked.swapaxes(-1, -2) @ scaled"): ALIAS,
    ("attention_backward",
     "dk = dscores.swapaxes(-1, -2) @ scaled", "dk = dscores.swapaxes(-1, 2) @ scaled"): SAME_AXIS,
    ("tiled_attention_backward",
     "dheads = np.empty((B, T, 3, H, D), dtype=dmix.dtype, like=dmix).transpose(2, 0, 3, 1, 4)",
     "dheads = -np.empty((B, T, 3, H, D), dtype=dmix.dtype, like=dmix).transpose(2, 0, 3, 1, 4)"):
        "what the new array holds does not matter: each of its numbers is set below",
    ("tiled_attention_backward", EACH_TILE, EACH_TILE.replace(", strict=True", "")):
        "a group has a cache for each tile: the forward has made them from the same list of tiles",
    ("tiled_attention_backward", EACH_TILE, EACH_TILE.replace("strict=True", "strict=False")):
        "a group has a cache for each tile: the forward has made them from the same list of tiles",
    ("tiled_attention_backward", "spread(backward, range(len(groups)))", "spread(backward, range(len(caches)))"):
        "there is one list of caches for each group",
    ("self_attention_backward",
     "dmix = dmerged.reshape(B, T, n_head, C // n_head).transpose(0, 2, 1, 3)",
     "dmix = dmerged.reshape(B, T, n_head, C // n_head).transpose(0, -2, 1, 3)"): SAME_AXIS,
    ("self_attention_backward", DHEADS, DHEADS.replace("dq, dk, dv", "dk, dq, dv")): NAMES_ONLY,
    ("self_attention_backward", DHEADS, DHEADS.replace("dq, dk, dv", "dv, dk, dq")): NAMES_ONLY,
    ("self_attention_backward", DHEADS, DHEADS.replace("dq, dk, dv", "dq, dv, dk")): NAMES_ONLY,
    ("self_attention_backward",
     "dqkv = dheads.transpose(1, 3, 0, 2, 4).reshape(B, T, 3 * C)",
     "dqkv = dheads.transpose(1, 3, 0, 2, 4).reshape(T, B, 3 * C)"):
        "linear_backward makes rows of it: how the B T rows are divided does not matter, only their order",
    ("self_attention_backward",
     "dqkv = dheads.transpose(1, 3, 0, 2, 4).reshape(B, T, 3 * C)",
     "dqkv = dheads.transpose(1, 3, 0, 2, 4).reshape(B, T, -3 * C)"): ANY_NEGATIVE,
    ("embedding_backward", "dposition = dx.sum(axis=0)", "dposition = dtoken.sum(axis=0)"): ALIAS,
    ("embedding_backward", DWPE, DWPE.replace("np", "-np")): MINUS_ZERO,
    ("embedding_backward", DWPE, DWPE.replace("dx.", "dtoken.")): ALIAS,
    ("embedding_backward", DWPE, DWPE.replace("dx.", "dposition.")): "dposition is a sum of dx and has its dtype",
    ("embedding_backward", DWPE, DWPE.replace("=dx)", "=dtoken)")): ALIAS,
    ("embedding_backward", DWPE, DWPE.replace("=dx)", "=dposition)")): "dposition is a sum of dx and from its library",
    ("embedding_backward", "dwpe[:T] = dposition", "dwpe[:T] += dposition"): "the array is new and all zero",
    ("embedding_backward", DWTE, DWTE.replace("np", "-np")): MINUS_ZERO,
    ("embedding_backward", DWTE, DWTE.replace("dx.", "dtoken.")): ALIAS,
    ("embedding_backward", DWTE, DWTE.replace("dx.", "dposition.")): "dposition is a sum of dx and has its dtype",
    ("embedding_backward", DWTE, DWTE.replace("dx.", "dwpe.")): "dwpe was made with the dtype of dx",
    ("embedding_backward", DWTE, DWTE.replace("=dx)", "=dtoken)")): ALIAS,
    ("embedding_backward", DWTE, DWTE.replace("=dx)", "=dposition)")): "dposition is a sum of dx and from its library",
    ("embedding_backward", DWTE, DWTE.replace("=dx)", "=dwpe)")): "dwpe was made in the library of dx",
    ("embedding_backward",
     "add_rows_by_index(dwte, idx.reshape(B * T), dtoken.reshape(B * T, C))",
     "add_rows_by_index(dwte, idx.reshape(B * T), dx.reshape(B * T, C))"): ALIAS,
    ("layernorm_backward", "C = xhat.shape[-1]", "C = dy.shape[-1]"): "dy has the shape of xhat",
    ("layernorm_backward", "C = xhat.shape[-1]", "C = weight.shape[-1]"): "weight has one value for each channel",
    ("layernorm_backward", "dweight = column_dot(dscaled, xhat)", "dweight = column_dot(dy, xhat)"): ALIAS,
    ("layernorm_backward", "dweight = column_dot(dscaled, xhat)", "dweight = column_dot(xhat, dscaled)"): COMMUTES,
    ("layernorm_backward", "dxhat = dscaled * weight", "dxhat = dy * weight"): ALIAS,
    ("layernorm_backward",
     "mean_dxhat_xhat = row_dot(dxhat, xhat) / C", "mean_dxhat_xhat = row_dot(xhat, dxhat) / C"): COMMUTES,
    ("linear_backward", "rows = x.reshape(-1, x.shape[-1])", "rows = x.reshape(-2, x.shape[-1])"): ANY_NEGATIVE,
    ("linear_backward", "dy_rows = dy.reshape(-1, dy.shape[-1])", "dy_rows = dy.reshape(-2, dy.shape[-1])"):
        ANY_NEGATIVE,
    ("linear_backward", "dy_rows = dy.reshape(-1, dy.shape[-1])", "dy_rows = dy.reshape(-1, weight.shape[-1])"):
        "the last axis of dy is as long as the last one of weight: n_out",
    ("linear_backward",
     "dbias = column_sum(dy_rows) if has_bias else None", "dbias = column_sum(dy) if has_bias else None"):
        "column_sum adds over all axes but the last: the same rows, still divided by batch entry",
    ("linear_backward", "drows = dy_rows @ weight.T", "drows = dy @ weight.T"):
        "the same rows, still divided by batch entry; the next line gives dx the shape of x anyway",
    ("head_backward", "rows = x.reshape(-1, x.shape[-1])", "rows = x.reshape(-2, x.shape[-1])"): ANY_NEGATIVE,
    ("head_backward", "rows = x.reshape(-1, x.shape[-1])", "rows = x.reshape(-1, weight.shape[-1])"):
        "the last axis of x is as long as the last one of weight: C",
    ("head_backward",
     "dlogit_rows = dlogits.reshape(-1, dlogits.shape[-1])",
     "dlogit_rows = dlogits.reshape(-2, dlogits.shape[-1])"): ANY_NEGATIVE,
    ("head_backward", "drows = dlogit_rows @ weight", "drows = dlogits @ weight"):
        "the same rows, still divided by batch entry; the next line gives dx the shape of x anyway",
    ("softmax_loss_backward",
     "at_target = np.take_along_axis(dlogits, column, axis=-1)",
     "at_target = np.take_along_axis(dlogits, column)"):
        "-1 is the axis that take_along_axis takes by default (since NumPy 2.3, which has one)",
    ("block_backward",
     "dthought = dropout_backward(ddropped_2, drop_2)", "dthought = dropout_backward(dx_out, drop_2)"): ALIAS,
    ("block_backward", "dx_mid = dx_out + dx_mid_normed", "dx_mid = ddropped_2 + dx_mid_normed"): ALIAS,
    ("block_backward",
     "dattended = dropout_backward(ddropped_1, drop_1)", "dattended = dropout_backward(dx_mid, drop_1)"): ALIAS,
    ("block_backward", "dx = dx_mid + dx_normed", "dx = ddropped_1 + dx_normed"): ALIAS,
    ("gpt_backward", "grads['wte.weight'] = 0.0", "grads['wte.weight'] = -0.0"): MINUS_ZERO,
    ("add_rows_by_index", FEW_INDICES, "pass"): EITHER_WAY,
    ("add_rows_by_index", FEW_INDICES, "if not len(out) <= ONE_HOT_LIMIT:"): EITHER_WAY,
    ("add_rows_by_index", FEW_INDICES, "if True:"): EITHER_WAY,
    ("add_rows_by_index", FEW_INDICES, "if len(out) < ONE_HOT_LIMIT:"): EITHER_WAY,
    ("add_rows_by_index", FEW_INDICES, "if len(out) > ONE_HOT_LIMIT:"): EITHER_WAY,
    ("add_rows_by_index", FEW_INDICES, "if len(index) <= ONE_HOT_LIMIT:"): EITHER_WAY,
    ("add_rows_by_index", FEW_INDICES, "if len(rows) <= ONE_HOT_LIMIT:"): EITHER_WAY,
    ("add_rows_by_index", ONE_HOT, "one_hot = np.arange(len(out), like=out)[:, None] == index"):
        "the product makes numbers of the dtype of rows of True and False",
    ("add_rows_by_index", ONE_HOT, ONE_HOT.replace("rows.", "out.")): "rows are added to an array of their own dtype",
    ("add_rows_by_index", ONE_HOT, ONE_HOT.replace("rows.", "index.")):
        "the product with whole numbers is float64, and rounded when it is added: the same sums but for rounding",
    ("add_rows_by_index", ONE_HOT, ONE_HOT.replace("like=out", "like=rows")): ONE_LIBRARY,
    ("add_rows_by_index", ONE_HOT, ONE_HOT.replace("like=out", "like=index")): ONE_LIBRARY,
    ("add_rows_by_index", ELSEWHERE, "if True:"): EITHER_WAY,
    ("add_rows_by_index", ELSEWHERE, ELSEWHERE.replace("out", "ONE_HOT_LIMIT")): EITHER_WAY,
    ("add_rows_by_index", ELSEWHERE, ELSEWHERE.replace("out", "rows")): ONE_LIBRARY,
    ("add_rows_by_index", ELSEWHERE, ELSEWHERE.replace("out", "index")): ONE_LIBRARY,
    ("add_rows_by_index", "order = np.argsort(index, kind='stable')", "order = np.argsort(index)"):
        "the rows of one index are added in another order, and differ by rounding",
    ("add_rows_by_index",
     "starts = np.flatnonzero(np.diff(in_order, prepend=-1))",
     "starts = np.flatnonzero(np.diff(in_order, prepend=-2))"):
        "any number below the smallest index, 0, marks the first run",
    ("add_rows_by_index",
     "out[in_order[starts]] += np.add.reduceat(rows[order], starts, axis=0)",
     "out[in_order[starts]] += np.add.reduceat(rows[order], starts)"): "0 is the axis that reduceat takes by default",
}

if __name__ == "__main__":
    sys.exit(main())
