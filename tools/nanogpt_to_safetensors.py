"""Convert a nanoGPT checkpoint to a folder that npgpt and transformers load.

    python tools/nanogpt_to_safetensors.py out/ckpt.pt FOLDER [--text input.txt]

A checkpoint has no tokenizer. For a vocabulary of 50257 or 50304 GPT-2's is used. For a character
model give the
training text: nanoGPT's meta.pkl is not read, because reading a pickle can run code.

Needs torch, which reads the checkpoint with weights_only=True.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np

from npgpt import GPT, GPTConfig
from npgpt.cli.main import fail
from npgpt.data.tokenizers import TOKENIZER_FILE, CharTokenizer, GPT2Tokenizer, save_tokenizer
from npgpt.errors import UserError, one_line

SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "bias", "dropout")
GPT2_VOCABULARIES = (50257, 50304)  # nanoGPT pads it to a multiple of 64
PREFIX = re.compile(r"^(module\.|_orig_mod\.)*(transformer\.)?")
LINEAR = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def read_checkpoint(path):
    """Return (model_args, name -> tensor) of a checkpoint. Raises UserError, and OSError if there
    is no file.
    """
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of many types; the message would advise running the code
        raise UserError(
            f"{path} is damaged, or torch cannot read it without running its code "
            f"({type(error).__name__}): give nanoGPT's ckpt.pt"
        ) from None
    match found:
        case {"model": dict(state), "model_args": dict(args)} if args.keys() >= {*SIZES}:
            tensors = {}
            for name, value in state.items():
                # torch.compile and DataParallel add prefixes.
                ours = PREFIX.sub("", str(name), count=1)
                if ours in tensors:
                    raise UserError(f"{path} has {ours} twice, under two prefixes, now as {name}")
                tensors[ours] = value
            masks = [name for name in tensors if name.endswith(".attn.bias")]  # in older versions
            return args, {name: tensors[name] for name in tensors if name not in masks}
    raise UserError(
        f"{path} is not a checkpoint of nanoGPT: it has no model, or no model_args with "
        f"{', '.join(SIZES)}"
    )


def model_from(path):
    """Return the GPT of a checkpoint. Raises UserError and OSError."""
    args, state = read_checkpoint(path)
    head, wte = state.pop("lm_head.weight", None), state.get("wte.weight")
    tied = head is None or wte is not None and head.shape == wte.shape and bool((head == wte).all())
    model = GPT(
        GPTConfig(
            **{name: args[name] for name in SIZES}, activation="gelu", tie_word_embeddings=tied
        ),
        None,
    )
    if not tied:
        state["lm_head.weight"] = head
    for name in sorted(state.keys() ^ model.params.keys()):
        raise UserError(
            f"{path}: {name} is {'unknown' if name in state else 'missing'}, this is not nanoGPT's "
            "GPT"
        )
    for name, value in state.items():
        try:
            value = value.detach().float().numpy()
            model.params[name] = value.T if name.endswith(LINEAR) else value  # torch has (out, in)
        except (
            UserError,
            AttributeError,
            TypeError,
            RuntimeError,
        ) as error:  # another shape, or no tensor
            raise UserError(f"{path}: {one_line(error, 200)}") from None
        if not np.isfinite(value).all():
            raise UserError(f"{path}: {name} has NaN, infinity, or numbers beyond float32")
    return model


def tokenizer_for(vocab_size, text):
    """Return the tokenizer of a model. text: the path of its training text, or None. Raises
    UserError.
    """
    if text is None and vocab_size in GPT2_VOCABULARIES:
        return GPT2Tokenizer()
    if text is None:
        raise UserError(
            f"the vocabulary of {vocab_size} is not GPT-2's: give the text of training, --text "
            "input.txt"
        )
    tokenizer = CharTokenizer.from_text(Path(text).read_text("utf-8"))
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{text} has {tokenizer.vocab_size} different characters, but the model knows "
            f"{vocab_size}: give the text that it was trained on"
        )
    return tokenizer


def main(arguments=None):
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", metavar="ckpt.pt")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", help="the training text of a character model")
    args = parser.parse_args(arguments)
    try:
        model = model_from(args.checkpoint)
        tokenizer = tokenizer_for(model.config.vocab_size, args.text)
        model.save_pretrained(args.folder)
        save_tokenizer(tokenizer, args.folder / TOKENIZER_FILE)
    except UserError as error:
        return fail(error)
    except OSError as error:
        return fail(error.strerror or error, error.filename)
    print(f"{args.folder}: {model.params.size:,} parameters, tokenizer {tokenizer.kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
