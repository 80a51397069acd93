"""Export a model to a folder that transformers can open."""

import json

from npgpt.checkpoints.tensorfile import NAMES
from npgpt.checks import check_path
from npgpt.cli.arguments import add_model_argument, load_given_model
from npgpt.data.hf_tokenizer import MOST_TOKENIZER_BYTES
from npgpt.data.tokenizers import TOKENIZER_FILE, save_tokenizer
from npgpt.files import new_folder, read_bytes

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")


def add_arguments(parser):
    add_model_argument(parser)
    parser.add_argument("--out", required=True, help="the folder to write, new or empty")
    parser.add_argument(
        "--dtype",
        choices=NAMES,
        help="the type of the stored weights; by default that of the model",
    )


def run(args):
    check_path("--out", args.out)
    with new_folder(args.out) as folder:
        loaded = load_given_model(args)
        loaded.model.save_pretrained(folder, args.dtype)
        for name in TOKENIZER_FILES:
            if (loaded.folder / name).exists():
                (folder / name).write_bytes(read_bytes(loaded.folder / name, MOST_TOKENIZER_BYTES))
        if loaded.tokenizer.kind == "hf":       # the checkpoint stores the tokenizer.json inside its own file
            (folder / "tokenizer.json").write_text(json.dumps(loaded.tokenizer.description), encoding="utf-8")
        save_tokenizer(loaded.tokenizer, folder / TOKENIZER_FILE)
    print(
        f"{args.out}: open it with transformers' GPT2LMHeadModel.from_pretrained, or npgpt's "
        "GPT.from_pretrained"
    )
