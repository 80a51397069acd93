"""The command `npgpt`: one file per subcommand, and one place where errors become one line and exit code 2."""

import argparse
import re
import sys

import npgpt
from npgpt.cli import data, evaluate, exercise, export, gradcheck, info, learn, plot, sample, study, train
from npgpt.engine.cuda.memory import out_of_memory
from npgpt.errors import UserError, one_line

COMMANDS = {"train": train, "sample": sample, "eval": evaluate, "export": export, "data": data, "info": info,
            "plot": plot, "study": study, "gradcheck": gradcheck, "exercise": exercise,
            "learn": learn}
LESS_MEMORY = "lower --batch-size (--gradient-accumulation-steps makes up for it), --block-size or the model's size"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaint is one line."""

    def error(self, message):
        raise UserError(f"{message} (see {self.prog} --help)")


def main(arguments=None):
    """Run a command line, a list of strings (those of the process if None). Returns the exit code."""
    if hasattr(sys.stdout, "reconfigure"):      # a terminal that lacks a character shows a question mark
        sys.stdout.reconfigure(errors="replace")
    try:
        args = parse(arguments)
        with out_of_memory(LESS_MEMORY):
            code = COMMANDS[args.command].run(args)     # None, or 1 if a check failed
        sys.stdout.flush()
        return code or 0
    except UserError as error:
        return fail(error)
    except BrokenPipeError:         # `npgpt … | head`: the reader has closed the pipe, which is no error
        sys.stdout = None
    except OSError as error:
        return fail(error.strerror or error, error.filename)
    except MemoryError as error:
        return fail(f"out of memory ({error}): {LESS_MEMORY}")
    except ImportError as error:
        return fail(f"{error}: this installation is incomplete, or the memory is full")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def parse(arguments):
    """Parse a command line; UserError if it is not valid."""
    parser = Parser(prog="npgpt", description="GPT-2 from scratch in NumPy, with every gradient written by hand.")
    parser.add_argument("--version", action="version", version=f"npgpt {npgpt.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = module.__doc__.splitlines()[0]
        module.add_arguments(subparsers.add_parser(name, help=summary, description=summary))
    arguments = sys.argv[1:] if arguments is None else arguments
    for argument in arguments:          # argparse would take this -- for the end of the options
        if re.fullmatch(r"(--[\w-]+=|-\w=?)--", argument):
            raise UserError(f"{argument} has no value: give it one that is not --")
    return parser.parse_args(arguments)


def fail(message, subject=None):
    """Print one line about what is wrong. Returns the exit code for it."""
    line = f"{one_line(subject, 300)}: {message}" if subject else message
    print(f"npgpt: {one_line(line)}", file=sys.stderr)
    return 2
