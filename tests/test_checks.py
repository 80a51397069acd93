"""Text from files is safe to print, and a value is shown in a short line."""

import pytest

from npgpt.checks import shown
from npgpt.errors import one_line


def test_what_is_shown_is_a_short_line():
    for value in (10**400, ["x" * 200], "a\nb", None):
        assert len(shown(value)) <= 80 and shown(value).isprintable()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" two \t words\r\n\u2028and ", "two words and"),
        ("\x1b[31mred\x07\x00\x9b \ud800 \u202e", "\\x1b[31mred\\x07\\x00\\x9b \\ud800 \\u202e"),
        ("a" * 20, "a" * 20),
        ("a" * 10 + "b" * 11, "aaaaaaa...bbbbbbbbbb"),
        (" " * (1 << 20) + "a", "a"),
        ("a" * 10 + "\x1b" * (1 << 20) + "1234567890", "aaaaaaa...1234567890"),
        (ValueError("é"), "é"),
        ("", ""),
    ],
)
def test_text_from_outside_is_safe_to_print(text, line):
    assert one_line(text, most=20 if "a" * 10 in str(text) else 1000) == line
