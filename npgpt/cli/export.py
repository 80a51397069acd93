"""Export a model to a folder that transformers can open."""

from npgpt.checkpoints.config_json import unsupported_by_transformers
from npgpt.checkpoints.tensorfile import NAMES
from npgpt.checkpoints.tokenizer_files import write_tokenizer
from npgpt.checks import check_path
from npgpt.cli.arguments import add_model_argument, load_given_model
from npgpt.errors import UserError, remark
from npgpt.files import new_folder


def add_arguments(parser):
    add_model_argument(parser)
    parser.add_argument("--out", required=True, help="the folder to write, new or empty")
    parser.add_argument(
        "--dtype",
        choices=NAMES,
        help="the type of the stored weights; by default that of the model",
    )


def run_export(args):
    check_path("--out", args.out)
    with new_folder(args.out) as folder:
        loaded = load_given_model(args)
        config = loaded.model.config
        if field := unsupported_by_transformers(config):
            raise UserError(
                f"{field}={getattr(config, field)} has no counterpart in transformers' GPT-2"
            )
        loaded.model.save_pretrained(folder, dtype=args.dtype)
        write_tokenizer(loaded.tokenizer, folder, config.block_size, loaded.folder)
    remark(
        f"{args.out}: open it with transformers' GPT2LMHeadModel.from_pretrained, or npgpt's "
        "GPT.from_pretrained"
    )
