"""Find the tokenizer of a pretrained model."""

from pathlib import Path

from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import TOKENIZER_FILE, GPT2Tokenizer, load_tokenizer, make_tokenizer
from npgpt.errors import UserError

TOKENIZER_FILES = (TOKENIZER_FILE, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
                   "merges.txt")


def model_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Return a model's tokenizer: npgpt's own file, a tokenizer.json, or GPT-2's if the vocabulary has its size."""
    if (folder / TOKENIZER_FILE).exists():
        tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    elif vocab_size == GPT2Tokenizer.vocab_size:
        tokenizer = GPT2Tokenizer()
    elif (folder / "tokenizer.json").exists():
        tokenizer = make_tokenizer(f"hf:{folder / 'tokenizer.json'}")
    else:
        raise UserError(f"{folder} contains neither {TOKENIZER_FILE} nor tokenizer.json: copy the "
                        "model's tokenizer there")
    if tokenizer.vocab_size > vocab_size:
        raise UserError(f"the tokenizer in {folder} has {tokenizer.vocab_size} tokens, but the model only "
                        f"{vocab_size}: copy the model's tokenizer there")
    return tokenizer
