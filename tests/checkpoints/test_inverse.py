"""What `save_pretrained` writes, `load` reads: every config, block, engine, dtype and tokenizer."""

import dataclasses
import hashlib
import itertools
import json
import linecache
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npgpt import GPT, GPTConfig, Trainer, TrainOptions, UserError, load
from npgpt.data.hf_tokenizer import HFTokenizer
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
)
from npgpt.engine.choose import KERNELS
from npgpt.model import transformer
from npgpt.model.block import read_block
from tests import strict_cupy
from tests.helpers.models import SMALL, batch
from tests.helpers.runs import refused
from tests.helpers.tokenizers import MIXED, byte_pairs, word_pieces
from tests.torch_gpt import unit_scale

EXAMPLES = Path(__file__).parents[2] / "tools/examples"
BLOCKS = {"gpt2": None, "modern": EXAMPLES / "modern_block.py", "lora": EXAMPLES / "lora_block.py"}
EACH_BLOCK = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
RATE = st.floats(0.0, 0.9)
ENGINES = [each for each in KERNELS if each != "auto"]
FAST = [each for each in ENGINES if each != "xla"]      # which needs half a second for a model
PAIRS = [*itertools.product(FAST, FAST), ("xla", "numpy"), ("numba", "xla")]
OF_TYPES = {
    bool: st.booleans(),
    bool | None: st.none() | st.booleans(),
    float: RATE,
    float | None: st.none() | RATE,
    int | None: st.none() | st.integers(1, 2**31 - 1),
}
OF_FIELDS = {
    "vocab_size": st.integers(1, 9),
    "block_size": st.integers(1, 5),
    "n_layer": st.integers(1, 3),
    "n_head": st.integers(1, 3),
    "n_embd": st.sampled_from([12, 24]),
    "n_inner": st.none() | st.integers(7, 13) | st.just(48),
    "activation": st.sampled_from(["gelu", "gelu_tanh"]),
    "layer_norm_epsilon": st.floats(1e-300, 0.5),
    "positions": st.sampled_from(["learned", "none"]),
    "initializer_range": st.floats(0.0, 1e29),
}
FIELDS = {
    field.name: OF_FIELDS.get(field.name, OF_TYPES.get(field.type))
    for field in dataclasses.fields(GPTConfig)
    if field.name != "block"
}


def filled(config, seed=3, **options):
    """A model with random gains and biases, too."""
    model = GPT(config, None, **options)
    unit_scale(model.params, seed)
    return model


def assert_same(model, again):
    """Names, their order, types, bits, config and logits."""
    assert list(again.params) == list(model.params) and again.params.dtype == model.params.dtype
    for name, array in model.params.items():
        np.testing.assert_array_equal(again.params[name], array, err_msg=name)
    assert again.config == model.config.derived()
    V, T = model.config.vocab_size, model.config.block_size
    idx = np.random.default_rng(0).integers(0, V, (2, T))
    np.testing.assert_array_equal(again.forward(idx)[0], model.forward(idx)[0])
    assert np.isfinite(again.forward(idx)[0]).all()


@EACH_BLOCK
@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    fields=st.fixed_dictionaries(FIELDS),
    dtype=st.sampled_from(["float32", "float64"]),
    kernels=st.sampled_from(PAIRS),
)
def test_every_config_is_saved_and_loaded(tmp_path_factory, block, fields, dtype, kernels):
    folder, block = tmp_path_factory.mktemp("model"), read_block(block)
    model = filled(GPTConfig(**fields), dtype=dtype, kernels=kernels[0], block=block)
    model.save_pretrained(folder)
    again, tokenizer = load(folder, kernels=kernels[1], block=block)
    assert tokenizer is None and again.engine.kernels == kernels[1]
    assert_same(model, again)


@EACH_BLOCK
@pytest.mark.slow
def test_every_engine_computes_the_same_again(tmp_path, block):
    """What is saved by the one is loaded by the other."""
    model = filled(GPTConfig(**SMALL, bias=False, mlp_bias=True), dtype="float64", block=block)
    idx, targets = batch(model.config)
    loss, text = model.evaluate(idx, targets), model.generate(idx[:, :3], 5, temperature=0.0)
    for i, kernels in enumerate(ENGINES):
        model.save_pretrained(tmp_path / str(i))
        model, _ = load(tmp_path / str(i), kernels=kernels, threads=2, block=block)
        assert model.engine.kernels == kernels
        assert float(model.evaluate(idx, targets)) == pytest.approx(loss, rel=1e-12)
        np.testing.assert_array_equal(model.generate(idx[:, :3], 5, temperature=0.0), text)


@EACH_BLOCK
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "tf32"])
def test_models_on_a_gpu_are_saved_and_loaded(tmp_path, monkeypatch, block, dtype):
    strict_cupy.install(monkeypatch)
    parameters = "float64" if dtype == "float64" else "float32"
    model = filled(GPTConfig(**SMALL, bias=False), dtype=parameters, block=block)
    model.save_pretrained(tmp_path / "here")
    there, _ = load(tmp_path / "here", dtype=dtype, device="gpu", block=block)
    assert list(there.params) == list(model.params) and there.dtype == dtype
    np.testing.assert_array_equal(there.params.flat.get(), model.params.flat)
    there.save_pretrained(tmp_path / "there")
    assert_same(model, load(tmp_path / "there", block=block)[0])


def cell(file, name):
    """The block in a cell of a notebook, which has the text of a file."""
    text, names = file.read_text(), {}
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("kind", ["module", "object", "cell", "file"])
def test_a_block_of_ones_own_is_named_and_asked_for(tmp_path, kind):
    """However it is given; another one is refused."""
    file = BLOCKS["lora"]
    names = runpy.run_path(str(file))
    functions = {name: names[name] for name in ("parameters", "forward", "backward")}
    block = {
        "module": SimpleNamespace(**names),
        "object": SimpleNamespace(**functions),
        "cell": cell(file, "<ipython-input-1>"),
    }
    model = filled(GPTConfig(**SMALL), block=block.get(kind, file), freeze="wte")
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    saved = fields["npgpt"]["block"]
    name = "<ipython-input-1>" if kind == "cell" else file.name
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert saved == {"name": name, "sha256": digest, "functions": ["forward", "backward"]}
    assert fields["model_type"] == "npgpt"
    for each in (file, cell(file, "<ipython-input-2>")):
        again, _ = load(tmp_path, block=each)
        assert_same(model, again)
    assert not again.params.frozen and any(".lora_" in name for name in again.params)
    for other in (None, BLOCKS["modern"]):
        with pytest.raises(UserError, match=f"the model has '{name}', .* block="):
            load(tmp_path, block=other)


def test_the_type_of_the_weights_is_that_of_the_file(tmp_path):
    """By default: only float64 stays, and a run's are as they are saved."""
    model = filled(GPTConfig(**SMALL), dtype="float64")
    for stored, loaded in (("float64", "float64"), ("float32", "float32"), ("float16", "float32")):
        expected = model.params.flat.astype(stored)
        for i, arguments in enumerate(((None, stored), (stored,))):     # as in earlier versions
            model.save_pretrained(tmp_path / f"{stored}-{i}", *arguments)
            again, _ = load(tmp_path / f"{stored}-{i}")
            assert again.dtype == loaded and again.params.dtype == loaded
            np.testing.assert_array_equal(again.params.flat, expected)
    assert load(tmp_path / "float64-0", dtype="float32")[0].dtype == "float32"
    assert GPT.from_pretrained(tmp_path / "float64-0").dtype == "float32"
    run_of(model, tmp_path / "run").run()
    again, tokenizer = load(tmp_path / "run")
    assert_same(model, again)
    assert tokenizer is None


def run_of(model, folder, tokenizer=None):
    """A run of one step."""
    options = TrainOptions(max_iters=1, batch_size=1, eval_iters=1)
    return Trainer(model, np.arange(99) % 11, None, options, folder, tokenizer)


def test_a_run_is_not_saved_over_and_the_folder_out_is_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = filled(GPTConfig(**SMALL))
    model.save_pretrained("out")
    assert_same(model, load("out")[0])
    run_of(model, "run").run()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for folder in ("run", Path("run", "step-00000001")):
        with pytest.raises(UserError, match="is a run, which .* save in another folder"):
            model.save_pretrained(folder)
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def made(kind, tmp_path, gpt2):
    """A tokenizer of a kind, and what npgpt's encodes as."""
    if kind == "gpt2":
        return gpt2
    if kind == "char":
        return CharTokenizer.from_text(MIXED)
    if kind == "byte":
        return ByteTokenizer()
    write = word_pieces if kind.startswith("words") else byte_pairs
    path = write(tmp_path / f"{kind}.json")
    if kind.endswith("hf"):
        return HFTokenizer.open(str(path))
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is in the extra hf")
    library = tokenizers.Tokenizer.from_file(str(path))
    if kind.endswith("library"):
        return library
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra test")
    end = "<|endoftext|>" if kind == "pairs fast" else "[SEP]"
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, eos_token=end, pad_token=end
    )


KINDS = [f"{family} {kind}" for family in ("pairs", "words") for kind in ("hf", "library", "fast")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["char", "byte", "gpt2", *KINDS])
def test_every_tokenizer_is_saved_and_loaded(tmp_path, monkeypatch, gpt2, kind):
    """In folders and runs; transformers' AutoTokenizer reads the folder, after another was there.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra test")
    tokenizer = made(kind, tmp_path, gpt2)
    text = "To be, or not to be" if kind.startswith("words") else MIXED
    theirs = kind.endswith(("library", "fast"))
    if theirs:
        ids = tokenizer.encode(text, add_special_tokens=False)
        ids = getattr(ids, "ids", ids)
        ids = ids[:4] if kind == "words library" else ids       # the file says truncation: 4
    else:
        ids = tokenizer.encode(text).tolist()
    config = GPTConfig(vocab_size=50304, block_size=8, n_layer=1, n_head=1, n_embd=2)
    model = filled(config)
    run_of(model, tmp_path / "run", tokenizer).run()
    model.save_pretrained(tmp_path / "folder", CharTokenizer("abc"))
    assert load(tmp_path / "folder")[1].vocab_size == 3
    model.save_pretrained(tmp_path / "folder", tokenizer)
    end = {"gpt2": "<|endoftext|>", "pairs": "<|endoftext|>", "words": "[SEP]"}
    for folder in ("folder", "run"):
        again, found = load(tmp_path / folder)
        assert_same(model, again)
        assert found.encode(text).tolist()[: len(ids)] == list(ids)
        assert len(ids) == 4 or len(found.encode(text)) == len(ids)
        name = end.get(kind.split()[0])
        assert found.eos_token_id == (None if name is None else found.special[name]
                                      if kind != "gpt2" else 50256)
        if kind.endswith("fast"):
            assert found.pad_token_id == found.eos_token_id
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert auto.encode(text, add_special_tokens=False) == found.encode(text).tolist()


class Lower(CharTokenizer):
    def encode(self, text, special=False):
        return super().encode(text.lower(), special)


class Scratch(Tokenizer):
    vocab_size = 11

    def encode(self, text, special=False):
        return np.array([len(word) for word in text.split()], np.uint16)


def test_a_tokenizer_that_cannot_be_saved_is_refused_before_training(tmp_path):
    """And the way that is named works: without it, and at load."""
    model = filled(GPTConfig(**SMALL))
    scratch, lower = Scratch(), Lower("abcde")
    wrong = {
        "type Scratch": scratch, "type Lower": lower, "to 11, not 256": "byte",
        "to 11, not None": Tokenizer(), "takes its characters from a text": "char",
        "is unknown": "bytes", "tokenizer=5 is neither": 5,
        "tokenizers library fails": SimpleNamespace(to_str=lambda: str(1 / 0)),
    }  # fmt: skip
    for says, each in wrong.items():
        for use in (
            lambda each=each: model.save_pretrained(tmp_path / "folder", each),
            lambda each=each: run_of(model, tmp_path / "run", each),
        ):
            with pytest.raises(UserError, match=says) as error:
                use()
            assert "tokenizer=None" in str(error.value) or "type" not in says
    assert not any(tmp_path.iterdir())
    run_of(model, tmp_path / "run").run()
    model.save_pretrained(tmp_path / "folder")
    for folder in ("folder", "run"):
        for each in (scratch, lower):
            again, found = load(tmp_path / folder, tokenizer=each)
            assert found is each
            assert_same(model, again)
        with pytest.raises(UserError, match="from 1 to 11, not 256"):
            load(tmp_path / folder, tokenizer="byte")
    assert load(tmp_path / "run", tokenizer=lower)[1].encode("AbC").tolist() == [0, 1, 2]


def test_a_run_whose_tokenizer_cannot_be_read_is_loaded_with_a_given_one(tmp_path):
    """Earlier versions saved such runs."""
    trainer = run_of(filled(GPTConfig(**SMALL)), tmp_path)
    trainer.tokenizer = Scratch()
    trainer.run()
    with pytest.raises(UserError, match="npgpt_tokenizer.json cannot be used"):
        load(tmp_path)
    assert load(tmp_path, tokenizer=trainer.tokenizer)[1] is trainer.tokenizer


def test_without_a_tokenizer_load_returns_none_and_commands_say_so(npgpt, text_file, monkeypatch):
    monkeypatch.setattr("npgpt.cli.study.require_extra", lambda: None)
    monkeypatch.setattr("npgpt.cli.look.require_extra", lambda: None)
    model = filled(GPTConfig(**{**SMALL, "vocab_size": 256}))
    model.save_pretrained("folder")
    run_of(model, "run").run()
    commands = (
        "sample", "sample --prompt be", "score --text be", "look --prompt be",
        f"eval --corpus {text_file}",
        f"train --corpus {text_file} --out-dir tuned --max-iters 1 --overwrite --init-from",
    )  # fmt: skip
    assert npgpt("data", "prepare", text_file, "--out", "ids", "--tokenizer", "byte")[0] == 0
    for folder, says in (("folder", TOKENIZER_FILE), ("run", "without a tokenizer")):
        assert load(folder)[1] is None and load(folder, tokenizer="byte")[1].vocab_size == 256
        for command in commands:
            refused(npgpt(*command.split(), folder), says)
        code, out, _ = npgpt("eval", folder, "--corpus", "ids", "--split", "all")
        assert code == 0 and f"all: {text_file.stat().st_size - 1:,} tokens" in out
        code, _, err = npgpt("export", folder, "--out", f"{folder}-exported")
        assert code == 0 and "without tokenizer.json" in err
        assert load(f"{folder}-exported")[1] is None
        train = [*commands[-1].split(), folder, "--tokenizer", "byte"]
        assert npgpt(*train)[0] == 0
        assert isinstance(load("tuned")[1], ByteTokenizer)
    refused(npgpt(*commands[-1].split(), "folder", "--tokenizer", "gpt2"), "from 1 to 256")
    large = GPT(GPTConfig(vocab_size=50257, block_size=4, n_layer=1, n_head=1, n_embd=2))
    large.save_pretrained("gpt2-sized")
    assert isinstance(load("gpt2-sized")[1], GPT2Tokenizer)


class Scaled:
    """A block in a file that has another one."""

    factor = 1.0

    def parameters(self, config):
        return transformer.block_parameters(config)

    def forward(self, x, p, config, layer, mask, dropout_masks, ops):
        return transformer.block_forward(x, p, config, layer, mask, dropout_masks, ops)

    def backward(self, dx_out, cache, ops):
        return transformer.block_backward(dx_out, cache, ops)


class Other(Scaled):
    def forward(self, x, p, config, layer, mask, dropout_masks, ops):
        return super().forward(2.0 * x, p, config, layer, mask, dropout_masks, ops)


def test_another_block_of_the_same_file_and_one_without_a_source_are_refused(tmp_path):
    GPT(GPTConfig(**SMALL), block=Scaled()).save_pretrained(tmp_path)
    load(tmp_path, block=Scaled())
    with pytest.raises(UserError, match="the functions differ"):
        load(tmp_path, block=Other())
    block = dataclasses.replace(read_block(Scaled()), texts={"<stdin>": ""})
    with pytest.raises(UserError, match="cannot be read, and `load` compares it"):
        GPT(GPTConfig(**SMALL), block=block).save_pretrained(tmp_path / "another")
