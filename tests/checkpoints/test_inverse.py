"""What `save_pretrained` writes, `load` reads: every config, block, engine, dtype and tokenizer."""

import hashlib
import json
import linecache
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, Trainer, TrainOptions, load
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer
from npgpt.model import transformer
from tests import strict_cupy
from tests.conftest import TEXT
from tests.helpers.models import SMALL, VARIANTS
from tests.helpers.runs import refused, refusing, succeeded
from tests.helpers.tokenizers import MIXED, byte_pairs
from tests.torch_gpt import unit_scale

EXAMPLES = Path(__file__).parents[2] / "tools/examples"
BLOCKS = {"gpt2": None, "modern": EXAMPLES / "modern_block.py", "lora": EXAMPLES / "lora_block.py"}


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


EACH_BLOCK = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
ENGINES = [
    *({"kernels": kernels} for kernels in ("reference", "numpy", "numba")),
    pytest.param({"kernels": "xla"}, marks=pytest.mark.slow),
    {"device": "gpu"},
]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_config_is_saved_and_loaded(tmp_path, variant):
    config = GPTConfig(**SMALL | variant, initializer_range=0.1, bos_token_id=3)
    for dtype in ("float32", "float64"):
        model = filled(config, dtype=dtype)
        model.save_pretrained(tmp_path)
        again, tokenizer = load(tmp_path)
        assert tokenizer is None
        assert_same(model, again)


@EACH_BLOCK
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_every_engine_loads_what_another_saved(tmp_path, monkeypatch, block, engine):
    if "device" in engine:
        strict_cupy.install(monkeypatch)
    model = filled(GPTConfig(**SMALL, bias=False, mlp_bias=True), dtype="float64", block=block)
    model.save_pretrained(tmp_path / "first")
    other, _ = load(tmp_path / "first", **engine, block=block)
    assert "device" in engine or other.engine.kernels == engine["kernels"]
    other.save_pretrained(tmp_path / "second")
    assert_same(model, load(tmp_path / "second", kernels="reference", block=block)[0])


def cell(file, name):
    """The block in a cell of a notebook, which has the text of a file."""
    text, names = file.read_text(), {}
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("kind", ["module", "cell", "file"])
def test_a_block_of_ones_own_is_named_and_asked_for(tmp_path, kind):
    """However it is given; another one is refused."""
    file = BLOCKS["lora"]
    block = {
        "module": SimpleNamespace(**runpy.run_path(str(file))),
        "cell": cell(file, "<ipython-input-1>"),
    }
    model = filled(GPTConfig(**SMALL), block=block.get(kind, file), freeze="wte")
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    name = "<ipython-input-1>" if kind == "cell" else file.name
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    saved = {"name": name, "sha256": digest, "functions": ["forward", "backward"]}
    assert fields["npgpt"]["block"] == saved and fields["model_type"] == "npgpt"
    for each in (file, cell(file, "<ipython-input-2>")):
        again, _ = load(tmp_path, block=each)
        assert_same(model, again)
        assert not again.params.frozen
    for other in (None, BLOCKS["modern"]):
        with refusing(f"the model has .*'{name}'.* block="):
            load(tmp_path, block=other)


@pytest.mark.parametrize("stored", ["float64", "float32", "float16"])
def test_the_type_of_the_weights_is_that_of_the_file(tmp_path, stored):
    """By default: only float64 stays."""
    loaded = "float64" if stored == "float64" else "float32"
    model = filled(GPTConfig(**SMALL), dtype="float64")
    model.save_pretrained(tmp_path / "own", dtype=stored)
    again, _ = load(tmp_path / "own")
    assert again.dtype == again.params.dtype == loaded
    np.testing.assert_array_equal(again.params.flat, model.params.flat.astype(stored))
    assert load(tmp_path / "own", dtype="float32")[0].dtype == "float32"
    assert GPT.from_pretrained(tmp_path / "own").dtype == "float32"


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
        with refusing("is a run, which .* save in another folder"):
            model.save_pretrained(folder)
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


class Lower(CharTokenizer):
    def encode(self, text, special=False):
        return super().encode(text.lower(), special)


def test_a_tokenizer_that_cannot_be_saved_is_refused_before_training(tmp_path):
    """And the way that is named works: without it, and at load."""
    model = filled(GPTConfig(**SMALL))
    lower = Lower("abcde")
    wrong = {
        "type Lower": lower, "to 11, not 256": "byte", "to 11, not None": Tokenizer(),
        "takes its characters from a text": "char", "is unknown": "bytes",
        "tokenizer=5 is neither": 5,
        "tokenizers library fails": SimpleNamespace(to_str=lambda: str(1 / 0)),
    }  # fmt: skip
    for says, each in wrong.items():
        with refusing(says):
            model.save_pretrained(tmp_path / "folder", each)
        with refusing(says):
            run_of(model, tmp_path / "run", each)
    assert not any(tmp_path.iterdir())
    run_of(model, tmp_path / "run").run()
    model.save_pretrained(tmp_path / "folder")
    for folder in ("folder", "run"):
        again, found = load(tmp_path / folder, tokenizer=lower)
        assert found is lower and found.encode("AbC").tolist() == [0, 1, 2]
        assert_same(model, again)
        with refusing("from 1 to 11, not 256"):
            load(tmp_path / folder, tokenizer="byte")


@pytest.mark.parametrize("fast", [False, True])
def test_tokenizers_of_the_libraries_are_saved_as_they_are(tmp_path, fast):
    """An object of tokenizers, or of transformers, which knows its end and its padding."""
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra test")
    library = pytest.importorskip("tokenizers", reason="tokenizers is in the extra hf")
    theirs = library.Tokenizer.from_file(str(byte_pairs(tmp_path / "bpe.json")))
    expected = theirs.encode(MIXED).ids
    if fast:
        named = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=theirs, **named)
    model = filled(GPTConfig(**{**SMALL, "vocab_size": 320}))
    run_of(model, tmp_path / "run", theirs).run()
    model.save_pretrained(tmp_path / "folder", CharTokenizer("abc"))
    model.save_pretrained(tmp_path / "folder", theirs)
    for folder in ("folder", "run"):
        found = load(tmp_path / folder)[1]
        assert found.encode(MIXED).tolist() == expected and found.eos_token_id == 0
        assert found.pad_token_id == (0 if fast else None)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert auto.encode(MIXED, add_special_tokens=False) == expected


def test_a_run_whose_tokenizer_cannot_be_read_is_loaded_with_a_given_one(tmp_path):
    """Earlier versions saved such runs."""
    trainer = run_of(filled(GPTConfig(**SMALL)), tmp_path)
    trainer.tokenizer = Tokenizer()
    trainer.run()
    with refusing("npgpt_tokenizer.json cannot be used"):
        load(tmp_path)
    lower = Lower("abcde")
    assert load(tmp_path, tokenizer=lower)[1] is lower


@pytest.mark.parametrize(("kind", "says"), [("model", TOKENIZER_FILE), ("run", "without a token")])
def test_without_a_tokenizer_load_returns_none_and_commands_say_so(npgpt, monkeypatch, kind, says):
    monkeypatch.setattr("npgpt.cli.look.require_extra", lambda: None)
    model = filled(GPTConfig(**{**SMALL, "vocab_size": 256}))
    if kind == "run":
        run_of(model, "theirs").run()
    else:
        model.save_pretrained("theirs")
    assert load("theirs")[1] is None and load("theirs", tokenizer="byte")[1].vocab_size == 256
    tune = "train --corpus text.txt --out-dir tuned --max-iters 1 --init-from theirs"
    for command in (
        "sample theirs",
        "score theirs --text be",
        "look theirs --prompt be",
        "eval theirs --corpus text.txt",
        tune,
    ):
        refused(npgpt(command), says)
    prepare = "data prepare text.txt --out ids --tokenizer byte"
    succeeded(npgpt(prepare))
    out = npgpt("eval theirs --corpus ids --split all")[1]
    assert f"all: {len(TEXT) - 1:,} tokens" in out
    code, _, err = npgpt("export theirs --out exported")
    assert code == 0 and "without tokenizer.json" in err and load("exported")[1] is None
    succeeded(npgpt(tune, "--tokenizer", "byte"))
    assert isinstance(load("tuned")[1], ByteTokenizer)
    refused(npgpt(tune, "--overwrite", "--tokenizer", "gpt2"), "from 1 to 256")


class Own:
    """A block in a file that has another one."""

    parameters = staticmethod(transformer.block_parameters)
    backward = staticmethod(transformer.block_backward)

    def forward(self, *arguments):
        return transformer.block_forward(*arguments)


class Other(Own):
    def forward(self, x, *arguments):
        return super().forward(2.0 * x, *arguments)


def test_another_block_of_the_same_file_is_refused(tmp_path):
    GPT(GPTConfig(**SMALL), block=Own()).save_pretrained(tmp_path)
    load(tmp_path, block=Own())
    with refusing("the functions differ"):
        load(tmp_path, block=Other())
