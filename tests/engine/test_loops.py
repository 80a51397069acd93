"""The compiler of lesson lines: against NumPy on the whole lesson; its functions and its cache.

Most loops run as plain Python here, which tests what the compiler writes; some by Numba.
"""

import contextlib
import operator
import os
from unittest import mock

import numpy as np
import pytest

from npgpt import layers
from npgpt.study.lessons.random_settings import random_settings
from npgpt.study.lessons.table import LAYERS, lesson_named
from tests.cases import arrays_in, small_parts
from tests.helpers.lines import DTYPES, PAIRS, arguments_of, assert_alike, defined, results_of

pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
from numba.core import compiler
from scipy.special import erf

from npgpt.engine.loops import segment, vectors
from npgpt.engine.loops.lines import compile_lines
from npgpt.engine.loops.segment import kernel
from npgpt.errors import say_once

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the mean of nothing
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
# by Numba in float64: tests/engine/test_cpu.py
BY = [("python", 16, np.float64), ("python", 16, np.float32), ("numba", 1, np.float32)]


IN_PYTHON = {"exp": np.exp, "tanh": np.tanh, "erf": erf, "maximum": np.maximum, "add": operator.add}


@contextlib.contextmanager
def loops_by(what):
    """Functions are compiled anew, and their loops run by "numba", or as plain Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPGPT_CHECK_LOOPS", "never")  # no mistake is hidden
        if what == "python":
            for name, function in IN_PYTHON.items():
                patch.setattr(vectors, name, function)
            patch.setattr(segment, "jit", lambda function, source: function)
        for each in (kernel, compile_lines):
            each.cache_clear()
        yield
        for each in (kernel, compile_lines):
            each.cache_clear()


def assert_same_bits(one, other):
    for ours, theirs in zip(arrays_in(one), arrays_in(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("by", "n", "dtype"), BY)
@pytest.mark.parametrize("name", PAIRS)
def test_the_lesson(name, by, n, dtype):
    """Any sizes, layouts, switches and masks; the number of cores changes no bit."""
    plain = getattr(layers, f"{name}_forward"), getattr(layers, f"{name}_backward")
    with loops_by(by):
        pairs = [(tuple(map(compile_lines, plain)), ())]
        if name == "cross_entropy":  # dlogits may replace the logits
            forward, backward = plain
            given_up = compile_lines(forward, ("logits",)), compile_lines(backward, ("probs",))
            pairs.append((given_up, (0,)))
        for seed, setting in enumerate(random_settings(LAYERS[name], 0)[:n]):
            lesson = lesson_named(name, setting)
            expected = results_of(plain, *arguments_of(lesson, seed, dtype))
            for pair, given_up in pairs:
                found = []
                for cores in (1, 3):
                    with small_parts(row_bytes=100, cores=cores):
                        found.append(results_of(pair, *arguments_of(lesson, seed, dtype), given_up))
                assert_alike(found[0], expected, TOLERANCE[dtype])
                assert_same_bits(*found)
        has_loops = name not in ("dropout", "embedding", "head")
        assert kernel.cache_info().misses or n == 1 or not has_loops


def by_a_loop(name, dtype, x, *more):
    """Return a function of vectors.py of x, or of x and y, computed by a loop."""
    given, values = ("x, y", "x[i], y[i]") if more else ("x", "x[i]")
    source = (
        f"def loop({given}, out):\n    for i in range(x.size):\n        out[i] = {name}({values})"
    )
    out = np.empty_like(x)
    kernel(source, np.dtype(dtype))(x, *more, out)
    return out


@DTYPES
@pytest.mark.parametrize(
    ("name", "single", "double"),
    [("exp", 8e-8, 1e-14), ("tanh", 5e-7, 2e-15), ("erf", 3e-7, 2e-15)],
)
def test_a_vector_function(name, single, double, dtype):
    """Subnormal results become 0, and those near the largest number infinity half a bit early."""
    exact = erf if name == "erf" else getattr(np, name)
    limits = np.finfo(dtype)
    least, most = np.log(float(limits.tiny)), np.log(2.0) * (limits.maxexp - 0.5)
    near = np.geomspace(1e-30, 1, 10_001)
    x = np.concatenate([np.linspace(least, most, 100_001)[1:-1], near, -near]).astype(dtype)
    wide = x.astype(np.float64 if name == "erf" else np.longdouble)
    tolerance = single if dtype is np.float32 else double
    np.testing.assert_allclose(by_a_loop(name, dtype, x), exact(wide), rtol=tolerance)
    ends = [-np.inf, np.inf, np.nan, 0.0, limits.min, limits.max, least - 1, most + 1]
    ends = np.array(ends, dtype)
    expected = exact(ends)
    expected[6] = 0.0 if name == "exp" else -1.0
    np.testing.assert_array_equal(by_a_loop(name, dtype, ends), expected)


@DTYPES
def test_maximum(dtype):
    numbers = np.array([1.0, -2.0, 0.0, np.inf, -np.inf, np.nan], dtype)
    x, y = (each.ravel() for each in np.meshgrid(numbers, numbers))
    np.testing.assert_array_equal(by_a_loop("maximum", dtype, x, y), np.maximum(x, y))


TINY, OTHER = (
    f"def f(x):\n    y = x * {number}\n    y = y + 1.0\n    return y\n" for number in (2.0, 3.0)
)


def fresh_result(source=TINY):
    """Run a function as a new process does, and return how often Numba compiled a function."""
    x = np.random.default_rng(0).standard_normal((3, 5))
    function = defined(source)
    with (
        loops_by("numba"),
        mock.patch.object(compiler, "compile_extra", wraps=compiler.compile_extra) as compiles,
    ):
        np.testing.assert_allclose(compile_lines(function)(x), function(x), rtol=0, atol=1e-14)
        assert kernel.cache_info().misses == 1
    return compiles.call_count


posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no modes")


def changed(data):
    return data[:999] + bytes([data[999] ^ 1]) + data[1000:]


def linked(path):
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to("../elsewhere")


DAMAGES = {
    "a bit": lambda path: path.write_bytes(changed(path.read_bytes())),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "another user's": lambda path: given_away(path),
    "a link": linked,
}


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


@posix
def test_a_damaged_file_is_compiled_again(cache):
    """Or one that others may write to."""
    for damage in DAMAGES.values():
        [path] = cache.iterdir()
        damage(path)
        assert fresh_result() > 0
        assert fresh_result() == 0  # it was replaced


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
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert fresh_result() > 0  # without a folder each process compiles


def given_away(path):
    """Make a file or folder another user's; without the right to do so, let others write to it."""
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        path.chmod(0o777)


@posix
@pytest.mark.parametrize(
    ("which", "change"),
    [("npgpt", given_away), ("npgpt/loops", lambda path: path.chmod(0o720))],
    ids=["another user's", "the group writes"],
)
def test_a_folder_that_others_may_write_to_is_not_used(which, change, cache, capfd):
    """Nothing is read or written there, and one line says why."""
    folder = cache.parent.parent / which
    change(folder)
    before = {each: each.stat().st_mtime_ns for each in (cache, *cache.iterdir())}
    say_once.cache_clear()
    for source in (TINY, OTHER):
        assert fresh_result(source) > 0
    assert before == {each: each.stat().st_mtime_ns for each in (cache, *cache.iterdir())}
    told = f"npgpt: {folder} is not private, so loops are compiled anew: "
    assert capfd.readouterr().err.count(told) == 1


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


def test_what_is_not_compiled_runs_as_it_stands():
    """A function without source, with a decorator, of an enclosing function, a generator."""
    names, twice = {"np": np}, 2.0
    exec("def f(x):\n    y = x * 2.0 + x\n    return y\n", names)
    decorated = defined(
        "def keep(h):\n    return h\n\n\n@keep\ndef f(x):\n    y = x * 2.0 + x\n    return y\n"
    )

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
        np.testing.assert_array_equal([*compile_lines(generator)(x)], [3.0 * x])
        assert kernel.cache_info().misses == 0
