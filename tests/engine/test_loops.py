"""The compiler of lesson lines: against NumPy on the whole lesson; its functions and its cache.

Most loops run as plain Python here, which tests what the compiler writes; some by Numba.
"""

import contextlib
import itertools
import operator
import os
from unittest import mock

import numpy as np
import pytest

from npgpt import layers
from npgpt.study.lessons.random_settings import random_settings
from npgpt.study.lessons.table import LAYERS, lesson_named
from npgpt.training.adamw import adamw_update
from tests.cases import LAYOUTS, arrays_in, small_parts, unchanged
from tests.helpers.lines import DTYPES, PAIRS, arguments_of, assert_alike, defined, results_of

pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
from numba.core import compiler
from scipy.special import erf

from npgpt.engine.loops import segment, vectors
from npgpt.engine.loops.lines import compile_lines
from npgpt.engine.loops.segment import kernel
from npgpt.errors import say_once

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")       # the mean of nothing
BY = pytest.mark.parametrize(("by", "n"), [("python", 24), ("numba", 1)])


@contextlib.contextmanager
def loops_by(what):
    """Within it, functions are compiled anew, and their loops run by "numba", or as plain Python."""
    in_python = {"exp": np.exp, "tanh": np.tanh, "erf": erf, "maximum": np.maximum, "add": operator.add}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, NPGPT_CHECK_LOOPS="never"))     # no mistake is hidden
        for each in (kernel, compile_lines):
            each.cache_clear()
            stack.callback(each.cache_clear)
        if what == "python":
            stack.enter_context(mock.patch.multiple(vectors, **in_python))
            stack.enter_context(mock.patch.object(segment, "jit", lambda function, source: function))
        yield


def drawn(rng, dtype, shape, constant=0.2):
    """Return random numbers in any layout; sometimes one row, column or number stands for all."""
    array = rng.standard_normal(shape).astype(dtype)
    if rng.random() < constant:
        once = tuple(slice(1) if each else slice(None) for each in rng.random(len(shape)) < 0.5)
        return np.broadcast_to(array[once], shape)
    return LAYOUTS[rng.integers(len(LAYOUTS))](array)


@BY
@DTYPES
@pytest.mark.parametrize("name", PAIRS)
def test_the_lesson(name, by, n, dtype):
    """Any sizes, layouts, switches and masks; the number of cores changes no bit."""
    plain = getattr(layers, f"{name}_forward"), getattr(layers, f"{name}_backward")
    with loops_by(by):
        pairs = [((*map(compile_lines, plain),), ())]
        if name == "cross_entropy":
            pairs.append(((compile_lines(plain[0], ("logits",)), compile_lines(plain[1], ("probs",))), (0,)))
        for seed, setting in enumerate(random_settings(LAYERS[name], 0)[:n]):
            lesson = lesson_named(name, setting)
            for pair, given_up in pairs:
                found = []
                for cores in (1, 3):
                    with small_parts(row_bytes=100, cores=cores):
                        found.append(results_of(pair, *arguments_of(lesson, seed, dtype), given_up))
                expected = results_of(plain, *arguments_of(lesson, seed, dtype))
                assert_alike(found[0], expected, 1e-12 if dtype is np.float64 else 1e-5)
                for one, three in zip(arrays_in(found[0]), arrays_in(found[1]), strict=True):
                    np.testing.assert_array_equal(one, three)
        assert (
            n == 1 or name in ("dropout", "embedding", "head") or kernel.cache_info().misses
        )  # there are loops


@BY
@DTYPES
def test_adamw(by, n, dtype):
    """In place, in any layout."""
    with loops_by(by):
        for seed in range(n):
            results = []
            for rule, cores in ((compile_lines(adamw_update), 1), (compile_lines(adamw_update), 3), (adamw_update, 1)):
                rng = np.random.default_rng(seed)
                shape = [int(rng.choice([1, 2, 7, 65])), 3][:1 + seed % 2] if seed != 5 else [0]
                p, g, m, v = (drawn(rng, dtype, shape, constant) for constant in (0, 0.2, 0, 0))
                np.abs(v, out=v)
                with unchanged(g), small_parts(row_bytes=100, cores=cores):
                    made = rule(p, g, m, v, 0.01, 0.02, 1e-8, 0.9, 0.95, seed % 2 / 10, [1.0, 0.3][seed // 2 % 2])
                assert all(ours is given for ours, given in zip(made, (p, m, v), strict=True))
                results.append(made)
            assert_alike(results[0], results[2], 1e-12 if dtype is np.float64 else 1e-5)
            for one, three in zip(*results[:2], strict=True):
                np.testing.assert_array_equal(one, three)
        assert kernel.cache_info().misses


def vector_function(name, dtype, *arguments):
    """Return vectors.name(x), or of two arrays, computed by a loop."""
    x, *more = (np.array(each, dtype) for each in arguments)
    names = ["x", *["y"] * len(more)]
    loop = kernel(f"def loop({', '.join(names)}, out):\n    for i in range(x.size):\n"
                  f"        out[i] = {name}({', '.join(f'{each}[i]' for each in names)})", np.dtype(dtype))
    out = np.empty_like(x)
    loop(x, *more, out)
    return out


@DTYPES
@pytest.mark.parametrize(("name", "single", "double"), [
    ("exp", 8e-8, 1e-14), ("tanh", 5e-7, 2e-15), ("erf", 3e-7, 2e-15)])
def test_a_vector_function(name, single, double, dtype):
    limits, wide = np.finfo(dtype), np.float64 if name == "erf" else np.longdouble
    expected_of = erf if name == "erf" else getattr(np, name)
    least, most = np.log(float(limits.tiny)), np.log(2.0) * (limits.maxexp - 0.5)       # infinity half a bit too early
    near = np.geomspace(1e-30, 1, 10_001)
    x = np.concatenate([np.linspace(least, most, 100_001)[1:-1], near, -near, [0.0]]).astype(dtype)
    x = x[(x > least) & (x < most)]
    tolerance = single if dtype is np.float32 else double
    np.testing.assert_allclose(
        vector_function(name, dtype, x), expected_of(x.astype(wide)), rtol=tolerance
    )
    ends = np.array([-np.inf, np.inf, np.nan, 0.0, limits.min, limits.max, least - 1, most + 1], dtype)
    expected = expected_of(ends)
    expected[6] = 0.0 if name == "exp" else -1.0        # subnormal results become 0
    np.testing.assert_array_equal(vector_function(name, dtype, ends), expected)


@DTYPES
def test_maximum(dtype):
    x, y = np.array([*itertools.product([1.0, -2.0, 0.0, np.inf, -np.inf, np.nan], repeat=2)], dtype).T.copy()
    np.testing.assert_array_equal(vector_function("maximum", dtype, x, y), np.maximum(x, y))


TINY, OTHER = (f"def f(x):\n    y = np.tanh(x) * {number}\n    y = y - y.mean(axis=-1, keepdims=True)\n    return y\n"
               for number in (2.0, 3.0))


def fresh_result(source=TINY):
    """Run a function as a new process does, and return how often Numba compiled a function."""
    x = np.random.default_rng(0).standard_normal((3, 5))
    function = defined(source)
    with loops_by("numba"), mock.patch.object(compiler, "compile_extra", wraps=compiler.compile_extra) as compiles:
        np.testing.assert_allclose(compile_lines(function)(x), function(x), rtol=0, atol=1e-14)
        assert kernel.cache_info().misses == 1
    return compiles.call_count


DAMAGES = {"a folder": lambda path, data: (path.unlink(), path.mkdir()),
           "a bit": lambda path, data: path.write_bytes(data[:999] + bytes([data[999] ^ 1]) + data[1000:]),
           "a pipe": lambda path, data: (path.unlink(), os.mkfifo(path))}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the compiled loops, with one file."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert fresh_result() > 0
    return tmp_path / "npgpt" / "loops"


def test_a_file_of_the_cache_is_used_but_not_that_of_another_loop(cache):
    [path] = cache.iterdir()
    assert fresh_result() == 0
    assert fresh_result(OTHER) > 0 and path.exists()
    [other] = {*cache.iterdir()} - {path}
    path.write_bytes(other.read_bytes())
    assert fresh_result() > 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_again(damage, cache):
    [path] = cache.iterdir()
    DAMAGES[damage](path, path.read_bytes())
    assert fresh_result() > 0
    assert path.is_dir() or fresh_result() == 0         # it was replaced


def test_the_cache_is_private_whatever_the_umask_is(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "shared"))
    before = os.umask(0o002)
    try:
        assert fresh_result() > 0
    finally:
        os.umask(before)
    loops = tmp_path / "shared" / "npgpt" / "loops"
    modes = [each.stat().st_mode & 0o777 for each in (loops.parent, loops, *loops.iterdir())]
    assert modes == [0o700, 0o700, 0o600]
    assert fresh_result() == 0


def given_away(path):
    """Make a file or folder another user's; without the right to do so, let others write to it."""
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        path.chmod(0o777)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has no modes")
@pytest.mark.parametrize(
    ("which", "change"),
    [
        ("npgpt", given_away),
        ("npgpt/loops", given_away),
        ("npgpt/loops", lambda path: path.chmod(0o720)),
        ("npgpt/loops", lambda path: path.chmod(0o702)),
    ],
    ids=["another user's", "another user's loops", "the group writes", "others write"],
)
def test_a_folder_that_others_may_write_to_is_not_used(which, change, cache, capfd):
    """Nothing is read or written there, and one line says why."""
    change(cache.parent.parent / which)
    before = {each: each.stat().st_mtime_ns for each in (cache, *cache.iterdir())}
    say_once.cache_clear()
    for source in (TINY, TINY, OTHER):
        assert fresh_result(source) > 0
    assert before == {each: each.stat().st_mtime_ns for each in (cache, *cache.iterdir())}
    told = f"npgpt: {cache.parent.parent / which} is not private, so loops are compiled anew: "
    assert capfd.readouterr().err.count(told) == 1


def linked(path):
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to("../elsewhere")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has no modes")
@pytest.mark.parametrize("change", [given_away, linked], ids=["another user's", "a link"])
def test_a_file_that_others_may_write_to_is_replaced(change, cache):
    [path] = cache.iterdir()
    change(path)
    assert fresh_result() > 0
    assert fresh_result() == 0


def test_without_a_folder_each_process_compiles(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert fresh_result() > 0 and fresh_result() > 0


def test_an_edited_function_is_compiled_again():
    x = np.random.default_rng(0).standard_normal((3, 5))
    with loops_by("python"):
        function, other = defined(TINY), defined(OTHER)
        before, expected, call = function(x), other(x), compile_lines(function)
        np.testing.assert_allclose(call(x), before, rtol=0, atol=1e-14)
        function.__code__ = other.__code__
        np.testing.assert_allclose(call(x), expected, rtol=0, atol=1e-14)
        assert compile_lines(function) is call and kernel.cache_info().misses == 2
        assert abs(expected - before).max() > 0.1


def test_an_index_beyond_the_row():
    """Raises NumPy's error, and nothing outside of the row is read or written; a negative one counts from the end."""
    logits, targets = np.random.default_rng(0).standard_normal((3, 5)), np.array([4, 1, -2])
    with loops_by("numba"):
        forward = compile_lines(layers.cross_entropy_forward)
        assert_alike(forward(logits, targets), layers.cross_entropy_forward(logits, targets), 1e-14)
        for wrong in (5, -6, 1 << 40):
            with pytest.raises(IndexError, match="out of bounds"):
                forward(logits, np.array([0, 1, wrong]))


def test_what_is_not_compiled_runs_as_it_stands(tmp_path):
    """A function without source, with a decorator, of an enclosing function, a generator."""
    names, twice = {"np": np}, 2.0
    exec("def f(x):\n    y = x * 2.0 + x\n    return y\n", names)
    decorated = defined("import functools\n@functools.lru_cache\ndef g(x):\n    return x\n\n\n"
                        "def keep(h):\n    return h\n\n\n@keep\ndef f(x):\n    y = x * 2.0 + x\n    return y\n")

    def enclosed(x):
        y = x * twice + x
        return y

    def generator(x):
        y = x * 2.0 + x
        yield y

    x = np.ones((2, 3))
    with loops_by("python"):
        for each in (names["f"], decorated, enclosed):
            np.testing.assert_array_equal(compile_lines(each)(x), 3.0 * x)
        np.testing.assert_array_equal(list(compile_lines(generator)(x)), [3.0 * x])
        assert kernel.cache_info().misses == 0
