"""Random values (hypothesis) are either valid or refused in one line."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from npgpt import GPTConfig, UserError
from npgpt.checkpoints.config_json import config_to_fields
from npgpt.checks import check_real, check_whole, shown
from npgpt.errors import one_line
from npgpt.files import read_json, read_toml
from npgpt.model.parameters import parameter_shapes
from npgpt.training.options import TrainOptions

NUMBERS = st.one_of(st.integers(), st.sampled_from([10**400, -10**400, 10**5000, 2**31, 2**53 + 1]), st.floats(),
                    st.booleans(), st.floats().map(np.float64), st.integers(-2**31, 2**31).map(np.int64),
                    st.floats(0, 1).map(np.longdouble), st.fractions(0, 1))
VALUES = st.one_of(NUMBERS, st.none(), st.text(max_size=9), st.binary(max_size=9), st.complex_numbers(),
                   st.lists(st.integers(), max_size=2), st.just(object()), st.just(np.zeros(2)))
FEW = settings(max_examples=150, deadline=None, derandomize=True, database=None,
               suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(call):
    """Whether a call is refused; in one line, if it is."""
    try:
        call()
    except UserError as error:
        assert one_line(error) == str(error)
        return True
    return False


@FEW
@given(VALUES, st.integers(-5, 5), st.integers(0, 10**6))
def test_a_whole_number_is_one_in_its_range(value, least, length):
    right = isinstance(value, int | np.integer) and not isinstance(value, bool) and least <= value <= least + length
    assert refused(lambda: check_whole("x", value, least, least + length)) != right


@FEW
@given(VALUES)
@example(1.0)
@example(0.0)
def test_a_real_number_is_finite_and_in_its_range(value):
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool | complex | np.complexfloating)
    finite = number and abs(value) < 2**1023 and math.isfinite(value)
    assert refused(lambda: check_real("x", value, below=1.0)) != (finite and 0 <= value < 1)
    assert refused(lambda: check_real("x", value, above=0.0)) != (finite and value > 0)


@FEW
@given(st.sampled_from([(kind, field) for kind in (GPTConfig, TrainOptions) for field in kind.__annotations__]), VALUES)
def test_a_config_and_options_are_refused_or_can_be_stored(field, value):
    kind, name = field
    made = []
    if not refused(lambda: made.append(kind(**{name: value}))):
        fields = config_to_fields(made[0]) if kind is GPTConfig else dataclasses.asdict(made[0])
        json.dumps(fields, allow_nan=False)
        if kind is GPTConfig:
            sizes = [math.prod(shape) for shape in parameter_shapes(made[0]).values()]
            assert len(sizes) < 20_000 and all(0 < size < 2**60 for size in sizes)


@FEW
@given(st.one_of(st.binary(max_size=60), st.text("[]{}\",:0123456789.eE+-\\u NaItfl", max_size=60).map(str.encode)))
@example(b"[" * 100_000)
@example(b"9" * 5000)
@example(b"[1, NaN]")
@example(b"[1e400]")        # infinite: the range is checked by the caller
def test_a_file_is_refused_or_holds_json(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    made = []
    if not refused(lambda: made.append(read_json(tmp_path / "x"))):
        assert json.loads(json.dumps(made[0])) == made[0]
    refused(lambda: read_toml(tmp_path / "x"))


@FEW
@given(VALUES, st.text())
def test_what_is_shown_is_a_short_line(value, text):
    for line in (shown(value), one_line(text, 50)):
        assert len(line) <= 80 and line.isprintable()


@pytest.mark.parametrize(("text", "line"), [
    (" two \t words\r\n\u2028and ", "two words and"),
    ("\x1b[31mred\x07\x00\x9b \ud800 \u202e", "\\x1b[31mred\\x07\\x00\\x9b \\ud800 \\u202e"),
    ("a" * 20, "a" * 20), ("a" * 10 + "b" * 11, "aaaaaaa...bbbbbbbbbb"), (" " * (1 << 20) + "a", "a"),
    ("a" * 10 + "\x1b" * (1 << 20) + "1234567890", "aaaaaaa...1234567890"),
    (ValueError("é"), "é"), ("", ""),
])
def test_text_from_outside_is_safe_to_print(text, line):
    assert one_line(text, most=20 if "a" * 10 in str(text) else 1000) == line
