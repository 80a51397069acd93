"""Compare npgpt's speed with PyTorch's on this machine: ms per step, tokens/s, memory.

Each side works in a process of its own, on the same weights and batches with the same number of threads, and the sides
take turns. After each shape, bench.json, bench.md and bench.png in --out-dir hold all that is measured so far.
"""

from pathlib import Path

from npgpt.bench.measure import PEERS, installed, machine, measure
from npgpt.bench.report import markdown, write_report
from npgpt.bench.shapes import DEFAULT, SHAPES
from npgpt.engine.threads import available_cores
from npgpt.errors import UserError
from npgpt.files import make_folder


def add_arguments(parser):
    parser.add_argument("shapes", nargs="*", metavar="SHAPE",
                        help=f"{', '.join(SHAPES)} or all; by default {' '.join(DEFAULT)}: A and B small models, C and "
                             "D GPT-2's 124M, E the preset char-cpu from start to end, gen1 and gen5 generation")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side; by default 7 (E and scaling: 3)")
    parser.add_argument("--threads", type=int, help="of every side; by default one a core")
    parser.add_argument("--peers", help=f"{','.join(PEERS)}; by default all that are installed")
    parser.add_argument("--out-dir", default="bench", help="where the files go; by default bench")


def run(args):
    names = SHAPES if "all" in args.shapes else dict.fromkeys(args.shapes or DEFAULT)
    peers = list(PEERS) if args.peers is None else args.peers.split(",")
    threads = available_cores() if args.threads is None else args.threads
    check("shape", names, SHAPES)
    check("peer", peers, PEERS)
    if args.rounds < 1 or threads < 1:
        raise UserError(f"--rounds and --threads must be at least 1, not {args.rounds} and {threads}")
    out_dir = Path(args.out_dir)
    make_folder(out_dir)
    missing = [peer for peer in peers if not installed(peer)]
    results = {"machine": machine(threads), "threads": threads, "rounds": args.rounds, "shapes": {}}
    for name in names:
        present = [peer for peer in peers if peer not in missing]
        results["shapes"][name] = measure(name, SHAPES[name], present, threads, args.rounds)
        files = write_report(results, out_dir)
    print(markdown(results), end="")
    if missing:
        print(f'\nnot installed: {", ".join(missing)}; for the comparison: pip install "npgpt[test]"')
    if "bench.png" not in files:
        print('\nno bench.png: drawing needs matplotlib: pip install "npgpt[plot]"')
    print(f"\nin {out_dir}: {', '.join(files)}")


def check(what, names, known):
    """UserError for the first of the names that is not known."""
    for name in names:
        if name not in known:
            raise UserError(f"{what} {name!r} is not known: choose of {', '.join(known)}")
