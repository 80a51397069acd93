"""Write the study page: every layer's forward beside its backward (needs the extra "study").

The page is one HTML file that needs no network. It shows the arrays of every line, the derivation
of its gradient, and the gradient check. With --open a local server shows the page, and its lines
and text can be edited.

The page of a file my_layer.py has the pairs of functions and the classes in it (see npgpt gradcheck
--help). They are checked in a process with limits, and then run in this one, too. That is no
sandbox: the code can do what you can, so use only files that you trust.
"""

import signal
import threading
import webbrowser

from npgpt.checkpoints.load import TINY
from npgpt.checkpoints.run import step_folders
from npgpt.checks import writable_file
from npgpt.cli.arguments import add_block_argument, add_quiet_argument
from npgpt.cli.exercise import add_input_argument, lessons_of
from npgpt.errors import UserError, remark
from npgpt.files import write_atomically
from npgpt.loading import load_model
from npgpt.study.page.live import Live
from npgpt.study.page.page import require_extra, study_page
from npgpt.study.page.server import Server
from npgpt.study.page.whole_model import MOST_TOKENS, study_model

FILE = "study.html"
RUN = "out"
PROMPT = "To be, or not to be"


def add_arguments(parser):
    parser.add_argument(
        "layer",
        nargs="?",
        default="all",
        metavar="LAYER",
        help="linear, attention, …, or a file my_layer.py; by default all",
    )
    add_input_argument(parser)
    parser.add_argument(
        "--checkpoint",
        help="a run, a folder or .safetensors file of a model, or a model of the hub; by default "
        f"tiny, which comes with npgpt, or with --open the run in {RUN}, if it exists",
    )
    add_block_argument(parser)
    add_quiet_argument(parser)
    parser.add_argument(
        "--prompt",
        default=PROMPT,
        help=f"the text that the model reads, 2 to {MOST_TOKENS} tokens; by default a line of "
        "Hamlet",
    )
    parser.add_argument("--out", help=f"the file to write; by default {FILE}")
    parser.add_argument(
        "--open",
        action="store_true",
        help="write no file; show the page in the browser, where its lines can be edited",
    )


def run_study(args):
    require_extra()
    lessons = lessons_of(args)
    if not args.open:
        out = writable_file("--out", args.out or FILE)
    elif args.out:
        raise UserError("--open writes no file: use either --open or --out")
    model, tokenizer, description = chosen_model(args.checkpoint, args.block, or_run=args.open)
    # may fail, so before the layers are checked
    study = study_model(model, tokenizer, args.prompt, description)
    if not args.open:
        return write_page(out, study_page(lessons, study), follow=bool(args.out))
    server = Server(Live(lessons, model, tokenizer, description).actions)
    page = study_page(lessons, study, {"token": server.token})
    print(f"{server.address} (press Ctrl-C to stop)", flush=True)
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:  # Windows lacks it
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C, so that the file is deleted
    with server.opener() as url:
        # a text browser would block
        threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()
        server.serve(page)
    print("stopped")


def write_page(out, page, follow):
    """Write a page, bytes, and print its size. follow: if `out` is a link, write to its target."""
    write_atomically(out, page, follow=follow)
    remark(f"{out}: {len(page) / 1e6:.2f} MB")


def chosen_model(checkpoint, block, or_run):
    """Return a model, its tokenizer, and what the page calls it.

    Without a checkpoint it is the run in RUN if `or_run`, or tiny.
    """
    if checkpoint is None and or_run and step_folders(RUN):
        checkpoint = RUN
    name = checkpoint or "tiny, which npgpt trained on Shakespeare's plays"
    # BLAS with two threads takes five times as long for matrices as small as tiny's.
    loaded = load_model(checkpoint or TINY, threads=None if checkpoint else 1, block=block)
    return loaded.model, loaded.tokenizer, name
