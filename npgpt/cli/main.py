"""The command `npgpt`: one file per subcommand, and one place where errors become one line and exit code 2."""

import argparse
import difflib
import itertools
import re
import sys
import traceback
import warnings
from typing import Any

import npgpt
from npgpt.checks import check
from npgpt.cli import data, evaluate, export, info, plot, sample, score, train
from npgpt.cli.ranks import follow, join
from npgpt.engine.memory import out_of_memory
from npgpt.errors import UserError, describe, one_line
from npgpt.interrupts import EXIT_CODE, interruptible
from npgpt.launcher import first
from npgpt.model.block import FUNCTIONS

COMMANDS: dict[str, Any] = {"train": train, "sample": sample, "eval": evaluate, "score": score, "export": export,
                            "data": data, "info": info, "plot": plot}
try:
    from npgpt.cli import exercise, gradcheck, learn, look, notebook, study
    COMMANDS |= {"look": look, "study": study, "gradcheck": gradcheck, "exercise": exercise, "learn": learn,
                 "notebook": notebook}
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("npgpt.study"):
        raise
    COMMANDS |= dict.fromkeys(("look", "study", "gradcheck", "exercise", "learn", "notebook"))
LESS_MEMORY = "lower --batch-size (--gradient-accumulation-steps makes up for it), --block-size or the model's size"
ALIASES = {"--lr": "--learning-rate", "--wd": "--weight-decay", "--steps": "--max-iters", "--heads": "--n-head",
           "--seq-len": "--block-size"}      # what others call a flag
INSTEAD = {"--compile": "--kernels numba (the default if it is installed) and --kernels xla compile",
           "--dataset": "--corpus names the data", "--start": "npgpt sample has --prompt",
           "--num-samples": "npgpt sample has -n", "--eval-only": "npgpt eval does that",
           "--decay-lr": "--lr-decay-iters 0 is no decay", "--backend": "mpiexec starts several processes",
           "--always-save-checkpoint": "the best and the last checkpoint are kept",
           "--wandb-log": "metrics.jsonl has all figures, and in Python a Trainer calls on_step"}       # of nanoGPT


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
            near = ({ALIASES.get(name)} & flags.keys() or [flag for flag in flags if flag.startswith(name)]
                    or difflib.get_close_matches(name, flags, 1, cutoff=0.7))
            instead = INSTEAD.get(name.replace("_", "-")) or near and f"did you mean {' or '.join(near)}?"
            if name.startswith("--"):
                self.error(f"unknown flag {name}" + (f": {instead}" if instead else ""))
        return namespace, unknown

    def error(self, message):
        raise UserError(f"{message} (see {self.prog} --help)")


def main(arguments=None):
    """Run a command line, a list of strings (those of the process if None). Returns the exit code."""
    if hasattr(sys.stdout, "reconfigure"):      # a terminal that lacks a character shows a question mark
        sys.stdout.reconfigure(errors="replace")
    world, code = None, 1
    try:
        world = join()
        with out_of_memory(LESS_MEMORY), interruptible():
            warnings.filterwarnings("ignore", category=RuntimeWarning)  # a model that overflows is reported in one line
            if world and world.rank > 0:
                code = follow(world)
            else:
                args = parse(arguments)
                if world and args.command != "train":
                    raise UserError(f"npgpt {args.command} runs in one process: start it without mpiexec or srun")
                if COMMANDS[args.command] is None:
                    raise UserError(f"npgpt {args.command} is not available: this installation lacks npgpt/study")
                code = COMMANDS[args.command].run(args)     # None, or 1 if a check failed
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
    except Exception as error:
        if not (place := place_in_block(error)):
            raise
        code = fail(describe(error), place, world)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = EXIT_CODE
    finally:
        if world:
            world.end(code)
    return code


def place_in_block(error):
    """Return the file and line of a block of one's own at which an error was raised, also in a compiled function."""
    frames = [(frame.f_globals, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((f"{names['__file__']}, line {line}" for names, line in reversed(frames)
                 if names.keys() >= {*FUNCTIONS, "__file__"}), None)


def parse(arguments):
    """Parse a command line; UserError if it is not valid."""
    parser = Parser(prog="npgpt", description="GPT-2 from scratch in NumPy, with every gradient written by hand.")
    parser.add_argument("--version", action="version", version=f"npgpt {npgpt.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        if module is None:
            subparsers.add_parser(name, help="(not in this installation)")
            continue
        summary = module.__doc__.splitlines()[0]
        module.add_arguments(subparsers.add_parser(
            name, help=summary, description=getattr(module, "DESCRIPTION", summary)))
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["exercise"] and arguments[1:] and arguments[1].endswith(".py"):
        arguments = ["exercise", exercise.OWN, *arguments[1:]]
    for argument in arguments:          # argparse would take this -- for the end of the options
        if re.fullmatch(r"(--[\w-]+=|-\w=?)--", argument):
            raise UserError(f"{argument} has no value: give it one that is not --")
    args = parser.parse_args(arguments)
    for name in ("text", "prompt", "stop"):     # a surrogate stands for a byte that is not UTF-8, as a path may have
        check(f"--{name}", text := vars(args).get(name), not re.search("[\ud800-\udfff]", text or ""), "UTF-8 text")
    return args


def fail(message, subject=None, world=None):
    """Print one line about what is wrong. Returns the exit code for it."""
    line = f"{one_line(subject, 300)}: {message}" if subject else message
    if world is None and not first():       # all ranks fail alike: only the first reports it
        return 0
    who = f"{world.name}: " if world and world.rank > 0 else ""
    print(f"npgpt: {who}{one_line(line)}", file=sys.stderr)
    return 2
