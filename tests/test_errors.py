"""Text from outside is made safe to print."""

import pytest

from npgpt.errors import one_line


@pytest.mark.parametrize(("text", "line"), [
    (" two \t words\r\n\u2028and ", "two words and"),
    ("\x1b[31mred\x07\x00\x9b \ud800 \u202e", "\\x1b[31mred\\x07\\x00\\x9b \\ud800 \\u202e"),
    ("a" * 20, "a" * 20), ("a" * 10 + "b" * 11, "aaaaaaa...bbbbbbbbbb"), (" " * (1 << 20) + "a", "a"),
    ("a" * 10 + "\x1b" * (1 << 20) + "1234567890", "aaaaaaa...1234567890"),
    (ValueError("é"), "é"), ("", ""),
])
def test_one_line(text, line):
    assert one_line(text, most=20 if "a" * 10 in str(text) else 1000) == line
