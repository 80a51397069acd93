"""Measure everything that `npgpt bench` knows, and write the table into README.md.

    python tools/bench.py [--rounds 7] [--threads N]

The files go to the folder bench; the table goes between the lines <!-- bench --> and <!-- /bench --> of README.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npgpt.bench.report import replace_between_markers
from npgpt.cli.main import main as npgpt
from npgpt.errors import UserError
from npgpt.files import write_atomically

README = Path(__file__).resolve().parents[1] / "README.md"


def main():
    try:
        replace_between_markers(README.read_text(encoding="utf-8"), "bench", "")    # complains now, not half an hour on
        code = npgpt(["bench", "all", *sys.argv[1:], "--out-dir", "bench"])
        if code == 0:
            table = Path("bench/bench.md").read_text(encoding="utf-8")
            new = replace_between_markers(README.read_text(encoding="utf-8"), "bench", table)
            write_atomically(README, new.encode())
        return code
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
