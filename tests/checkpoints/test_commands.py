"""The commands on a model that npgpt did not train: sample, eval, export, and training that begins
from it.
"""

import importlib
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, load
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer, save_tokenizer
from tests.helpers.hub_server import HubServer, point_client_at
from tests.helpers.runs import bits, refused, succeeded


@pytest.fixture
def folder(tmp_path):
    """A small byte model with a tokenizer, as somebody else may have saved it."""
    size = {"vocab_size": 256, "block_size": 16, "n_layer": 1, "n_head": 2, "n_embd": 8}
    GPT(GPTConfig(**size, dropout=0.1)).save_pretrained(tmp_path / "theirs", ByteTokenizer())
    return "theirs"


def test_info_and_eval(npgpt, folder, text_file):
    for model in (folder, f"{folder}/model.safetensors"):
        succeeded(npgpt("info", model), "256 x 8", "batch 1 x 16 tokens")
        succeeded(
            npgpt("eval", model, "--corpus", text_file),
            f"all: {len(text_file.read_text()) - 1:,} tokens",
        )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, 3e38])
@pytest.mark.parametrize(
    "command",
    [
        "sample",
        "eval --corpus text.txt",
        "score --text ab",
        "train --corpus text.txt --max-iters 2 --crop-length 8 --threads 1 --init-from",
    ],
)
def test_weights_that_are_not_finite_are_one_line(npgpt, folder, command, value):
    """Or so large that the layers overflow."""
    model = GPT.from_pretrained(folder)
    model.params["h.0.mlp.c_fc.weight"][:] = value
    model.params["ln_f.weight"][:] = value
    model.save_pretrained(folder)
    refused(npgpt(command, folder), "choose another")
    succeeded(npgpt("info", folder))
    succeeded(npgpt("export", folder, "--out", "exported"))


def test_fine_tuning_begins_from_the_model_and_resumes_to_the_bit(npgpt, folder):
    flags = "--corpus text.txt --crop-length 8 --eval-interval 3 --threads 1 --init-from theirs"
    train = ["train", *flags.split(), "--out-dir"]
    succeeded(npgpt(*train, "tuned", "--max-iters", 6), "step     0: train loss 5.5")
    options = read_checkpoint(find_checkpoint("tuned")).state["options"]
    assert options["learning_rate"] == 3e-5 and options["lr_decay_iters"] == 0
    assert load("tuned")[0].config == load(folder)[0].config
    succeeded(npgpt(*train, "parts", "--max-iters", 3))
    succeeded(npgpt("train --resume --out-dir parts --max-iters 6"))
    assert bits("parts") == bits("tuned")


def test_dropout_can_be_changed_and_the_shape_cannot(npgpt, folder, text_file):
    command = "train --init-from theirs --corpus text.txt --max-iters 1"
    refused(npgpt(command, "--n-embd", 16), "n_embd is 8 in theirs, but 16 was asked for")
    refused(npgpt(command, "--tokenizer", "char"), "tokenizer is byte in theirs")
    refused(npgpt(command, "--crop-length", 17), "crop_length 17 is more than block_size 16")
    succeeded(npgpt(command, "--dropout", 0.5))
    assert GPT.from_pretrained(find_checkpoint("out")).config.resolved("attn_pdrop") == 0.5
    # The preset's crop of 256 is cut to the model's context.
    assert read_checkpoint(find_checkpoint("out")).state["options"]["crop_length"] == 16


def test_a_missing_model_and_a_missing_or_too_large_tokenizer_are_one_line(npgpt, folder, tmp_path):
    refused(npgpt("sample no-such-model"), "no-such-model", "gpt2", "config.json")
    refused(npgpt("train --init-from no-such-model"), "no-such-model")
    save_tokenizer(CharTokenizer("".join(map(chr, range(257)))), tmp_path / folder / TOKENIZER_FILE)
    refused(npgpt("sample", folder), "257", "256")
    for path in (tmp_path / folder).glob("*tokenizer*"):
        path.unlink()
    refused(npgpt("sample", folder), TOKENIZER_FILE, "tokenizer.json")


def test_a_model_of_the_hub_is_sampled_evaluated_and_fine_tuned_and_then_offline(
    npgpt, folder, tmp_path, monkeypatch
):
    """By the real client from a hub on 127.0.0.1; the second time with the hub gone."""
    files = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
    sample = ["sample", "--prompt", "To be", "--max-new-tokens", 9]
    with HubServer() as hub:
        point_client_at(hub, tmp_path / "home", monkeypatch)
        hub.add("openai-community/gpt2", files)
        hub.add("openai-community/gpt2", {**files, "config.json": b"{}"}, revision="broken")
        assert npgpt(*sample, "gpt2") == npgpt(*sample, folder)
        refused(npgpt("sample gpt2 --revision broken"), "config.json", "model_type")
        refused(npgpt("sample somebody/nothing"), "somebody/nothing", "Repository Not Found")
        assert (load("gpt2")[0].params.flat == load(folder)[0].params.flat).all()
    succeeded(npgpt("eval openai-community/gpt2 --corpus text.txt"))
    tune = "train --init-from gpt2 --corpus text.txt --crop-length 8 --max-iters 1"
    succeeded(npgpt(tune))
    says = "openai-community/gpt2-xl is not in the local cache", "network"
    refused(npgpt("sample gpt2-xl"), *says)


@pytest.fixture
def saving(train, monkeypatch):
    """A run "out" of step 2, which another process continues: saving(where) lets it save step 4,
    and delete step 2, when the function `where` is next called.
    """
    succeeded(train("--max-iters 2"))
    succeeded(train("--max-iters 4 --out-dir later"))

    def arrange(where):
        module, name = where.rsplit(".", 1)
        module = importlib.import_module(module)
        original = getattr(module, name)

        def wrapper(*args, **options):
            monkeypatch.setattr(module, name, original)
            Path("later/step-00000004").rename("out/step-00000004")
            shutil.rmtree("out/step-00000002")
            return original(*args, **options)

        monkeypatch.setattr(module, name, wrapper)

    return arrange


DIGEST, TENSORS = "npgpt.checkpoints.run.digest", "npgpt.checkpoints.load.open_tensors"
PLACES = [
    "npgpt.checkpoints.run.read_state",
    DIGEST,
    "npgpt.checkpoints.run.load_tokenizer",
    "npgpt.loading.read_checkpoint",
    TENSORS,
    "npgpt.checkpoints.tensorfile.as_floats",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_saves_while_it_is_read_is_read_again(saving, place):
    expected, _ = load("later")
    saving(place)
    model, _ = load("out")
    assert np.array_equal(model.params.flat, expected.params.flat)
    assert find_checkpoint("out").name == "step-00000004"


@pytest.mark.parametrize(
    "command", ["info out", "sample out --temperature 0", "eval out", "score out --text be"]
)
def test_every_command_reads_a_run_while_it_trains(npgpt, saving, command):
    code, expected, err = npgpt(*command.replace("out", "later").split())
    saving(DIGEST)
    assert npgpt(command) == (code, expected.replace("later/", "out/"), err) and code == 0


def test_a_checkpoint_that_is_deleted_is_not_advised_to_be_deleted(npgpt, saving, monkeypatch):
    monkeypatch.setattr("npgpt.download.hub.fetch_model", lambda *_: pytest.fail("asks the hub"))
    saving(DIGEST)
    result = npgpt("sample out/step-00000002")
    refused(result, "out/step-00000002 is not there, or no longer", "give the run, out")
    assert "delete" not in result[2]


def test_a_file_that_is_no_model_is_named_and_the_hub_is_not_asked(npgpt, tmp_path, monkeypatch):
    monkeypatch.setattr("npgpt.download.hub.fetch_model", lambda *_: pytest.fail("asks the hub"))
    Path("models").mkdir()
    Path("models/gpt2_124M.bin").write_bytes(struct.pack("<3i", 20240326, 3, 1024))
    refused(npgpt("sample models/gpt2_124M.bin"), "gpt2_124M.bin is llm.c's weights")
    Path("models/ckpt.pt").write_bytes(b"PK")
    refused(npgpt("info models/ckpt.pt"), "ckpt.pt is not a .safetensors file", "config.json")
