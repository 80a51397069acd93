"""Write a model as a folder that transformers opens."""

import json
from pathlib import Path

from npgpt.cli.load import add_model_argument, load_given_model
from npgpt.errors import UserError
from npgpt.files import write_atomically
from npgpt.pretrained.tokenizer import TOKENIZER_FILES
from npgpt.text.tokenizers import TOKENIZER_FILE, save_tokenizer


def add_arguments(parser):
    add_model_argument(parser)
    parser.add_argument("--out", required=True, help="the folder to write; it must not hold a model yet")


def run(args):
    out = Path(args.out)
    if (out / "config.json").exists() or (out / "model.safetensors").exists():
        raise UserError(f"{out} holds a model already: choose another folder, or delete it")
    loaded = load_given_model(args)
    loaded.model.save_pretrained(out)
    for name in TOKENIZER_FILES:
        if (loaded.folder / name).exists():
            write_atomically(out / name, (loaded.folder / name).read_bytes())
    if loaded.tokenizer.kind == "hf":       # the checkpoint keeps a tokenizer.json within its own file
        write_atomically(out / "tokenizer.json", json.dumps(loaded.tokenizer.description).encode())
    save_tokenizer(loaded.tokenizer, out / TOKENIZER_FILE)
    print(f"{out}: open it with transformers' GPT2LMHeadModel.from_pretrained, or npgpt's GPT.from_pretrained")
