"""A model's tokenizer in transformers' files: read them, and write them."""

import hashlib
import itertools
import json
from pathlib import Path

from npgpt.data.hf_tokenizer import MOST_TOKENIZER_BYTES, HFTokenizer
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    NoTokenizer,
    save_tokenizer,
)
from npgpt.errors import UserError, say_once
from npgpt.files import read_bytes, read_json, write_json

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
GPT2_SHA256 = "d87e6c52eb5ed462a6b806fdea23a777afd8e5ccef882a07bf7d4cb2dff5c1cf"  # of is_gpt2
END = "<|endoftext|>"
BEGIN_OF_TEXT = ("<s>", "<bos>", "[BOS]", "[CLS]", END)  # the first one counts
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token

# How byte-level tokens spell a byte: a printable one is itself, the others are from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = sorted({*range(256)} - {*PRINTABLE})
BYTES = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(0x100 + i) for i, byte in enumerate(OTHERS)
}


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """Return the tokenizer in a model's files, or None if there are none.

    Added tokens that a model of `vocab_size` tokens lacks are left out, which standard error says:
    a [PAD], say, for which nobody has resized the model. Raises UserError, naming the file, if one
    is damaged or the extra "hf" is missing. GPT-2's tokenizer needs no extra.
    """
    description = read_description(folder)
    if description is None:
        return None
    beyond = []
    added = description.get("added_tokens")
    if not isinstance(added, list):
        added = []
    for token in list(added):
        match token:
            case {"id": int(i)} if i >= vocab_size:
                added.remove(token)
                beyond.append(str(token.get("content")))
    if beyond:
        say_once(f"{folder}: the model has no row for the added tokens {', '.join(beyond)}")
    if is_gpt2(description):
        return GPT2Tokenizer()
    try:
        names = read_dict(folder / "special_tokens_map.json")
        return HFTokenizer(description, names | read_dict(folder / "tokenizer_config.json"))
    except UserError as error:
        name = next(name for name in ("tokenizer.json", "vocab.json") if (folder / name).exists())
        raise UserError(f"the tokenizer in {folder / name} cannot be used: {error}") from error


def read_description(folder: Path) -> dict | None:
    """Return the contents of a model's tokenizer.json, or those of vocab.json and merges.txt in its
    form, or None if there are none of these files. Raises UserError, naming the file.
    """
    if (path := folder / "tokenizer.json").exists():
        return read_dict(path)
    if not (path := folder / "vocab.json").exists():
        return None
    vocab = read_dict(path)
    merges = folder / "merges.txt"
    try:
        text = read_bytes(merges, MOST_TOKENIZER_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{merges} is not UTF-8 ({error})") from None
    except OSError as error:
        raise UserError(f"{merges} cannot be read ({error}): copy it there") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    config = read_dict(folder / "tokenizer_config.json")
    return bpe(
        vocab,
        pairs,
        byte_level(config.get("add_prefix_space") is True),
        added_tokens(folder, config, vocab),
    )


def read_dict(path):
    """Return the dict in a JSON file, or {} if there is no such file. Raises UserError."""
    if not path.exists():
        return {}
    try:
        found = read_json(path, MOST_TOKENIZER_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object: copy the model's tokenizer there")
    return found


def added_tokens(folder, config, vocab):
    """Return the "added_tokens" of a tokenizer.json: the special tokens, and those beyond `vocab`.

    config: the contents of tokenizer_config.json. A token whose id is stored nowhere is left out.
    """
    ids = read_dict(folder / "added_tokens.json")
    found = {content: {"id": ids[content]} for content in ids}
    decoder = config.get("added_tokens_decoder")
    for i, token in decoder.items() if isinstance(decoder, dict) else ():
        match token:
            case {"content": str(content)} if i.isdecimal():
                found[content] = {**token, "id": int(i)}
    special = {**read_dict(folder / "special_tokens_map.json"), **config}
    for name in special:
        tokens = special[name] if name.endswith(("_token", "_special_tokens")) else []
        for token in tokens if isinstance(tokens, list) else [tokens]:
            match token:
                case str(content) | {"content": str(content)}:
                    flags = token if isinstance(token, dict) else {}
                    found[content] = {**flags, **found.get(content, {}), "special": True}
    if not any(token.get("special") for token in found.values()):
        found[END] = {**found.get(END, {}), "special": True}
    tokens = []
    for content, token in found.items():
        i = token.get("id", vocab.get(content))
        if not isinstance(i, int | None):
            raise UserError(f"the tokenizer in {folder} has ids that are not integers: copy it")
        if i is not None:
            flags = {flag: token.get(flag, False) for flag in FLAGS}
            tokens.append({"id": i, "content": content} | flags)
    return sorted(tokens, key=lambda token: token["id"])


def byte_level(add_prefix_space=False):
    """Return the pre-tokenizer, or the decoder, that spells bytes as in BYTES."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": True,
    }


def bpe(vocab, merges, spelling, added=()):
    """Return the contents of a tokenizer.json with byte pair encoding.

    spelling: of bytes, as `byte_level`; None: the vocabulary has characters.
    """
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": None,
        "pre_tokenizer": spelling,
        "post_processor": None,
        "decoder": spelling or {"type": "Fuse"},
        "model": model,
    }


def is_gpt2(description: dict) -> bool:
    """Return whether the contents of a tokenizer.json, which may be damaged, are GPT-2's."""
    try:
        model = description["model"]
        spelling = description["pre_tokenizer"]
        post = description.get("post_processor") or {"type": "ByteLevel"}
        differs = (
            description.get("normalizer"),
            spelling["type"] != "ByteLevel" or spelling["add_prefix_space"],
            not spelling.get("use_regex", True),
            post["type"] != "ByteLevel" and post["special_tokens"] != {},
            description["decoder"]["type"] != "ByteLevel",
            any(token["content"] != END for token in description["added_tokens"]),
            *map(
                model.get,
                ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"),
            ),
        )
        tokens = sorted(model["vocab"].items(), key=lambda item: str(item[1]).zfill(5))
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    except (KeyError, TypeError, AttributeError):
        return False
    sha256 = hashlib.sha256(json.dumps([tokens, merges]).encode()).hexdigest()
    return sha256 == GPT2_SHA256 and not any(differs)


def describe(tokenizer: Tokenizer) -> dict:
    """Return the contents of a tokenizer.json that encodes as `tokenizer`.

    Raises UserError if GPT-2's vocabulary is neither cached nor downloaded, and for `NoTokenizer`.
    """
    match tokenizer:
        case HFTokenizer():
            return tokenizer.description
        case CharTokenizer():
            vocab = {char: i for i, char in enumerate(tokenizer.chars)}
            return bpe(vocab, [], None)
        case ByteTokenizer():
            vocab = {char: byte for byte, char in BYTES.items()}
            return bpe(vocab, [], byte_level())
        case GPT2Tokenizer():
            ranks = tokenizer._encoding._mergeable_ranks
            vocab = {spelled(token): rank for token, rank in ranks.items()}
            longer = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
            pairs = [last_merge(token, ranks) for token in longer]
            merges = [[spelled(left), spelled(right)] for left, right in pairs]
            vocab[END] = GPT2Tokenizer.eos_token_id
            end = {"id": vocab[END], "content": END, "special": True}
            return bpe(vocab, merges, byte_level(), [{**dict.fromkeys(FLAGS, False), **end}])
    assert isinstance(tokenizer, NoTokenizer)
    raise UserError(tokenizer.why)


def spelled(token):
    """Return bytes in the characters of a byte-level vocabulary."""
    return "".join(BYTES[byte] for byte in token)


def last_merge(token, ranks):
    """Return the two parts of a token (bytes) that byte pair encoding merges last."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, len(ranks)) for a, b in itertools.pairwise(parts)]
        i = pairs.index(min(pairs))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, block_size: int, source: Path | None = None
) -> None:
    """Write a tokenizer to `folder`, for npgpt and for transformers' AutoTokenizer.

    source: a folder with the same model. If it has transformers' files of this tokenizer, they are
    copied. If a tokenizer.json cannot be had, such as GPT-2's, standard error says so.
    """
    save_tokenizer(tokenizer, folder / TOKENIZER_FILE)
    description = None if source is None else read_description(source)
    copied = []
    is_same = tokenizer.to_dict().get("tokenizer", ()) == description
    if source and (is_same or tokenizer.kind == "gpt2" and is_gpt2(description or {})):
        copied = [name for name in FILES if (source / name).exists()]
        for name in copied:
            (folder / name).write_bytes(read_bytes(source / name, MOST_TOKENIZER_BYTES))
    else:
        try:
            description = describe(tokenizer)
        except UserError as error:
            say_once(f"without tokenizer.json: {error}", print)
            return
    if "tokenizer.json" not in copied:
        write_json(folder / "tokenizer.json", description)
    if "tokenizer_config.json" not in copied:
        config = transformers_config(tokenizer, description, block_size)
        write_json(folder / "tokenizer_config.json", config)


def transformers_config(tokenizer, description, block_size):
    """Return the contents of a tokenizer_config.json beside a tokenizer.json."""
    special = [
        token["content"] for token in description.get("added_tokens") or () if token.get("special")
    ]
    tokens = {
        "bos_token": BEGIN_OF_TEXT,
        "eos_token": [END],
        "unk_token": [description["model"].get("unk_token")],
    }
    found = {key: [*filter(special.__contains__, tokens[key]), None][0] for key in tokens}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": block_size,
        "pad_token": None,
        **found,
        **tokenizer.names,
    }
