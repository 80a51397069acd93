"""Measure everything that `npgpt bench` knows, and write the table into README.md.

    python tools/bench.py [--rounds 7] [--threads N]

The files go to the folder bench; the table goes between the lines <!-- bench --> and <!-- /bench --> of README.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npgpt.cli.main import main as npgpt
from npgpt.errors import UserError
from npgpt.files import write_atomically

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"


def replace_between_markers(text, table):
    """The text with the table between the markers instead of what is there. UserError unless both are there, once."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"README.md needs the lines {BEGIN} and {END}, once and in this order: put them where the "
                        "table belongs")
    return f"{before}{BEGIN}\n{table}{END}{after}"


def main():
    try:
        replace_between_markers(README.read_text(encoding="utf-8"), "")     # complains now, not after half an hour
        code = npgpt(["bench", "all", *sys.argv[1:], "--out-dir", "bench"])
        if code == 0:
            table = Path("bench/bench.md").read_text(encoding="utf-8")
            write_atomically(README, replace_between_markers(README.read_text(encoding="utf-8"), table).encode())
        return code
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
