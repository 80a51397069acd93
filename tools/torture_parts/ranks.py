"""Training on ranks, one of which is killed: the job ends soon, leaves no process, and can go on."""

import time

from torture_parts.jobs import Job, lines_of, why_no_jobs
from torture_parts.running import complaints, must_work, run
from torture_parts.runs import End, content, differences, new_folder

SIZES = (3, 2, 3, 4, 3)     # ranks of a case, in turns
SECONDS = 10                # within which a job must end that has lost a rank
HANGS = 120                 # seconds after which a job hangs
TRAIN = ("train --out-dir out --corpus text.txt --batch-size 6 --eval-iters 2 --log-interval 1 --n-layer 1 --n-head 2 "
         "--n-embd 8 --block-size 8 --warmup-iters 2 --lr-decay-iters 20 --dropout 0.2 --eval-interval 4 "
         "--gradient-accumulation-steps 2 --max-iters 60").split()
FIRST = "step     0"
RESUME = "train --out-dir out --resume".split()
CODE = """
import sys, npgpt.cli.train
from npgpt.cli.main import main
npgpt.cli.train.SAMPLE_TOKENS, npgpt.cli.train.draw_if_possible = 2, lambda out_dir: ""
sys.exit(main())
"""


def setup_ranks(folder):
    """Number of ranks -> End of a run of one process with as many threads; its seconds are those that the ranks take
    until step 0, and from then on.
    """
    if why := why_no_jobs():
        print(f"ranks: nothing is done, because {why}")
        return {}
    (folder / "figures").mkdir()
    ends = {}
    for n in sorted(set(SIZES)):
        alone, on_ranks = new_folder(folder / f"alone-with-{n}"), new_folder(folder / f"together-{n}")
        if result := must_work(run([*TRAIN, "--threads", n], alone), "one process"):
            raise SystemExit(f"torture: {result}")
        began = time.monotonic()
        job = Job(n, CODE, [*TRAIN, "--threads", 1], on_ranks)
        job.wait_for(FIRST, HANGS)
        started = time.monotonic()
        code, *printed = job.end(HANGS)
        ends[n] = End((started - began, time.monotonic() - started), 0, content(alone / "out"))
        if code or content(on_ranks / "out") != ends[n].made:
            raise SystemExit(f"torture: {n} ranks do not do what one process does: {printed}")
    return ends


def ranks(rng, number, folder, ends):
    """Kill one of the ranks with SIGKILL; then one process, or as many ranks, must end the run with the right bits.

    Every fourth is killed before step 0.
    """
    if not ends:
        return []
    n = SIZES[number % len(SIZES)]
    victim, early = rng.randrange(n), number % 4 == 3
    first, rest = ends[n].seconds
    moment = rng.uniform(0.2, first) if early else rng.uniform(0.0, rest)
    what = f"a rank is killed, {'early' if early else 'training'}"
    job = Job(n, CODE, [*TRAIN, "--threads", 1], folder)
    try:
        if not early:
            job.wait_for(FIRST, HANGS)
        time.sleep(moment)
        killed, before = job.kill(f"rank {victim}"), time.monotonic()
        code, out, err = job.end(HANGS)
    except TimeoutError as error:
        return [f"{what}: {error} | rank {victim} of {n}, after {moment:.2f} s"]
    seconds, done = time.monotonic() - before, "best validation loss" in out
    if killed and not done:
        (folder.parent / f"figures/{number}").write_text(str(seconds))
    wrong = {f"takes more than {SECONDS} seconds to end": seconds > SECONDS, "a traceback": "Traceback" in err,
             "not only the launcher speaks": lines_of(err), "exit code 0, but not at the end": not code and not done}
    found = [f"{what}: {text} | rank {victim} of {n}, after {moment:.2f} s: {err[-1500:]}"
             for text in wrong if wrong[text]]
    return found or goes_on(rng, n, folder, ends[n])


def goes_on(rng, n, folder, end):
    """What is wrong with the run after it is resumed."""
    line = RESUME if list(folder.glob("out/step-*/state.json")) else [*TRAIN, "--overwrite"]
    if rng.random() < 0.2:
        code, _, err = Job(n, CODE, [*line, "--threads", 1], folder).end(HANGS)
        found = [f"{n} ranks do not go on | {err[-1500:]}"] if code else []
    else:
        result = run([*line, "--threads", n], folder)
        found = must_work(result, "resumed after a rank is killed") or complaints(result, "resumed", (0,))
    return found or differences(folder / "out", [end], "resumed after a rank is killed")


def ranks_summary(folder):
    """What the cases have measured, a text. Called once, at the end."""
    seconds = sorted(float(path.read_text()) for path in folder.glob("figures/*"))
    if not seconds:
        return "no rank was killed"
    return (f"{len(seconds)} jobs ended by a kill, after {seconds[len(seconds) // 2]:.2f} s (median), "
            f"{seconds[-1]:.2f} s (slowest)")
