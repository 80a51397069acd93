"""A model and its tokenizer from a checkpoint, for the commands that use one."""

from npgpt.cli.arguments import add_device_arguments
from npgpt.gpt import GPT
from npgpt.training.checkpoint import find_checkpoint, read_checkpoint


def add_checkpoint_arguments(parser):
    """MODEL, --which, --device, --threads."""
    parser.add_argument("model", nargs="?", default="out", help="the folder of a run, or of one of its checkpoints")
    parser.add_argument("--which", choices=("best", "latest"), default="best",
                        help="which checkpoint of a run: the one of the lowest validation loss (default), or the last")
    add_device_arguments(parser)


def load_model(args):
    """(model, checkpoint) as the arguments of `add_checkpoint_arguments` say. UserError where it does not load."""
    checkpoint = read_checkpoint(find_checkpoint(args.model, args.which))
    model = GPT(checkpoint.config, dtype=checkpoint.state["options"]["dtype"], device=args.device, threads=args.threads)
    checkpoint.load_parameters(model.params)
    return model, checkpoint
