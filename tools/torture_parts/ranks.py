"""Training on ranks, one of which is killed: the job ends soon, leaves no process, and can go on."""

import time

from torture_parts.running import must_work, run
from torture_parts.runs import End, content, differences, new_folder

from tests.engine.distributed.jobs import Job, lines_of, why_no_jobs

SIZES = (3, 2, 3, 4, 3)     # ranks of a case, in turns
SECONDS = 10                # within which a job must end that has lost a rank
HANGS = 120                 # seconds after which a job hangs
TRAIN = ("train --out-dir out --corpus text.txt --batch-size 6 --eval-iters 2 --log-interval 1 --n-layer 1 --n-head 2 "
         "--n-embd 8 --block-size 8 --warmup-iters 2 --lr-decay-iters 20 --dropout 0.2 --eval-interval 4 "
         "--gradient-accumulation-steps 2 --max-iters 60").split()
RESUME = "train --out-dir out --resume".split()
CODE = """
import sys, npgpt.cli.train
from npgpt.cli.main import main
npgpt.cli.train.SAMPLE_TOKENS, npgpt.cli.train.draw_if_possible = 2, lambda out_dir: ""
sys.exit(main())
"""


def setup_ranks(folder):
    """Number of ranks -> End of a run of one process with as many threads; its seconds are those that the ranks take.
    """
    if why := why_no_jobs():
        print(f"ranks: nothing is done, because {why}")
        return {}
    ends = {}
    for n in sorted(set(SIZES)):
        alone, on_ranks = new_folder(folder / f"alone-with-{n}"), new_folder(folder / f"together-{n}")
        if result := must_work(run([*TRAIN, "--threads", n], alone), "one process"):
            raise SystemExit(f"torture: {result}")
        began = time.monotonic()
        code, *printed = Job(n, CODE, [*TRAIN, "--threads", 1], on_ranks).end(HANGS)
        ends[n] = End(time.monotonic() - began, 0, content(alone / "out"))
        if code or content(on_ranks / "out") != ends[n].made:
            raise SystemExit(f"torture: {n} ranks do not do what one process does: {printed}")
    return ends


def ranks(rng, number, folder, ends):
    """Kill one of the ranks with SIGKILL; then one process, or as many ranks, must end the run with the right bits."""
    if not ends:
        return []
    n = SIZES[number % len(SIZES)]
    victim, moment = rng.randrange(n), rng.uniform(0.0, ends[n].seconds)
    job = Job(n, CODE, [*TRAIN, "--threads", 1], folder)
    time.sleep(moment)
    job.kill(f"rank {victim}")
    killed = time.monotonic()
    try:
        code, out, err = job.end(HANGS)
    except TimeoutError as error:
        return [f"a rank is killed: {error} | rank {victim} of {n}, after {moment:.2f} s"]
    wrong = {f"takes more than {SECONDS} seconds to end": time.monotonic() - killed > SECONDS,
             "not only the launcher speaks": "Traceback" in err or lines_of(err),
             "exit code 0, but not at the end": not code and "best validation loss" not in out}
    found = [f"a rank is killed: {text} | rank {victim} of {n}, after {moment:.2f} s: {err[-1500:]}"
             for text in wrong if wrong[text]]
    return found or goes_on(rng, n, folder, ends[n])


def goes_on(rng, n, folder, end):
    """What is wrong with the run after it is resumed."""
    line = RESUME if list(folder.glob("out/step-*/state.json")) else [*TRAIN, "--overwrite"]
    what = "resumed after a rank is killed"
    if rng.random() < 0.2:
        code, _, err = Job(n, CODE, [*line, "--threads", 1], folder).end(HANGS)
        found = [f"{n} ranks do not go on | {err[-1500:]}"] if code else []
    else:
        found = must_work(run([*line, "--threads", n], folder), what)
    return found or differences(folder / "out", [end], what)
