"""The command `npgpt`: one file per subcommand, and one place where errors become one line and exit code 2."""

import argparse
import difflib
import importlib
import itertools
import re
import sys
import warnings

import npgpt
from npgpt.errors import UserError, one_line
from npgpt.interrupts import EXIT_CODE, interruptible
from npgpt.launcher import SIZES, first, number_in

COMMANDS = {        # npgpt/cli/<name>.py, which is imported only if it is the command that runs
    "train": "Train a model, or continue a run with --resume.",
    "sample": "Write text with a trained model.",
    "eval": "Measure loss, perplexity and bits per byte of a model on a text.",
    "score": "Show how much each token of a text surprises a model, in colours and bits, and the perplexity.",
    "export": "Export a model to a folder that transformers can open, or its LoRA as an adapter of peft.",
    "data": "Prepare a corpus as token files.",
    "info": "Show a model's parameters, the memory that training needs, and the engines on this machine.",
    "plot": 'Draw the loss curve of a run as a PNG (needs the extra "plot").',
    "look": 'Write a page about a model on a text: attention, logit lens, and gradients (needs the extra "study").',
    "study": 'Write the study page: every layer\'s forward beside its backward (needs the extra "study").',
    "gradcheck": "Verify the gradient of every line of every layer, or of a layer in your own file, to 30 digits.",
    "exercise": "Write the missing lines of a backward yourself, and have them checked line by line.",
    "learn": "Learn backprop: one exercise after the other, each checked whenever you save its file.",
    "notebook": 'Write the lessons as Jupyter notebooks (needs the extra "notebook").',
}
LESS_MEMORY = "lower --batch-size (--gradient-accumulation-steps makes up for it), --block-size or the model's size"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaint is one line. Flags are spelled out, and --max_iters is --max-iters."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse_known_args(self, args, namespace=None):
        flags = self._option_string_actions         # of this command alone
        for i, argument in enumerate(itertools.takewhile("--".__ne__, args)):
            name, *value = argument.partition("=")
            if name.startswith("--") and name.replace("_", "-") in flags:
                args = [*args[:i], name.replace("_", "-") + "".join(value), *args[i + 1:]]
        namespace, unknown = super().parse_known_args(args, namespace)
        for argument in itertools.takewhile("--".__ne__, unknown):
            name = argument.partition("=")[0]
            near = ([flag for flag in flags if flag.startswith(name)]
                    or difflib.get_close_matches(name, flags, 1, cutoff=0.7))
            if name.startswith("--"):
                self.error(f"unknown flag {name}" + (f": did you mean {' or '.join(near)}?" if near else ""))
        return namespace, unknown

    def error(self, message):
        raise UserError(f"{message} (see {self.prog} --help)")


def main(arguments=None):
    """Run a command line, a list of strings (those of the process if None). Returns the exit code."""
    if hasattr(sys.stdout, "reconfigure"):      # a terminal that lacks a character shows a question mark
        sys.stdout.reconfigure(errors="replace")
    world, code = None, 1
    try:
        if number_in(SIZES, 1) > 1:
            from npgpt.cli.ranks import follow, mpi_world  # imports most of npgpt

            world = mpi_world()
        follows = world is not None and world.rank > 0
        args = None if follows else parse(arguments)
        if world and not follows and args.command != "train":
            raise UserError(f"npgpt {args.command} runs in one process: start it without mpiexec or srun")
        from npgpt.engine.memory import keep_freed_memory, out_of_memory

        keep_freed_memory()
        with out_of_memory(LESS_MEMORY), interruptible():
            warnings.filterwarnings("ignore", category=RuntimeWarning)  # a model that overflows is reported in one line
            code = follow(world) if follows else args.function(args)      # None, or 1 if a check failed
        sys.stdout.flush()
        code = code or 0
    except UserError as error:
        code = fail(error, world=world)
    except BrokenPipeError:         # `npgpt … | head`: the reader has closed the pipe, which is no error
        sys.stdout, code = None, 0
    except OSError as error:
        code = fail(error.strerror or error, error.filename, world)
    except MemoryError as error:
        code = fail(f"out of memory ({error}): {LESS_MEMORY}", world=world)
    except ImportError as error:
        code = fail(f"{error}: this installation is incomplete, or the memory is full", world=world)
    except KeyboardInterrupt:
        if first():
            print("interrupted", file=sys.stderr)
        code = EXIT_CODE
    finally:
        if world:
            world.end(code)
    return code


def parse(arguments):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["exercise"] and arguments[1:] and arguments[1].endswith(".py"):
        arguments = ["exercise", "file", *arguments[1:]]
    parser = Parser(prog="npgpt", description="GPT-2 from scratch in NumPy, with every gradient written by hand.")
    parser.add_argument("--version", action="version", version=f"npgpt {npgpt.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary)
        if arguments[:1] == [name]:
            module = importlib.import_module(f"npgpt.cli.{name}")
            subparser.description = module.__doc__
            subparser.set_defaults(function=module.run)
            module.add_arguments(subparser)
    args = parser.parse_args(arguments)
    for name in ("text", "prompt", "stop"):     # a surrogate stands for a byte that is not UTF-8, as a path may have
        if re.search("[\ud800-\udfff]", text := vars(args).get(name) or ""):
            raise UserError(f"--{name} must be UTF-8 text, not {text!r}")
    return args


def fail(message, subject=None, world=None):
    """Print one line about what is wrong. Returns the exit code for it."""
    line = f"{one_line(subject, 300)}: {message}" if subject else message
    if world is None and not first():       # all ranks fail alike: only the first reports it
        return 0
    who = f"{world.name}: " if world and world.rank > 0 else ""
    print(f"npgpt: {who}{one_line(line)}", file=sys.stderr)
    return 2
