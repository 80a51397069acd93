"""Mutation test: would the tests notice if a line of a backward were wrong?

    python tools/mutate.py                                  every line of every backward, and few_rows.py's loops
    python tools/mutate.py linear_backward head_backward    only these

For every line of every backward it makes each small mistake that mutants.py knows. Each mutant
replaces the function, and the tests that call the function run until one fails. A loop runs as Python, in its own
tests. A mutant that passes all tests is either a gap in the tests ("missed") or equivalent: the line computes the
same. Equivalent mutants are listed in `equivalent.txt`, each with the reason, and must give the same results in these
tests. The exit code is 1 if one is missed.

Needs the extra `test`, and a system with fork: each mutant runs in a forked child.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import gc
import importlib
import inspect
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import types
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = ["layers.linear", "layers.gelu", "layers.layernorm", "layers.loss", "layers.embedding", "layers.dropout",
           "layers.attention", "layers.lora", "model.transformer", "engine.embedding"]
OF_LOOPS = "tests/engine/test_few_rows.py"
TESTS = ["tests/layers/test_gradients.py", "tests/layers/test_extremes.py", "tests/engine/test_cpu.py",
         "tests/engine/test_tiles.py", OF_LOOPS, "tests/training/test_adamw.py", "tests/test_on_a_gpu.py::test_layers",
         "tests/test_api.py::test_every_gradient_equals_torch",
         "tests/test_api.py::test_the_cpu_engine_equals_the_reference_engine"]
FAST = 0.05             # seconds: tests as fast as this compare the results of equivalent mutants
TIME_LIMIT = 60         # seconds; a mutant may loop forever, which counts as caught
ALIKE = re.compile(r"(?:\w+\.dtype\.type|np\.uint64)\(([^()]+)\)|\w+(?=\.(?:dtype|shape|size)\b)")
ROUNDING = 32           # units in the last place: an equivalent mutant may add in another order


def functions_under_test():
    """Return name -> (function, name of the inner function to mutate, or None)."""
    found = {}
    for module in (importlib.import_module(f"npgpt.{name}") for name in MODULES):
        found |= {name: (value, None) for name, value in vars(module).items()
                  if name.endswith("_backward") and inspect.isfunction(value) and value.__module__ == module.__name__}
    from npgpt.engine import cpu, embedding, row_blocks, tiles, update

    def at_each_call(make):         # closures are made at each call: tables made earlier also run the mutant
        return lambda *pair: [lambda *a, i=i, **named: make(*pair)[i](*a, **named) for i in (0, 1)]

    cpu.in_row_blocks, cpu.in_tiles = at_each_call(row_blocks.in_row_blocks), at_each_call(tiles.in_tiles)
    return found | {"__add__": (embedding.TokenRows.__add__, None), "adamw_update": (update.adamw_update, None),
                    "backward_in_blocks": (row_blocks.in_row_blocks, "backward_in_blocks"),
                    "backward_in_tiles": (tiles.in_tiles, "backward_in_tiles")}


def tests():
    """Return name -> function without arguments for each test of `TESTS` whose only fixture is cupy or monkeypatch."""
    import pytest

    from tests import strict_cupy

    def patched(test, needs, **arguments):
        with pytest.MonkeyPatch.context() as monkeypatch:
            test(**arguments, **{needs: strict_cupy.install(monkeypatch) if needs == "cupy" else monkeypatch})

    items, found = [], {}
    collector = types.SimpleNamespace(pytest_collection_finish=lambda session: items.extend(session.items))
    if pytest.main(["--collect-only", "-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts=",
                    "-k", "not mkl and not small_mistakes",
                    "--rootdir", str(ROOT), *(str(ROOT / path) for path in TESTS)], [collector]):
        sys.exit("the tests cannot be collected: run pytest to see why")
    for item in items:
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        needs = {*inspect.signature(item.obj).parameters} - {*arguments}
        if not needs:
            found[item.nodeid] = functools.partial(item.obj, **arguments)
        elif needs in ({"cupy"}, {"monkeypatch"}):
            found[item.nodeid] = functools.partial(patched, item.obj, *needs, **arguments)
    return found


def failure(test):
    """Run a test. Returns the exception that it raises, or None."""
    try:
        test()
    except BaseException as error:
        return error
    return None


def run_once(all_tests, functions):
    """Run every test without mutants. Returns {function: {test that calls it: seconds}}, the fastest first."""
    callers = {name: {} for name in functions}
    for name, test in all_tests.items():
        called = set()

        def notice(frame, event, _, called=called):
            if event == "call" and frame.f_code.co_name in functions:
                called.add(frame.f_code.co_name)

        start = time.perf_counter()
        threading.setprofile(notice)
        sys.setprofile(notice)
        error = failure(test)
        sys.setprofile(None)
        threading.setprofile(None)
        if error is not None and type(error).__name__ != "Skipped":
            sys.exit(f"without a mutant, {name} fails: {error}")
        for function in called:
            callers[function][name] = time.perf_counter() - start
    for function, seconds in callers.items():
        if not seconds:
            sys.exit(f"no test calls {function}")
    return {function: dict(sorted(seconds.items(), key=lambda item: item[1])) for function, seconds in callers.items()}


def results(name, some_tests):
    """Return the float arrays that a function returned or was given, at every return in the main thread."""
    from tests.cases import arrays_in
    found = []

    def notice(frame, event, returned):
        if event == "return" and frame.f_code.co_name == name:
            arguments = map(frame.f_locals.get, frame.f_code.co_varnames[:frame.f_code.co_argcount])
            found.extend(array.copy() for array in arrays_in((returned, *arguments)) if array.dtype.kind == "f")

    sys.setprofile(notice)
    for test in some_tests:
        failure(test)
    sys.setprofile(None)
    return found


def difference(ours, theirs):
    """Return the largest difference of two lists of arrays, in units in the last place of each array's maximum."""
    import numpy as np
    if [(a.shape, a.dtype) for a in ours] != [(b.shape, b.dtype) for b in theirs]:
        return float("inf")
    return max((float(abs(a - b).max() / (abs(a).max() * np.finfo(a.dtype).eps))
                for a, b in zip(ours, theirs, strict=True) if not np.array_equal(a, b, equal_nan=True)), default=0.0)


def judge(mutant, function, some_tests, fast, reason=None):
    """Return a dict with the outcome of a mutant: "caught" ("by": a test), "equivalent" or "missed".

    some_tests: name -> test. fast: the tests in which an equivalent mutant must give the same results.
    """
    from mutants import swapped_in
    signal.alarm(TIME_LIMIT)
    warnings.simplefilter("ignore")
    row = {"mutant": dataclasses.replace(mutant, code=None)}        # code cannot be pickled
    with swapped_in(mutant, function):
        for name, test in some_tests.items():
            error = failure(test)
            if error is not None:
                return row | {"outcome": "caught", "by": name, "error": type(error).__name__}
        found = results(mutant.function, fast)
    differs = difference(results(mutant.function, fast), found)
    signal.alarm(0)
    return row | {"outcome": "equivalent" if reason and differs <= ROUNDING else "missed", "difference": differs,
                  "reason": reason}


def too_long(*_):
    raise TimeoutError


def in_children(work, n, jobs):
    """Yield work(0), …, work(n - 1), each from a forked child of its own."""
    global WORK         # inner functions cannot be pickled: the children inherit it
    WORK = work
    signal.signal(signal.SIGALRM, too_long)
    gc.freeze()         # the children's garbage collectors then leave shared memory alone
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(call_work, range(n))


def call_work(i):
    return WORK(i)


def equivalent():
    """Return (function, statement, mutated statement) -> the reason in equivalent.txt."""
    found, function, reason, before = {}, "", "", ""
    for line in (Path(__file__).parent / "equivalent.txt").read_text(encoding="utf-8").splitlines():
        mark, text = line[:2], line[2:]
        if mark == "> ":
            found[function, before, text] = reason
        elif mark == "< ":
            before = text
        elif mark == "= ":
            reason = text
        elif line:
            function = line
    return found


def reason_of(mutant, listed, loops):
    """Return why a mutant computes the same: the listed reason, or that all arrays of a loop are alike."""
    if mutant.function in loops and ALIKE.sub(r"\1", mutant.original) == ALIKE.sub(r"\1", mutant.mutated):
        return "the arrays of a loop have one dtype and equally many rows; the type of a number is not its value"
    return listed.get((mutant.function, mutant.original, mutant.mutated))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", nargs="*", help="only mutants of these functions")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel children; default: one a core")
    args = parser.parse_args(arguments)

    os.environ["OPENBLAS_NUM_THREADS"] = "1"        # before NumPy is imported: the children use the cores
    sys.path.insert(0, str(ROOT))
    from tests.cases import uncompiled

    with uncompiled() as loops:
        functions = functions_under_test() | {name: (loop, None) for name, loop in loops.items()}
    unknown = set(args.function) - set(functions)
    if unknown:
        sys.exit(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(functions)}")
    functions = {name: functions[name] for name in args.function or functions}

    import torch
    from mutants import mutants
    from tqdm import tqdm

    start = time.perf_counter()
    torch.set_num_threads(1)
    all_tests, reasons = tests(), equivalent()
    callers = run_once(all_tests, [name for name in functions if name not in loops])
    with uncompiled():
        callers |= run_once({name: test for name, test in all_tests.items() if name.startswith(OF_LOOPS)},
                            [name for name in functions if name in loops])
    todo = [mutant for function, inner in functions.values() for mutant in mutants(function, inner)]

    def judge_one(i):
        mutant, seconds = todo[i], callers[todo[i].function]
        # When a loop returns, other threads may still be writing its arrays: only its tests compare them.
        fast = [all_tests[name] for name in seconds if seconds[name] < FAST and mutant.function not in loops]
        with uncompiled() if mutant.function in loops else contextlib.nullcontext():
            return judge(mutant, functions[mutant.function][0], {name: all_tests[name] for name in seconds}, fast,
                         reason_of(mutant, reasons, loops))

    rows = list(tqdm(in_children(judge_one, len(todo), args.jobs), total=len(todo), unit="mutant", disable=None))
    print(f"{'function':26}{'mutants':>9}{'caught':>9}{'equivalent':>12}{'missed':>9}")
    for name in [*functions, "total"]:
        counts = collections.Counter(row["outcome"] for row in rows if name in (row["mutant"].function, "total"))
        print(f"{name:26}{counts.total():9}{counts['caught']:9}{counts['equivalent']:12}{counts['missed']:9}")
    stale = set(reasons)
    for row in rows:
        if row["outcome"] != "caught":
            mutant = row["mutant"]
            stale.discard((mutant.function, mutant.original, mutant.mutated))
            print(f"\n{row['outcome']}: line {mutant.line} of {mutant.function}: {mutant.kind}, differs by "
                  f"{row['difference']:.1f} units in the last place\n= {row['reason']}\n< {mutant.original}\n"
                  f"> {mutant.mutated}")
    stale = [key for key in stale if key[0] in functions]
    for key in stale:
        print(f"\nin equivalent.txt, but caught or not made: {key}")
    print(f"\n{time.perf_counter() - start:.0f} s")
    return 1 if stale or any(row["outcome"] == "missed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
