"""Torture npgpt: kill it, starve it, feed it damaged files and odd arguments; report what is lost or let in.

    python tools/torture.py                                     all parts, about fifteen minutes
    python tools/torture.py kills files --minutes 5 --seed 7    some parts, so long at most, with another seed
    python tools/torture.py --kills 1000 --files 100000         so many cases of a part
    python tools/torture.py files --case 4711                   one case again, step by step; its folder is kept

kills: a run that is killed goes on to the same bits. replaced: so do --overwrite, export and data prepare. ranks: so
does a run on many ranks, one of which is killed; it needs mpi4py and mpiexec. limits: full disks, little memory, two
processes at once. files: damaged ones. commands: random command lines. A case depends on (seed, part, number) alone,
but for the moments of timed kills. The exit code is 1 if anything was found.
Unix only; memory is measured and limited on Linux only.
"""

import argparse
import collections
import contextlib
import functools
import gc
import inspect
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torture_parts import running
from torture_parts.commands import commands
from torture_parts.files import files, setup_files
from torture_parts.ranks import ranks, ranks_summary, setup_ranks
from torture_parts.runs import kills, limits, new_folder, replaced, setup_runs
from tqdm import tqdm

import npgpt.cli.train

PARTS = {       # name -> (a case, what makes the folders that cases share, how many cases)
    "kills": (kills, setup_runs, 600), "replaced": (replaced, setup_runs, 300), "limits": (limits, setup_runs, 400),
    "ranks": (ranks, setup_ranks, 100), "files": (files, setup_files, 20_000),
    "commands": (commands, setup_files, 3000)}
WORKERS = 2
IGNORE_CTRL_C = signal.SIGINT, signal.SIG_IGN      # it is for the process above


def do_case(name, seed, folder, made, deadline, number):
    """In a worker: do a case. Returns (number, findings); None after the deadline."""
    if time.monotonic() > deadline:
        return None
    here = new_folder(folder / f"{name}-{number}")
    try:
        found = PARTS[name][0](random.Random(f"{seed} {name} {number}"), number, here, made)
    except Exception as error:      # this program's own, or of a product so broken that it cannot be asked
        found = [f"the case itself fails: {error!r} | {traceback.format_exc()[-600:]}"]
    if not running.verbose:
        shutil.rmtree(here, ignore_errors=True)
    return number, [text.replace(f"{here}/", "") for text in found]


def quiet_world(folder):
    """From now on nothing of the user's home, no network, no locks that forks share; and some waits are skipped."""
    os.environ.update({
        **dict.fromkeys(("HOME", "HF_HOME", "MPLCONFIGDIR", "TIKTOKEN_CACHE_DIR"), str(folder)), "NPGPT_DATA_DIR": "",
        "HF_HUB_OFFLINE": "1", "RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false",
        "JAX_ENABLE_COMPILATION_CACHE": "false",        # it would be in the home
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")})
    inspect.getsource = functools.cache(inspect.getsource)
    npgpt.cli.train.SAMPLE_TOKENS = 2
    sys.dont_write_bytecode = True
    tqdm.set_lock(threading.RLock())            # tqdm's own is shared by forks, and a killed one would keep it
    tqdm.monitor_interval = 0
    for module in ("matplotlib.figure", "tokenizers"):      # once, not in every fork
        with contextlib.suppress(ImportError):
            __import__(module)
    gc.freeze()                                 # so that no fork copies what it inherits


def report(findings, counts):
    """Print each kind of finding once, and how many cases each part had."""
    kinds = collections.defaultdict(list)
    for finding in findings:
        kinds[finding[0], re.sub(r"\.[0-9a-f]{8}\b|\d+", "N", finding[1].split(" | ")[0])].append(finding)
    for (part, _), [(_, text, command), *more] in sorted(kinds.items()):
        print(f"\n{part}, {1 + len(more)} times: {text[:500]}\n    {command}")
    print(f"\n{'part':<10}{'cases':>9}{'findings':>10}{'kinds':>7}{'seconds':>9}")
    for part, (cases, seconds) in counts.items():
        found, of_part = (sum(each[0] == part for each in these) for these in (findings, kinds))
        print(f"{part:<10}{cases:>9,}{found:>10,}{of_part:>7}{seconds:>9.0f}")


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="the longest that all parts together may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="do one case of one part again, and tell what happens")
    for name, (_, _, count) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"cases; by default {count}")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}")
    if args.case is not None and len(args.parts) != 1:
        parser.error("--case is of one part: name it")
    return args


def main(argv=None):
    args = parse(argv)
    memory = "/dev/shm" if "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK) else None      # fast, on Linux
    scratch = Path(tempfile.mkdtemp(prefix="torture-", dir=memory)).resolve()
    quiet_world(scratch)
    findings, counts, shared, end = [], {}, {}, time.monotonic() + 60 * args.minutes
    parts = args.parts or list(PARTS)
    try:
        for i, name in enumerate(parts):
            began, (_, setup, _) = time.monotonic(), PARTS[name]
            folder = scratch / setup.__name__
            if setup not in shared:
                folder.mkdir()
                shared[setup] = setup(folder)
            running.verbose = args.case is not None
            numbers = [args.case] if running.verbose else range(vars(args)[name])
            deadline = began + (end - began) / (len(parts) - i)
            do = functools.partial(do_case, name, args.seed, folder, shared[setup], deadline)
            with multiprocessing.get_context("fork").Pool(WORKERS, signal.signal, IGNORE_CTRL_C) as pool:
                done = filter(None, tqdm(pool.imap_unordered(do, numbers), desc=name, total=len(numbers), unit="case"))
                for cases, (number, found) in enumerate(done, 1):
                    again = f"python tools/torture.py {name} --seed {args.seed} --case {number}"
                    findings += [(name, text, again) for text in found]
                    counts[name] = cases, time.monotonic() - began
            if name == "ranks":
                print(ranks_summary(folder))
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        if running.verbose:
            print(f"the folder of the case: {folder}/{name}-{args.case}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    report(findings, counts)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
