"""The command `npgpt`: one file per subcommand, and one place where errors become one line and exit
code 2.
"""

import argparse
import difflib
import errno
import importlib
import itertools
import re
import sys
import textwrap
import warnings

import npgpt
from npgpt import errors
from npgpt.cli.output import say, set_encoding
from npgpt.cli.processes import end_if_failed, is_connected, is_first, launched
from npgpt.errors import UserError, one_line

COMMANDS = {  # npgpt/cli/<name>.py, which is imported only if it is the command that runs
    "train": "Train a model, or continue a run with --resume.",
    "sample": "Write text with a trained model.",
    "eval": "Measure loss, perplexity and bits per byte of a model on a text.",
    "score": "Show how much each token of a text surprises a model, in colours and bits, and the "
    "perplexity.",
    "export": "Export a model to a folder that transformers can open.",
    "data": "Prepare a corpus as token files.",
    "info": "Show a model's parameters, the memory that training needs, and the engines on this "
    "machine.",
    "plot": 'Draw the loss curve of a run as a PNG (needs the extra "plot").',
    "look": "Write a page about a model on a text: attention, logit lens, gradients (needs the "
    'extra "study").',
    "study": "Write the study page: every layer's forward beside its backward (needs the extra "
    '"study").',
    "gradcheck": "Verify the gradient of every line of every layer, or of a layer in your own "
    "file, to 30 digits.",
    "exercise": "Write the missing lines of a backward yourself, and have them checked line by "
    "line.",
    "learn": "Learn backprop: one exercise after the other, each checked whenever you save its "
    "file.",
    "notebook": 'Write the lessons as Jupyter notebooks (needs the extra "notebook").',
}
# Flags of nanoGPT and other programs: what is there instead -> their names.
INSTEAD = {
    "it is --learning-rate here": "--lr",
    "it is --weight-decay here": "--wd",
    "it is --max-iters here": "--steps --num-steps --iters",
    "it is --corpus here": "--dataset",
    "it is --prompt here": "--start",
    "--lr-decay-iters 0 keeps the learning rate constant": "--decay-lr",
    "leave it out; --kernels xla compiles": "--compile",
    "leave it out; npgpt eval measures the loss of a run": "--eval-only",
    "leave it out; the best and the latest checkpoint are kept": "--always-save-checkpoint",
    "leave it out; metrics.jsonl has the losses, and npgpt plot draws them": (
        "--wandb-log --wandb-project --wandb-run-name"
    ),
    "leave it out; mpiexec starts several processes": "--backend",
    "give the folder alone, as MODEL": "--out-dir",
    "give the model alone, as MODEL": "--init-from",
}
ELSEWHERE = {flag: hint for hint, flags in INSTEAD.items() for flag in flags.split()}
LESS_MEMORY = (
    "lower --batch-size (--gradient-accumulation-steps makes up for it), --block-size or the "
    "model's size"
)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Never break a path: it can be copied."""

    def _split_lines(self, text, width):
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaint is one line. Flags are spelled out, and --max_iters is
    --max-iters.
    """

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=Formatter, **options)

    def parse_known_args(self, args, namespace=None):
        flags = self._option_string_actions  # of this command alone
        given = []
        args = list(args)
        for i, argument in enumerate(itertools.takewhile("--".__ne__, args)):
            name, sign, value = argument.partition("=")
            flag = name.replace("_", "-")
            if name.startswith("--") and flag in flags:
                args[i] = flag + sign + value
                given.append(flag)
                if sign and flags[flag].nargs == 0:
                    spelled = " or ".join(flags[flag].option_strings)
                    self.error(f"{name} takes no value: write {spelled}")
            elif self.offers(ELSEWHERE.get(flag)):  # argparse takes --start="To be" for a MODEL
                self.error(f"unknown flag {name}: {ELSEWHERE[flag]}")
        if given.count("--corpus") > 1:
            self.error("--corpus was given twice: put the texts into one file")
        namespace, unknown = super().parse_known_args(args, namespace)
        for argument in itertools.takewhile("--".__ne__, unknown):
            name = argument.partition("=")[0]
            near = [flag for flag in flags if flag.startswith(name)] or difflib.get_close_matches(
                name, flags, 1, cutoff=0.7
            )
            if name.startswith("--"):
                self.error(
                    f"unknown flag {name}"
                    + (f": did you mean {' or '.join(near)}?" if near else "")
                )
        return namespace, unknown

    def offers(self, hint):
        """Whether a hint is given, and this command has the flags and arguments in it."""
        if hint is None or self._subparsers is not None:
            return False
        there = {*self._option_string_actions, *(action.dest.upper() for action in self._actions)}
        return there.issuperset(re.findall("--[a-z-]+|[A-Z]+", hint))

    def error(self, message):
        raise UserError(f"{message} (see {self.prog} --help)")


def main(arguments=None):
    """Run a command line, a list of strings (None: the process's). Returns the exit code."""
    set_encoding("stdout")
    set_encoding("stderr")
    code = 1
    try:
        args = parse(arguments)
        if launched()[0] > 1 and not (args.command == "train" and args.kernels == "xla"):
            raise UserError(
                "only `npgpt train --kernels xla` runs in several processes: start this "
                "without mpiexec or srun"
            )
        errors.quiet = getattr(args, "quiet", False)
        from npgpt.engine.memory import keep_freed_memory, out_of_memory

        keep_freed_memory()
        with out_of_memory(LESS_MEMORY):
            warnings.filterwarnings(
                "ignore", category=RuntimeWarning
            )  # a model that overflows is reported in one line
            code = args.function(args) or 0  # None, or 1 if a check failed
        print(end="", flush=True)  # to None if it is closed
    except UserError as error:
        code = fail(error)
    except BrokenPipeError:  # `npgpt … | head`: the reader has closed the pipe, which is no error
        sys.stdout = None
        code = 0
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:  # files are named
            error.filename = "standard output"
            sys.stdout = None
        code = fail(error.strerror or error, error.filename)
    except MemoryError as error:
        code = fail(f"out of memory ({error}): {LESS_MEMORY}")
    except ImportError as error:
        code = fail(f"{error}: this installation is incomplete, or the memory is full")
    except KeyboardInterrupt:
        if is_first():
            say("interrupted")
        code = 130  # what shells report for Ctrl-C
    finally:
        end_if_failed(code)
    return code


def parse(arguments):
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command, *others = arguments
    if command == "exercise" and others and re.search(r"\.py(:|$)", others[0]):
        arguments = ["exercise", "file", *others]
    parser = Parser(
        prog="npgpt",
        description="GPT-2 from scratch in NumPy, with every gradient written by hand.",
    )
    parser.add_argument("--version", action="version", version=f"npgpt {npgpt.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary)
        if command == name:
            module = importlib.import_module(f"npgpt.cli.{name}")
            subparser.description = module.__doc__
            subparser.set_defaults(function=getattr(module, f"run_{name}"))
            module.add_arguments(subparser)
    args = parser.parse_args(arguments)
    for name in ("text", "prompt", "stop"):
        if text := getattr(args, name, None):
            try:  # a surrogate stands for a byte that the locale does not know
                setattr(args, name, text.encode("utf-8", "surrogateescape").decode())
            except UnicodeError:
                raise UserError(f"--{name} must be UTF-8 text, not {text!r}") from None
    return args


def fail(message, subject=None):
    """Print one line about what is wrong. Returns the exit code for it."""
    if subject:
        message = f"{one_line(subject, 300)}: {message}"
    who = "" if is_first() else f"process {launched()[1]}: "
    if is_first() or is_connected():  # before they are connected, all processes fail alike
        say(f"npgpt: {who}{one_line(message)}")
    return 2
