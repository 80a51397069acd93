"""Measure speed and memory beside PyTorch and transformers, or beside an older npgpt. Linux only.

    python tools/bench                      rows A B C D gen1 gen5
    python tools/bench --instructions avx2  restrict all sides to AVX2 on a CPU that has AVX-512;
    without xla python tools/bench A --sides npgpt,fast,torch           npgpt by NumPy and by Numba;
    PyTorch python tools/bench --old FOLDER A B     beside another checkout of npgpt instead python
    tools/bench gpu                  on a GPU: 124M and baby GPT

bench.json and bench.md in --out-dir are rewritten after each row, on a GPU after each side; the
folder stderr has the processes' standard error. The exit status is 1 if a side failed or had
another result.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from measure import Side, figures, jobs, measure
from report import markdown, write_report
from shapes import GROUPS, ROWS, SIDES, installed


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join([*ROWS, *GROUPS]))
    parser.add_argument(
        "--sides",
        help=f"such as npgpt,torch, of {', '.join(SIDES)}; default: all that are installed; with "
        "--old npgpt,old",
    )
    parser.add_argument(
        "--old",
        type=Path,
        metavar="FOLDER",
        help="another checkout of npgpt, the side old; on a CPU",
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    parser.add_argument(
        "--instructions", choices=["avx2"], help="restrict all sides to these; default: the CPU's"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every side"
    )
    parser.add_argument("--out-dir", type=Path, default=Path("bench"))
    args = parser.parse_args()
    args.rows = [row for name in args.rows or ["cpu"] for row in GROUPS.get(name, (name,))]
    other = {"old", *(["xla"] if args.instructions else [])}
    default = (
        ["npgpt", "old"]
        if args.old
        else [side for side in SIDES if side not in other and installed(side)]
    )
    args.sides = args.sides.split(",") if args.sides else default
    if unknown := [*({*args.rows} - {*ROWS}), *({*args.sides} - {*SIDES})]:
        parser.error(f"not known: {', '.join(unknown)}")
    if args.instructions and "xla" in args.sides:
        parser.error(
            "XLA's matmuls choose their instructions themselves: leave the side xla out, or "
            "--instructions"
        )
    if "old" in args.sides and not (args.old and (args.old / "npgpt" / "__init__.py").exists()):
        parser.error(f"no npgpt in --old {args.old}")
    return args


def main():
    args = parse()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # `timeout` ends the children, too
    args.out_dir.mkdir(parents=True, exist_ok=True)
    setup = {
        "threads": args.threads,
        "old": args.old and args.old.resolve(),
        "out_dir": args.out_dir,
        "instructions": args.instructions,
    }
    machine = Side("machine", "tiny", args.out_dir, setup).ask_once()
    results = {"machine": {**machine, "threads": args.threads, "rounds": args.rounds}, "rows": {}}
    answers, failed = {}, {}
    for row, sides in jobs(args.rows, args.sides):
        print(f"{row}: {', '.join(sides)} …", file=sys.stderr, flush=True)
        for so_far, more in zip(
            (answers, failed), measure(row, sides, args.rounds, setup), strict=True
        ):
            so_far.setdefault(row, {}).update(more)
        results["rows"][row] = figures(ROWS[row], answers[row], failed[row])
        write_report(results, args.out_dir)
    print(markdown(results), end="")
    return int(
        not all(
            figures.get("same")
            for row in results["rows"].values()
            for figures in row["sides"].values()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
