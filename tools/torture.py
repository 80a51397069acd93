"""Kill npgpt, limit its disk and memory, and give it damaged files; report every loss and every
crash.

    python tools/torture.py                                     all parts, about fifteen minutes
    python tools/torture.py kills files --share 0.1 --seed 7  a tenth of two parts
    python tools/torture.py files --case 4711    repeat one case, with its output; keep its folder

kills:      a training run that is killed and resumed ends with the same bits
replaced:   the same for --overwrite
limits:     full disks, little memory, two processes in one folder
files:      damaged files, and links, pipes and folders instead of files

A case depends only on (seed, part, number), except for the moments of timed kills. The exit code is
1 if anything was found. Unix only; memory is measured and limited on Linux only.
"""

import argparse
import functools
import gc
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
from torture_parts.files import files, setup_files
from torture_parts.runs import kills, limits, new_folder, replaced, setup_runs
from tqdm import tqdm

import npgpt.cli.train

PARTS = {  # name -> (function for a case, function that makes the shared folders, number of cases)
    "kills": (kills, setup_runs, 600),
    "replaced": (replaced, setup_runs, 1000),
    "limits": (limits, setup_runs, 400),
    "files": (files, setup_files, 5000),
}


def do_case(part, seed, folder, made, number):
    """Run a case in a worker. Return its findings, each with a command that repeats it."""
    here = new_folder(folder / f"{part}-{number}")
    try:
        found = PARTS[part][0](random.Random(f"{seed} {part} {number}"), number, here, made)
    except Exception as error:  # in this program, or in npgpt called directly
        found = [f"the case itself fails: {error!r} | {traceback.format_exc()[-600:]}"]
    if not running.verbose:
        shutil.rmtree(here, ignore_errors=True)
    again = f"python tools/torture.py {part} --seed {seed} --case {number}"
    return [(part, text.replace(f"{here}/", ""), again) for text in found]


def quiet_world(folder):
    """Use no file of the user's home, no network, and no locks shared by forks; skip slow steps."""
    os.environ.update(
        {
            **dict.fromkeys(
                ("HF_HOME", "MPLCONFIGDIR", "NPGPT_DATA_DIR", "TIKTOKEN_CACHE_DIR"), str(folder)
            ),
            "HF_HUB_OFFLINE": "1",
            "RUST_BACKTRACE": "0",
            "TOKENIZERS_PARALLELISM": "false",
            **dict.fromkeys(
                ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"
            ),
        }
    )
    import matplotlib.figure  # noqa: F401 (once, not in every fork)
    import tokenizers  # noqa: F401

    npgpt.cli.train.SAMPLE_TOKENS = 2
    sys.dont_write_bytecode = True
    tqdm.set_lock(threading.RLock())  # a killed fork would keep tqdm's own lock
    tqdm.monitor_interval = 0
    gc.freeze()  # forks then copy less memory


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"{', '.join(PARTS)}"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of all cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat one case of one part, with its output")
    args = parser.parse_args(argv)
    memory = (
        "/dev/shm" if "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK) else None
    )  # fast, on Linux
    scratch = Path(tempfile.mkdtemp(prefix="torture-", dir=memory)).resolve()
    quiet_world(scratch)
    running.verbose = args.case is not None
    findings, shared = [], {}
    try:
        for part in args.parts or PARTS:
            began, (_, setup, count) = time.monotonic(), PARTS[part]
            folder = scratch / setup.__name__
            if setup not in shared:
                folder.mkdir()
                shared[setup] = setup(folder)
            numbers = [args.case] if running.verbose else range(max(1, round(count * args.share)))
            do = functools.partial(do_case, part, args.seed, folder, shared[setup])
            # Only this process handles Ctrl-C.
            with multiprocessing.get_context("fork").Pool(
                2, signal.signal, (signal.SIGINT, signal.SIG_IGN)
            ) as pool:
                done = pool.imap_unordered(do, numbers)
                found = sum(tqdm(done, desc=part, total=len(numbers), unit="case", leave=False), [])
            findings += found
            seconds = round(time.monotonic() - began)
            print(
                f"{part}: {len(numbers):,} cases, {len(found):,} findings, {seconds} s", flush=True
            )
    finally:
        if running.verbose:
            print(f"the folder of the case: {folder}/{part}-{args.case}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    kinds = {
        (part, re.sub(r"\.[0-9a-f]{8}\b|\d+", "N", text.split(" | ")[0])): (text, again)
        for part, text, again in findings
    }
    for (part, _), (text, again) in sorted(
        kinds.items()
    ):  # one of each kind, with a command that repeats it
        print(f"\n{part}: {text[:500]}\n    {again}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
