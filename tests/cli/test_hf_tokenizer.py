"""`--tokenizer hf:…`, from the flag to a trained model; a model's own tokenizer; `export`'s."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from npgpt import GPT, GPTConfig, load
from npgpt.checkpoints.tokenizer_files import describe, is_gpt2
from npgpt.data.tokenizers import TOKENIZER_FILE, make_tokenizer
from tests.helpers.runs import refused, succeeded
from tests.helpers.tokenizers import MIXED, byte_pairs, word_pieces

TEXTS = [" a leading space", "  two, 2024 and 13.5%", "中文，你好。", "a\n\n b\r\n\tc", MIXED, ""]
OWN_SIZE = 50257  # GPT-2's, of a vocabulary that is not


@pytest.mark.parametrize(
    ("write", "prompt", "bits"),
    [
        (byte_pairs, "To be", "bits per byte  "),
        (word_pieces, "to be", "bits per byte  not defined, because"),
    ],
)
def test_train_sample_eval_and_resume_with_a_tokenizer_json(
    train, npgpt, tmp_path, write, prompt, bits
):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    shutil.copy(write(tmp_path / "tokenizer.json"), tmp_path / "same.json")
    succeeded(train("--tokenizer hf:tokenizer.json --max-iters 2"))
    (tmp_path / "tokenizer.json").unlink()  # the checkpoint has it
    out = succeeded(npgpt("sample", "--prompt", prompt, "--max-new-tokens", 20))
    assert out.startswith(prompt)
    evaluated = npgpt("eval")[1]
    assert "perplexity" in evaluated and bits in evaluated
    prepare = "data prepare text.txt --tokenizer hf:same.json --out tokens"
    succeeded(npgpt(prepare))
    out = npgpt("eval --corpus tokens")[1]
    assert out.split("\n")[1:] == evaluated.split("\n")[1:]
    succeeded(npgpt("train --resume --tokenizer hf:same.json --max-iters 4"), "at step 2")
    refused(npgpt("train --resume --tokenizer gpt2"), "tokenizer is hf")


def save_model_of(vocab_size, folder="theirs"):
    """Save a model without its tokenizer. Return its folder."""
    config = GPTConfig(vocab_size=vocab_size, block_size=32, n_layer=1, n_head=2, n_embd=8)
    GPT(config, seed=3).save_pretrained(folder)
    return Path(folder)


def save_own_vocabulary(folder, form):
    """Let transformers save a byte-level BPE of OWN_SIZE tokens, of which most are never used.

    form: "tokenizer.json", or the files that came before it.
    """
    transformers = pytest.importorskip("transformers")
    model = json.loads(byte_pairs(folder / "tokenizer.json").read_text())["model"]
    vocab, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
    vocab |= {f"unused{i}": i for i in range(len(vocab), OWN_SIZE)}
    theirs = transformers.GPT2Tokenizer(vocab, merges, add_prefix_space=form == "vocab.json")
    theirs.save_pretrained(folder)
    if form == "vocab.json":
        (folder / "tokenizer.json").unlink()
        theirs.backend_tokenizer.model.save(str(folder))
    assert (folder / form).exists()


@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.json"])
def test_a_vocabulary_of_gpt2s_size_is_read_with_the_models_own_tokens(npgpt, form):
    transformers = pytest.importorskip("transformers")
    folder = save_model_of(OWN_SIZE)
    save_own_vocabulary(folder, form)
    tokenizer = load(folder)[1]
    assert tokenizer.kind == "hf" and tokenizer.vocab_size == OWN_SIZE
    succeeded(npgpt("export", folder, "--out", "exported"))
    assert load("exported")[1].to_dict() == tokenizer.to_dict()
    for where in (folder, "exported"):
        theirs = transformers.AutoTokenizer.from_pretrained(where)
        assert tokenizer.eos_token_id == theirs.eos_token_id == 0
        for text in TEXTS:
            ids = tokenizer.encode(text).tolist()
            assert ids == theirs(text)["input_ids"]
            assert tokenizer.decode(ids) == theirs.decode(ids)
    for name in (form, "tokenizer_config.json"):
        assert Path("exported", name).read_bytes() == (folder / name).read_bytes()
    (folder / TOKENIZER_FILE).write_text('{"kind": "gpt2"}')  # what npgpt has written counts
    assert load(folder)[1].kind == "gpt2"


DIFFERENT = [  # what makes a tokenizer.json another one than GPT-2's
    {"normalizer": {"type": "Lowercase"}},
    {"decoder": None},
    {"model": 5},
    {"post_processor": {"type": "TemplateProcessing", "special_tokens": {"a": {}}}},
    {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
]


@pytest.mark.slow
def test_what_is_gpt2s_needs_no_extra_and_what_is_not_is_read(npgpt, gpt2, monkeypatch, capsys):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder, description = save_model_of(OWN_SIZE), describe(gpt2)
    path, model = folder / "tokenizer.json", description["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    permuted = {token: (i + 1) % OWN_SIZE for token, i in model["vocab"].items()}
    mask = {**description["added_tokens"][0], "content": "<mask>", "id": OWN_SIZE}
    path.write_text(json.dumps({**description, "added_tokens": [mask]}))
    assert load(folder)[1].kind == "gpt2"
    assert "no row for the added tokens <mask>" in capsys.readouterr().err
    for changed in (*DIFFERENT, {"model": model | {"merges": merges[::-1]}}):
        assert not is_gpt2(description | changed)
    path.write_text(json.dumps({**description, "model": model | {"vocab": permuted}}))
    expected = [(i + 1) % OWN_SIZE for i in gpt2.encode("To be, 2024")]
    assert load(folder)[1].encode("To be, 2024").tolist() == expected
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refused(npgpt("sample", folder), 'pip install "npgpt[hf]"', path)
    path.unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    assert load(folder)[1].kind == "gpt2"
    succeeded(npgpt("export", folder, "--out", "exported"))
    assert Path("exported/merges.txt").exists()


ADDED = {
    "added_tokens.json": {"<|pad|>": 297, "plain": 298},
    "special_tokens_map.json": {
        "eos_token": {"content": "</s>", "rstrip": False},
        "pad_token": "<|pad|>",
        "bos_token": "nowhere",
    },
    "tokenizer_config.json": {
        "added_tokens_decoder": {
            "298": {"content": "plain", "lstrip": True},
            "299": {"content": "</s>", "rstrip": True},
            "x": {"content": "odd"},
        },
        "additional_special_tokens": ["T", {"content": "<|pad|>", "rstrip": True}, 5],
    },
}


@pytest.fixture
def folder_of(npgpt):
    """Save a model with this number of rows, vocab.json and the files of ADDED."""
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")

    def saved(vocab_size):
        folder = save_model_of(vocab_size)
        made = json.loads(byte_pairs(folder / "made.json", 297).read_text())["model"]
        merges = "\r\n".join(map(" ".join, made["merges"]))
        (folder / "merges.txt").write_text("\ufeff#version: 0.2\n" + merges, "utf-8")
        for name, value in (ADDED | {"vocab.json": made["vocab"]}).items():
            (folder / name).write_text(json.dumps(value))
        return folder

    return saved


@pytest.mark.parametrize("vocab_size", [300, 304])
def test_special_and_added_tokens_beside_vocab_json(folder_of, vocab_size):
    """A model may have more rows than there are tokens."""
    tokenizer = load(folder_of(vocab_size))[1]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.vocab_size) == (299, 297, 300)
    assert tokenizer.encode(" plain").tolist() == [298]
    added = {token["content"]: token for token in tokenizer.description["added_tokens"]}
    special = {name for name, token in added.items() if token["special"]}
    assert special == set(tokenizer.special) == {"<|pad|>", "</s>", "T"}
    assert added["plain"]["lstrip"] and added["</s>"]["rstrip"] and added["<|pad|>"]["rstrip"]
    assert 299 not in tokenizer.encode("</s>") and tokenizer.decode([299]) == "</s>"


def test_tokens_without_a_row_in_the_model(folder_of, npgpt, capsys):
    tokenizer = load(folder_of(299))[1]
    assert "the model has no row for the added tokens </s>\n" in capsys.readouterr().err
    assert (tokenizer.eos_token_id, tokenizer.vocab_size) == (None, 299)
    code, _, err = npgpt("sample", folder_of(296))
    assert code == 2 and "297 tokens" in err and "model only 296" in err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", b"[]", "is not a JSON object"),
        ("tokenizer.json", b"{}", "tokenizer.json cannot be used"),
        ("vocab.json", b'{"a": 0}', "merges.txt cannot be read"),
        ("added_tokens.json", b'{"b": "1"}', "ids that are not integers"),
        ("merges.txt", b"a b c", "vocab.json cannot be used"),
        ("merges.txt", b"\xff", "merges.txt is not UTF-8"),
        ("tokenizer_config.json", b"5", "tokenizer_config.json is not a JSON object"),
    ],
)
def test_damaged_files_of_a_tokenizer_are_named(npgpt, tmp_path, name, content, said):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder = save_model_of(OWN_SIZE)
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("")
    if "merges.txt cannot" in said:
        (folder / "merges.txt").unlink()
    (folder / name).write_bytes(content)
    refused(npgpt("sample", folder), said, folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "merges.txt"])
def test_a_file_of_a_tokenizer_that_is_too_large_is_named(npgpt, monkeypatch, name):
    folder = save_model_of(OWN_SIZE)
    monkeypatch.setattr("npgpt.checkpoints.tokenizer_files.MOST_TOKENIZER_BYTES", 9)
    (folder / "vocab.json").write_text("{}")
    (folder / name).write_bytes(bytes(10))
    refused(npgpt("sample", folder), f"{folder / name} has more than 9 bytes")


CHINESE = "人之初，性本善。\u3000性相近 🦉\n習相遠。 " * 60


@pytest.mark.parametrize("kind", ["char", "byte", "gpt2", "pairs", "pieces"])
def test_transformers_reads_the_tokenizer_that_export_writes(train, npgpt, kind, gpt2, tmp_path):
    transformers = pytest.importorskip("transformers")
    write = {"pairs": byte_pairs, "pieces": word_pieces}.get(kind)
    flag = f"hf:{write(tmp_path / 'tokenizer.json')}" if write else kind
    text = CHINESE if kind in ("char", "byte") else Path("text.txt").read_text()
    Path("text.txt").write_text(text, "utf-8")
    succeeded(train("--tokenizer", flag, "--max-iters", 1))
    export = "export out --out exported"
    succeeded(npgpt(export))
    refused(npgpt(export), "exported already exists")
    tokenizer = load("out")[1]
    assert load("exported")[1].to_dict() == tokenizer.to_dict()
    theirs = transformers.AutoTokenizer.from_pretrained("exported")
    for some in (text[:60], text[5:9], "" if kind == "char" else MIXED):
        ids = tokenizer.encode(some).tolist()
        assert theirs(some, add_special_tokens=False)["input_ids"] == ids
        assert theirs.decode(ids) == tokenizer.decode(ids)
    assert len(theirs) == tokenizer.vocab_size and theirs.model_max_length == 8
    assert theirs.eos_token_id == tokenizer.eos_token_id
    assert theirs.pad_token_id == tokenizer.pad_token_id
    begin = {"gpt2": "<|endoftext|>", "pairs": "<|endoftext|>", "pieces": "[CLS]"}.get(kind)
    assert (theirs.bos_token, theirs.unk_token) == (begin, "[UNK]" if kind == "pieces" else None)


def test_a_text_ends_with_the_token_that_the_models_files_call_its_end(npgpt, tmp_path):
    """Not with the one that has a well-known name. It is remembered, and exported."""
    transformers = pytest.importorskip("transformers")
    library = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder = save_model_of(303)
    pairs = library.Tokenizer.from_file(str(byte_pairs(tmp_path / "made.json")))
    pairs.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=pairs, **names)
    theirs.save_pretrained(folder)
    tokenizer = load(folder)[1]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (301, 0)
    Path("chat.jsonl").write_text('{"prompt": "hi", "completion": "bye"}\n' * 9)
    command = "train --corpus chat.jsonl --out-dir tuned --crop-length 8 --init-from theirs"
    learn = "--learning-rate 1e-2 --max-iters 120 --lr-decay-iters 0"
    succeeded(npgpt(command, *learn.split()))
    assert npgpt("sample tuned --prompt hi --temperature 0")[1] == "hibye\n"
    succeeded(npgpt("export tuned --out exported"))
    again = transformers.AutoTokenizer.from_pretrained("exported")
    assert {name: getattr(again, name) for name in names} == names
    shutil.copy(folder / "tokenizer.json", "alone.json")  # without the names
    assert make_tokenizer("hf:alone.json").eos_token_id == 0
    resume = "train --resume --out-dir tuned --max-iters 121 --tokenizer hf:alone.json"
    succeeded(npgpt(resume))  # the tokens are the same


def test_without_gpt2s_vocabulary_export_still_writes_the_weights(npgpt, monkeypatch):
    folder = save_model_of(OWN_SIZE)

    def offline(*arguments):
        raise OSError("no network")

    monkeypatch.setattr("npgpt.data.tokenizers.call_within", offline)
    code, out, err = npgpt("export", folder, "--out", "exported")
    assert code == 0 and "exported: open it" in out
    assert len(err.splitlines()) == 1 and "without tokenizer.json: GPT-2's vocabulary" in err
    names = {path.name for path in Path("exported").iterdir()}
    assert names == {"config.json", "model.safetensors", TOKENIZER_FILE}
    assert load("exported")[1].kind == "gpt2"
