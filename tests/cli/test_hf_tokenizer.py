"""`--tokenizer hf:…`, from the flag to a trained model; a model's own tokenizer; `export`'s."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from npgpt import GPT, GPTConfig, UserError, load
from npgpt.checkpoints.tokenizer_files import describe, is_gpt2, read_tokenizer
from npgpt.data.hf_tokenizer import HFTokenizer
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    CharTokenizer,
    make_tokenizer,
    save_tokenizer,
)
from tests.helpers.hub_server import HubServer, point_client_at
from tests.helpers.runs import refused
from tests.helpers.tokenizers import MIXED, byte_pairs, word_pieces

TEXTS = [" a leading space", "  two, 2024 and 13.5%", "中文，你好。", "a\n\n b\r\n\tc", MIXED, ""]
OWN_SIZE = 50257        # GPT-2's, of a vocabulary that is not


@pytest.mark.parametrize(("write", "prompt", "continued", "bits"), [
    (byte_pairs, "To be", "To be", "bits per byte  "),
    (word_pieces, "to be", "to be ", "bits per byte  not defined, because"),
])
def test_train_sample_eval_and_resume_with_a_tokenizer_json(train, npgpt, tmp_path, write, prompt, continued, bits):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    shutil.copy(write(tmp_path / "tokenizer.json"), tmp_path / "same.json")
    code, out, _ = train("--tokenizer", "hf:tokenizer.json", "--max-iters", 2)
    assert code == 0 and "best validation loss" in out
    (tmp_path / "tokenizer.json").unlink()      # the checkpoint has it
    code, out, _ = npgpt("sample", "--prompt", prompt, "--max-new-tokens", 20, "--temperature", 0)
    assert code == 0 and out.startswith(continued)
    code, out, _ = npgpt("eval")
    assert code == 0 and "perplexity" in out and bits in out
    code, out, _ = npgpt("train", "--resume", "--tokenizer", "hf:same.json", "--max-iters", 4)
    assert code == 0 and "at step 2" in out
    refused(npgpt("train", "--resume", "--tokenizer", "gpt2"), "tokenizer is hf")
    assert npgpt("data", "prepare", "text.txt", "--tokenizer", "hf:same.json", "--out", "tokens")[0] == 0
    assert npgpt("eval", "--corpus", "tokens")[1].split("\n")[1:] == npgpt("eval")[1].split("\n")[1:]


def save_model_of(vocab_size, folder="theirs"):
    """Save a model without its tokenizer. Return its folder."""
    config = GPTConfig(vocab_size=vocab_size, block_size=32, n_layer=1, n_head=2, n_embd=8)
    GPT(config, seed=3).save_pretrained(folder)
    return Path(folder)


def own_description(path):
    """A byte-level BPE of OWN_SIZE tokens, of which most are never used."""
    description = json.loads(byte_pairs(path).read_text())
    vocab = description["model"]["vocab"]
    vocab |= {f"unused{i}": i for i in range(len(vocab), OWN_SIZE)}
    path.write_text(json.dumps(description))
    return description


def save_as(form, folder, prefix_space=False):
    """Let transformers save the tokenizer of own_description. form: "tokenizer.json", or the files
    that came before it, which the library writes.
    """
    transformers = pytest.importorskip("transformers")
    model = own_description(folder / "made.json")["model"]
    (folder / "made.json").unlink()
    theirs = transformers.GPT2Tokenizer(
        model["vocab"], [tuple(pair) for pair in model["merges"]], add_prefix_space=prefix_space
    )
    theirs.save_pretrained(folder)
    if form == "vocab.json":
        (folder / "tokenizer.json").unlink()
        theirs.backend_tokenizer.model.save(str(folder))
    assert (folder / form).exists()


@pytest.mark.parametrize("prefix_space", [False, True])
@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.json"])
def test_a_vocabulary_of_gpt2s_size_is_read_with_the_models_own_tokens(npgpt, form, prefix_space):
    transformers = pytest.importorskip("transformers")
    folder = save_model_of(OWN_SIZE)
    save_as(form, folder, prefix_space)
    tokenizer = load(folder)[1]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.kind == "hf" and tokenizer.vocab_size == OWN_SIZE
    for text in TEXTS:
        ids = tokenizer.encode(text).tolist()
        assert ids == theirs(text)["input_ids"]
        assert tokenizer.decode(ids) == theirs.decode(ids)
    assert tokenizer.eos_token_id == theirs.eos_token_id == 0
    assert npgpt("export", folder, "--out", "exported")[0] == 0
    again = transformers.AutoTokenizer.from_pretrained("exported")
    for text in TEXTS:
        assert again(text)["input_ids"] == theirs(text)["input_ids"]
    assert load("exported")[1].to_dict() == tokenizer.to_dict()
    for name in (form, "tokenizer_config.json"):
        assert Path("exported", name).read_bytes() == (folder / name).read_bytes()
    (folder / TOKENIZER_FILE).write_text('{"kind": "gpt2"}')      # what npgpt has written counts
    assert load(folder)[1].kind == "gpt2"


def test_ids_that_are_permuted_are_not_gpt2s_and_gpt2s_need_no_extra(
    npgpt, gpt2, monkeypatch, capsys
):
    library = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder, description = save_model_of(OWN_SIZE), describe(gpt2)
    path, vocab = folder / "tokenizer.json", description["model"]["vocab"]
    one_string = [" ".join(pair) for pair in description["model"]["merges"]]
    mask = {**description["added_tokens"][0], "content": "<mask>", "id": OWN_SIZE}
    permuted = {token: (i + 1) % OWN_SIZE for token, i in vocab.items()}
    differs = {
        "vocab": {"model": {**description["model"], "vocab": permuted}},
        "merges": {"model": {**description["model"], "merges": one_string[::-1]}},
        **{
            field: {"model": {**description["model"], field: value}}
            for field, value in {
                "dropout": 0.5,
                "ignore_merges": True,
                "continuing_subword_prefix": "##",
                "end_of_word_suffix": "</w>",
            }.items()
        },
        "post": {"post_processor": {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}},
        "end": {"post_processor": {"type": "TemplateProcessing", "special_tokens": {"a": {}}}},
        "prefix": {"pre_tokenizer": {**description["pre_tokenizer"], "add_prefix_space": True}},
        "regex": {"pre_tokenizer": {**description["pre_tokenizer"], "use_regex": False}},
        "normalizer": {"normalizer": {"type": "Lowercase"}},
        "added": {"added_tokens": [*description["added_tokens"], mask]},
        "decoder": {"decoder": None},
        "none": {"model": 5},
    }
    assert not any(is_gpt2(description | changed) for changed in differs.values())
    path.write_text(json.dumps(description | differs["added"]))
    assert load(folder)[1].kind == "gpt2"
    assert "no row for the added tokens <mask>" in capsys.readouterr().err
    path.write_text(json.dumps(description | differs["vocab"]))
    expected = [(i + 1) % OWN_SIZE for i in gpt2.encode("To be, 2024")]
    assert load(folder)[1].encode("To be, 2024").tolist() == expected
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refused(npgpt("sample", folder), 'pip install "npgpt[hf]"', path)
    same = {
        **description,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {**description["model"], "merges": one_string},
        "post_processor": {"type": "TemplateProcessing", "special_tokens": {}},
        "added_tokens": [],
    }
    path.write_text(json.dumps(same, indent=1))
    assert load(folder)[1].kind == "gpt2"
    path.unlink()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *one_string, ""]), "utf-8")
    assert load(folder)[1].kind == "gpt2"
    (folder / "merges.txt").write_text("\n".join(one_string[::-1]), "utf-8")
    refused(npgpt("sample", folder), 'pip install "npgpt[hf]"', folder / "vocab.json")
    monkeypatch.setitem(sys.modules, "tokenizers", library)
    assert load(folder)[1].eos_token_id == vocab["<|endoftext|>"]
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    assert load(folder)[1].kind == "gpt2"


@pytest.mark.parametrize(
    ("vocab_size", "said"), [(304, None), (300, None), (299, None), (296, "297 tokens")]
)
def test_special_and_added_tokens_beside_vocab_json(npgpt, capsys, vocab_size, said):
    """Of models with a padded vocabulary, one that fits, one without a row for the last added
    token, and one without a row for a token of the text.
    """
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder = save_model_of(vocab_size)
    made = json.loads(byte_pairs(folder / "made.json", 297).read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(made["vocab"]))
    merges = "\r\n".join(map(" ".join, made["merges"]))
    (folder / "merges.txt").write_text("\ufeff#version: 0.2\n" + merges, "utf-8")
    files = {
        "added_tokens.json": {"<|pad|>": 297, "plain": 298},
        "special_tokens_map.json": {"eos_token": {"content": "</s>", "rstrip": False},
                                    "pad_token": "<|pad|>", "bos_token": "nowhere",
                                    "mask_token": "b"},
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "298": {"content": "plain", "lstrip": True},
                "299": {"content": "</s>", "rstrip": True},
                "x": {"content": "odd"},
            },
            "mask_token": "T",
            "additional_special_tokens": ["T", {"content": "<|pad|>", "rstrip": True}, 5],
        },
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    if said:
        code, _, err = npgpt("sample", folder)
        assert code == 2 and said in err.splitlines()[-1] and "model only 296" in err
        return
    tokenizer = load(folder)[1]
    if vocab_size == 299:
        assert "the model has no row for the added tokens </s>\n" in capsys.readouterr().err
        assert (tokenizer.eos_token_id, tokenizer.vocab_size) == (None, 299)
        return
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.vocab_size) == (299, 297, 300)
    assert tokenizer.encode(" plain").tolist() == [298]
    added = {token["content"]: token for token in tokenizer.description["added_tokens"]}
    assert {name: added[name]["special"] for name in added} == {
        "<|pad|>": True, "plain": False, "</s>": True, "T": True
    }
    assert set(tokenizer.special) == {"<|pad|>", "</s>", "T"}
    assert added["T"]["id"] == made["vocab"]["T"]
    assert added["plain"]["lstrip"] and added["</s>"]["rstrip"] and added["<|pad|>"]["rstrip"]
    assert 299 not in tokenizer.encode("</s>") and tokenizer.decode([299]) == "</s>"


@pytest.mark.parametrize(("name", "content", "said"), [
    ("tokenizer.json", b"[]", "is not a JSON object"),
    ("tokenizer.json", b"{}", "tokenizer.json cannot be used"),
    ("tokenizer.json", b'{"added_tokens": [5, {"id": "6"}]}', "tokenizer.json cannot be used"),
    ("tokenizer.json", b'{"model', "is not JSON"),
    ("vocab.json", b'{"a": 0}', "merges.txt cannot be read"),
    ("added_tokens.json", b'{"b": "1"}', "ids that are not integers"),
    ("vocab.json", b'{"a": "0"}', "vocab.json cannot be used"),
    ("merges.txt", b"a b c", "vocab.json cannot be used"),
    ("merges.txt", b"\xff", "merges.txt is not UTF-8"),
    ("tokenizer_config.json", b"5", "tokenizer_config.json is not a JSON object"),
])
def test_damaged_files_of_a_tokenizer_are_named(npgpt, tmp_path, name, content, said):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder = save_model_of(OWN_SIZE)
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("")
    if "merges.txt cannot" in said:
        (folder / "merges.txt").unlink()
    (folder / name).write_bytes(content)
    refused(npgpt("sample", folder), said, folder)


def test_a_file_of_a_tokenizer_that_is_too_large_or_cannot_be_read_is_named(npgpt, monkeypatch):
    folder = save_model_of(OWN_SIZE)
    monkeypatch.setattr("npgpt.checkpoints.tokenizer_files.MOST_TOKENIZER_BYTES", 9)
    for name in ("tokenizer.json", "merges.txt"):
        (folder / "vocab.json").write_text("{}")
        (folder / name).write_bytes(bytes(10))
        refused(npgpt("sample", folder), f"{folder / name} has more than 9 bytes")
        (folder / name).unlink()
    (folder / "vocab.json").write_text("{}")
    monkeypatch.setattr("npgpt.checkpoints.tokenizer_files.read_json", lambda *_: open("gone"))
    refused(npgpt("sample", folder), f"{folder / 'vocab.json'} cannot be read")


CHINESE = "人之初，性本善。\u3000性相近 🦉\n習相遠。 " * 60


@pytest.mark.parametrize("kind", ["char", "byte", "gpt2", "pairs", "pieces"])
def test_transformers_reads_the_tokenizer_that_export_writes(train, npgpt, kind, gpt2, tmp_path):
    """And a pipeline of its own continues a text as npgpt does."""
    transformers = pytest.importorskip("transformers")
    write = {"pairs": byte_pairs, "pieces": word_pieces}.get(kind)
    flag = f"hf:{write(tmp_path / 'tokenizer.json')}" if write else kind
    if kind == "pairs":         # with a padding token that is not marked as special, so is none
        description = json.loads((tmp_path / "tokenizer.json").read_text())
        [end] = description["added_tokens"]
        description["added_tokens"].append({**end, "id": 300, "content": "<pad>", "special": False})
        (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    text = CHINESE if kind in ("char", "byte") else Path("text.txt").read_text()
    Path("text.txt").write_text(text, "utf-8")
    size = ["--block-size", 64, "--crop-length", 8]
    assert train("--tokenizer", flag, "--max-iters", 3, *size)[0] == 0
    assert npgpt("export", "out", "--out", "exported")[0] == 0
    (model, tokenizer), (_, same) = load("out"), load("exported")
    assert same.to_dict() == tokenizer.to_dict()
    theirs = transformers.AutoTokenizer.from_pretrained("exported")
    for some in (text[:60], text[5:9], "" if kind == "char" else MIXED):
        ids = tokenizer.encode(some).tolist()
        assert theirs(some, add_special_tokens=False)["input_ids"] == ids
        assert theirs.decode(ids) == tokenizer.decode(ids)
    assert len(theirs) == tokenizer.vocab_size and theirs.model_max_length == 64
    assert theirs.eos_token_id == tokenizer.eos_token_id
    assert theirs.pad_token_id == tokenizer.pad_token_id
    begin = {"gpt2": "<|endoftext|>", "pairs": "<|endoftext|>", "pieces": "[CLS]"}.get(kind)
    assert (theirs.bos_token, theirs.unk_token) == (begin, "[UNK]" if kind == "pieces" else None)
    Path("exported", TOKENIZER_FILE).unlink()
    if kind in ("gpt2", "pairs", "pieces"):
        assert load("exported")[1].to_dict() == tokenizer.to_dict()
    pipe = transformers.pipeline("text-generation", "exported")
    prompt = text[:12]
    end = tokenizer.eos_token_id
    ours = model.generate([tokenizer.encode(prompt)], 20, temperature=0, eos_token_id=end)
    greedy = {"max_new_tokens": 20, "do_sample": False, "add_special_tokens": False}
    [found] = pipe(prompt, return_tensors=True, **greedy)
    assert found["generated_token_ids"] == ours[0].tolist()
    if kind != "pieces":        # of which the pipeline decodes the first one alone
        assert pipe(prompt, **greedy)[0]["generated_text"] == tokenizer.decode(ours[0])


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
    assert (
        (load(folder)[1].eos_token_id, load(folder)[1].pad_token_id)
        == (theirs.eos_token_id, 0)
        == (301, 0)
    )
    rows = [{"prompt": "hi", "completion": "bye"}] * 9
    Path("chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tune = ["--learning-rate", 1e-2, "--max-iters", 120, "--crop-length", 8, "--lr-decay-iters", 0]
    command = [
        "train",
        "--init-from",
        folder,
        "--corpus",
        "chat.jsonl",
        "--out-dir",
        "tuned",
        *tune,
    ]
    assert npgpt(*command)[0] == 0
    assert npgpt("sample", "tuned", "--prompt", "hi", "--temperature", 0)[1] == "hibye\n"
    assert npgpt("export", "tuned", "--out", "exported")[0] == 0
    again = transformers.AutoTokenizer.from_pretrained("exported")
    assert {name: getattr(again, name) for name in names} == names
    shutil.copy(folder / "tokenizer.json", "alone.json")        # without the names
    assert make_tokenizer("hf:alone.json").eos_token_id == 0
    assert make_tokenizer(f"hf:{folder}").eos_token_id == 301
    for flag in ("hf:alone.json", f"hf:{folder}"):  # the tokens are the same
        resumed = npgpt(
            "train", "--resume", "--out-dir", "tuned", "--max-iters", 121, "--tokenizer", flag
        )
        assert resumed[0] == 0


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


def test_files_that_were_not_used_are_not_copied(npgpt):
    """npgpt's own file counts; a tokenizer.json beside it may be another's."""
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder = save_model_of(5)
    save_tokenizer(CharTokenizer("abcde"), folder / TOKENIZER_FILE)
    byte_pairs(folder / "tokenizer.json")
    assert npgpt("export", folder, "--out", "exported")[0] == 0
    description = json.loads(Path("exported", "tokenizer.json").read_text())
    assert description["model"]["vocab"] == dict(zip("abcde", range(5), strict=True))
    assert HFTokenizer(description).encode("bead").tolist() == [1, 4, 0, 3]
    Path("exported", TOKENIZER_FILE).unlink()
    assert load("exported")[1].encode("bead").tolist() == [1, 4, 0, 3]
    (folder / TOKENIZER_FILE).unlink()
    with pytest.raises(UserError, match="300 tokens"):
        load(folder)
    assert read_tokenizer(folder, 300).vocab_size == 300


def test_a_model_of_the_hub_brings_its_own_tokenizer(npgpt, tmp_path, monkeypatch):
    """Also tokens that only added_tokens.json has, in any order, and an end of text among them."""
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    folder = save_model_of(OWN_SIZE)
    model = own_description(tmp_path / "made.json")["model"]
    del model["vocab"][f"unused{OWN_SIZE - 1}"], model["vocab"][f"unused{OWN_SIZE - 2}"]
    model["vocab"]["unused"] = model["vocab"].pop("<|endoftext|>")
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])), "utf-8")
    added = {"<|endoftext|>": OWN_SIZE - 1, "added": OWN_SIZE - 2}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    with HubServer() as hub:
        point_client_at(hub, tmp_path / "home", monkeypatch)
        hub.add("somebody/gpt2", {path.name: path.read_bytes() for path in folder.iterdir()})
        tokenizer = load("somebody/gpt2")[1]
    assert tokenizer.to_dict() == load(folder)[1].to_dict()
    assert tokenizer.encode("added").tolist() == [OWN_SIZE - 2]
    assert tokenizer.eos_token_id == OWN_SIZE - 1
    assert npgpt("export", folder, "--out", "exported")[0] == 0
    assert all(Path("exported", path.name).exists() for path in folder.iterdir())
