"""Break every line of every backward, one small mistake at a time, and see whether a test fails.

    python tools/mutate.py                                  every line of every backward
    python tools/mutate.py linear_backward head_backward    only these

Each mutant of mutants.py replaces the function, and the tests that call the function run until one
fails. A mutant that passes all tests is either a gap in the tests ("missed") or equivalent: the
line computes the same. Equivalent mutants are listed in `equivalent.txt`, each with the reason. The
exit code is 1 if one is missed.

Needs the extra `test`, and a system with fork: each mutant runs in a forked child.
"""

import argparse
import collections
import functools
import gc
import importlib
import inspect
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = [
    "layers.linear",
    "layers.gelu",
    "layers.layernorm",
    "layers.loss",
    "layers.embedding",
    "layers.dropout",
    "layers.attention",
    "layers.lora",
    "model.transformer",
    "model.variants",
    "engine.embedding",
]
TESTS = [
    "tests/layers/test_gradients.py",
    "tests/layers/test_extremes.py",
    "tests/engine/test_cpu.py",
    "tests/engine/test_tiles.py",
    "tests/training/test_adamw.py",
    "tests/test_on_a_gpu.py::test_a_step_waits_for_nothing",
    "tests/test_api.py::test_every_gradient_equals_torch",
    "tests/test_api.py::test_the_cpu_engine_equals_the_reference_engine",
]
TIME_LIMIT = 60  # seconds; a mutant may loop forever, which counts as caught


def functions_under_test():
    """Return name -> (function, name of the inner function to mutate, or None)."""
    found = {}
    for module in (importlib.import_module(f"npgpt.{name}") for name in MODULES):
        found |= {
            name: (value, None)
            for name, value in vars(module).items()
            if name.endswith("_backward")
            and inspect.isfunction(value)
            and value.__module__ == module.__name__
        }
    from npgpt.engine import cpu, row_blocks, tiles
    from npgpt.training import adamw

    def at_each_call(make):
        """Make closures at each call, so that tables that were made earlier also run the mutant."""

        def made(*pair, **options):
            def at(i):
                return lambda *a, **named: make(*pair, **options)[i](*a, **named)

            return at(0), at(1)

        return made

    cpu.in_row_blocks, cpu.in_tiles = (
        at_each_call(row_blocks.in_row_blocks),
        at_each_call(tiles.in_tiles),
    )
    return found | {
        "adamw_update": (adamw.adamw_update, None),
        "backward_in_blocks": (row_blocks.in_row_blocks, "backward_in_blocks"),
        "backward_in_tiles": (tiles.in_tiles, "backward_in_tiles"),
    }


def tests():
    """Return name -> function without arguments for each of `TESTS` with no fixtures but
    monkeypatch and cupy.
    """
    import pytest

    from tests import strict_cupy

    def patched(test, needs, on_gpu, **arguments):
        with pytest.MonkeyPatch.context() as monkeypatch:
            given = {
                "monkeypatch": monkeypatch,
                "cupy": on_gpu and strict_cupy.install(monkeypatch),
            }
            test(**arguments, **{name: given[name] for name in needs})

    items, found = [], {}
    collector = types.SimpleNamespace(
        pytest_collection_finish=lambda session: items.extend(session.items)
    )
    if pytest.main(
        [
            "--collect-only",
            "-p",
            "no:terminal",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            "--rootdir",
            str(ROOT),
            *(str(ROOT / path) for path in TESTS),
        ],
        [collector],
    ):
        sys.exit("the tests cannot be collected: run pytest to see why")
    for item in items:
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        needs = {*inspect.signature(item.obj).parameters} - {*arguments}
        if needs <= {"monkeypatch", "cupy"} and "xla" not in item.nodeid:  # JAX does not fork
            on_gpu = "cupy" in item.fixturenames
            found[item.nodeid] = functools.partial(patched, item.obj, needs, on_gpu, **arguments)
    return found


def failure(test):
    """Run a test. Returns the exception that it raises, or None."""
    try:
        test()
    except BaseException as error:
        return error
    return None


def callers_of(functions, all_tests):
    """Run every test without mutants. Return function -> names of the tests that call it, the
    fastest first.
    """
    seconds = {name: {} for name in functions}
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
            seconds[function][name] = time.perf_counter() - start
    return {function: sorted(tests, key=tests.get) for function, tests in seconds.items()}


def is_caught(mutant, function, some_tests):
    """Return whether one of the tests fails with a mutant in the function's place, or takes too
    long.
    """
    from mutants import swapped_in

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(TIME_LIMIT)
    warnings.simplefilter("ignore")
    try:
        with swapped_in(mutant, function):
            return any(failure(test) is not None for test in some_tests)
    finally:
        signal.alarm(0)


def too_long(*_):
    raise TimeoutError


def in_children(work, n, jobs):
    """Yield work(0), …, work(n - 1), each from a forked child of its own."""
    global WORK  # inner functions cannot be pickled: the children inherit it
    WORK = work
    gc.freeze()  # the children's garbage collectors then leave shared memory alone
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


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("function", nargs="*", help="only mutants of these functions")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="parallel children; default: one a core"
    )
    args = parser.parse_args(arguments)

    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported: the children use the cores
    sys.path.insert(0, str(ROOT))
    functions = functions_under_test()
    unknown = set(args.function) - set(functions)
    if unknown:
        sys.exit(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(functions)}")
    functions = {name: functions[name] for name in args.function or functions}

    import torch
    from mutants import mutants
    from tqdm import tqdm

    torch.set_num_threads(1)
    all_tests, reasons = tests(), equivalent()
    callers = callers_of(list(functions), all_tests)
    todo = [mutant for function, inner in functions.values() for mutant in mutants(function, inner)]

    def judge(i):
        name = todo[i].function
        return is_caught(todo[i], functions[name][0], [all_tests[test] for test in callers[name]])

    caught = tqdm(
        in_children(judge, len(todo), args.jobs), total=len(todo), unit="mutant", disable=None
    )
    counts, used = collections.defaultdict(collections.Counter), set()
    for mutant, is_noticed in zip(todo, caught, strict=True):
        reason = (
            None if is_noticed else reasons.get((mutant.function, mutant.original, mutant.mutated))
        )
        outcome = "caught" if is_noticed else "equivalent" if reason else "missed"
        counts[mutant.function][outcome] += 1
        counts["total"][outcome] += 1
        if not is_noticed:
            used.add((mutant.function, mutant.original, mutant.mutated))
            print(
                f"\n{outcome}: line {mutant.line} of {mutant.function}: {mutant.kind}\n= {reason}\n"
                f"< {mutant.original}\n> {mutant.mutated}"
            )
    print(f"\n{'function':26}{'mutants':>9}{'caught':>9}{'equivalent':>12}{'missed':>9}")
    for name, each in counts.items():
        print(
            f"{name:26}{each.total():9}{each['caught']:9}{each['equivalent']:12}{each['missed']:9}"
        )
    stale = [key for key in reasons if key[0] in functions and key not in used]
    for key in stale:
        print(f"\nin equivalent.txt, but caught or not made: {key}")
    return int(bool(stale or counts["total"]["missed"]))


if __name__ == "__main__":
    sys.exit(main())
