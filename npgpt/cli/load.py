"""Arguments that choose the model of a command."""

from npgpt.api import load_model
from npgpt.cli.arguments import add_block_argument, add_device_arguments


def add_model_argument(parser):
    """Add MODEL, --revision, --which, --block, --device, --threads, --kernels."""
    parser.add_argument("model", nargs="?", default="out",
                        help="a run (by default out), a folder with config.json and model.safetensors, a .safetensors "
                             "file, tiny, which comes with npgpt, or a model on the hub: gpt2, distilgpt2, owner/name")
    parser.add_argument("--revision", help="branch, tag or commit of a model on the hub")
    parser.add_argument("--which", choices=("best", "latest"), default="best",
                        help="the checkpoint of a run with the lowest validation loss (default), or the latest")
    add_block_argument(parser)
    add_device_arguments(parser)


def load_given_model(args):
    """Return the `Loaded` model that the arguments choose."""
    return load_model(args.model, args.revision, args.which, device=args.device, threads=args.threads,
                      kernels=args.kernels, block=args.block)
