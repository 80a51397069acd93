"""The commands on a model that npgpt did not train: sample, eval, export, and training that begins from it."""

import importlib
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError, load
from npgpt.checkpoints import run
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer, save_tokenizer
from tests.helpers.hub_server import HubServer, point_client_at
from tests.helpers.runs import bits, refused


@pytest.fixture
def folder(tmp_path):
    """A small byte model with a tokenizer, as somebody else may have saved it."""
    model = GPT(GPTConfig(vocab_size=256, block_size=16, n_layer=1, n_head=2, n_embd=8, dropout=0.1))
    model.save_pretrained(tmp_path / "theirs")
    save_tokenizer(ByteTokenizer(), tmp_path / "theirs" / TOKENIZER_FILE)
    return "theirs"


def test_info_and_eval(npgpt, folder, text_file):
    for model in (folder, f"{folder}/model.safetensors"):
        code, out, _ = npgpt("info", model)
        assert code == 0 and "256 x 8" in out and "batch 1 x 16 tokens" in out
        code, out, _ = npgpt("eval", model, "--corpus", text_file)
        assert code == 0 and f"all: {len(text_file.read_text()) - 1:,} tokens" in out


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
    refused(npgpt(*command.split(), folder), "choose another")
    assert npgpt("info", folder)[0] == npgpt("export", folder, "--out", "exported")[0] == 0


def test_export_and_back(npgpt, train, folder):
    assert train("--max-iters", 2)[0] == 0
    for source in (folder, "out"):
        assert npgpt("export", source, "--out", f"exported-{source}")[0] == 0
    before = (Path("exported-out") / "model.safetensors").read_bytes()
    refused(npgpt("export", folder, "--out", "exported-out"), "exported-out already exists")
    assert (Path("exported-out") / "model.safetensors").read_bytes() == before
    prompt = ["--prompt", "To be", "--max-new-tokens", 20]
    assert npgpt("sample", "exported-out", *prompt)[1] == npgpt("sample", "out", *prompt)[1]
    assert npgpt("sample", "exported-theirs", *prompt)[1] == npgpt("sample", folder, *prompt)[1]


def test_fine_tuning_begins_from_the_model_and_resumes_to_the_bit(npgpt, folder, text_file):
    command = ["train", "--init-from", folder, "--corpus", text_file, "--crop-length", 8, "--max-iters", 6,
               "--eval-interval", 3, "--threads", 1]
    code, out, _ = npgpt(*command, "--out-dir", "tuned")
    assert code == 0 and "step     0: train loss 5.5" in out
    state = read_checkpoint(find_checkpoint("tuned")).state
    assert state["options"]["learning_rate"] == 3e-5 and state["options"]["lr_decay_iters"] == 0
    assert GPT.from_pretrained(find_checkpoint("tuned")).config == GPT.from_pretrained(folder).config
    assert npgpt(*command, "--out-dir", "parts", "--max-iters", 3)[0] == 0
    assert npgpt("train", "--resume", "--out-dir", "parts", "--max-iters", 6)[0] == 0
    assert bits("parts") == bits("tuned")


def test_dropout_can_be_changed_and_the_shape_cannot(npgpt, folder, text_file):
    command = ["train", "--init-from", folder, "--corpus", text_file, "--max-iters", 1]
    refused(npgpt(*command, "--n-embd", 16), "n_embd is 8 in theirs, but 16 was asked for")
    refused(npgpt(*command, "--tokenizer", "char"), "tokenizer is byte in theirs")
    refused(npgpt(*command, "--crop-length", 17), "crop_length 17 is more than block_size 16")
    assert npgpt(*command, "--dropout", 0.5)[0] == 0
    assert GPT.from_pretrained(find_checkpoint("out")).config.used("attn_pdrop") == 0.5
    # The preset's crop of 256 is cut to the model's context.
    assert read_checkpoint(find_checkpoint("out")).state["options"]["crop_length"] == 16


def test_a_missing_model_and_a_missing_or_too_large_tokenizer_are_one_line(npgpt, folder, tmp_path):
    refused(npgpt("sample", "no-such-model"), "no-such-model", "gpt2", "config.json")
    refused(npgpt("train", "--init-from", "no-such-model"), "no-such-model")
    save_tokenizer(CharTokenizer("".join(map(chr, range(257)))), tmp_path / folder / TOKENIZER_FILE)
    refused(npgpt("sample", folder), "257", "256")
    (tmp_path / folder / TOKENIZER_FILE).unlink()
    refused(npgpt("sample", folder), TOKENIZER_FILE, "tokenizer.json")


def test_a_model_of_the_hub_is_sampled_evaluated_and_fine_tuned_and_then_offline(npgpt, folder, text_file, tmp_path,
                                                                                monkeypatch):
    """By the real client from a hub on 127.0.0.1; the second time with the hub gone."""
    files = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
    with HubServer() as hub:
        point_client_at(hub, tmp_path / "home", monkeypatch)
        hub.add("openai-community/gpt2", files)
        hub.add("openai-community/gpt2", {**files, "config.json": b"{}"}, revision="broken")
        code, out, _ = npgpt("sample", "gpt2", "--prompt", "To be", "--max-new-tokens", 9)
        assert code == 0 and out == npgpt("sample", folder, "--prompt", "To be", "--max-new-tokens", 9)[1]
        refused(npgpt("sample", "gpt2", "--revision", "broken"), "config.json", "model_type")
        refused(npgpt("sample", "somebody/nothing"), "somebody/nothing", "Repository Not Found")
        assert np.array_equal(GPT.from_pretrained("gpt2").params.flat, GPT.from_pretrained(folder).params.flat)
    assert npgpt("eval", "openai-community/gpt2", "--corpus", text_file)[0] == 0
    assert npgpt("train", "--init-from", "gpt2", "--corpus", text_file, "--crop-length", 8, "--max-iters", 1)[0] == 0
    refused(npgpt("sample", "gpt2-xl"), "openai-community/gpt2-xl is not in the local cache", "network")


@pytest.fixture
def saving(train, monkeypatch):
    """A run "out" of step 2, which another process continues: saving(where) lets it save step 4,
    and delete step 2, when the function `where` is next called.
    """
    assert train("--max-iters", 2)[0] == train("--max-iters", 4, "--out-dir", "later")[0] == 0

    def replace():
        Path("later/step-00000004").rename("out/step-00000004")
        shutil.rmtree("out/step-00000002")

    def arrange(where, then=replace):
        place, name = (run, where) if isinstance(where, str) else where
        original = getattr(place, name)

        def wrapper(*args, **options):
            monkeypatch.setattr(place, name, original)
            then()
            return original(*args, **options)

        monkeypatch.setattr(place, name, wrapper)

    return arrange


PLACES = [
    "checkpoints",
    "read_state",
    "digest",
    "read_config",
    "load_tokenizer",
    ("npgpt.loading", "find_checkpoint"),
    ("npgpt.loading", "read_checkpoint"),
    ("npgpt.api", "find_model"),
    ("npgpt.api", "open_model"),
    ("npgpt.checkpoints.load", "weight_files"),
    ("npgpt.checkpoints.load", "TensorFile"),
    ("npgpt.checkpoints.load", "check_tensors"),
    ("npgpt.checkpoints.tensorfile", "as_floats"),
]


def place_of(place):
    if isinstance(place, str):
        return place
    return importlib.import_module(place[0]), place[1]


@pytest.mark.parametrize(
    ("place", "which"), [*((place, "best") for place in PLACES), (PLACES[0], "latest")], ids=str)
def test_a_run_that_saves_while_it_is_read_is_read_again(saving, place, which):
    expected, _ = load("later", which=which)
    saving(place_of(place))
    model, _ = load("out", which=which)
    assert np.array_equal(model.params.flat, expected.params.flat)
    assert find_checkpoint("out").name == "step-00000004"


@pytest.mark.parametrize("place", ["digest", ("npgpt.checkpoints.load", "TensorFile")], ids=str)
def test_a_checkpoint_that_is_replaced_by_one_of_the_same_step_is_read_again(saving, place):
    """As --overwrite does."""
    expected, _ = load("later")

    def replace():
        shutil.rmtree("out/step-00000002")
        Path("later/step-00000004").rename("out/step-00000002")
        state = Path("out/step-00000002/state.json")
        state.write_text(state.read_text().replace('"step": 4', '"step": 2'))

    saving(place_of(place), replace)
    assert np.array_equal(load("out")[0].params.flat, expected.params.flat)


@pytest.mark.parametrize(
    "command",
    ["info", "sample --temperature 0", "eval", "score --text be", "export --out exported"],
)
def test_every_command_reads_a_run_while_it_trains(npgpt, saving, command):
    name, *flags = command.split()
    expected = npgpt(name, "later", *flags)
    shutil.rmtree("exported", ignore_errors=True)
    saving("digest")
    code, out, err = npgpt(name, "out", *flags)
    assert code == 0 and out == expected[1].replace("later/", "out/") and err == expected[2]


def test_a_checkpoint_that_is_deleted_is_not_advised_to_be_deleted(npgpt, saving, monkeypatch):
    monkeypatch.setattr("npgpt.download.hub.fetch_model", lambda *_: pytest.fail("asks the hub"))
    saving("digest")
    for command in ("sample", "info"):
        result = npgpt(command, "out/step-00000002")
        refused(result, "out/step-00000002 is not there, or no longer", "give the run, out")
        assert "delete" not in result[2]
    with pytest.raises(UserError, match="no longer"):
        GPT.from_pretrained("out/step-00000002")
    assert not any(run.is_deleted(Path(name)) for name in ("out/model", "gone/step-00000002"))


def test_a_run_is_found_between_two_looks_and_a_damaged_one_is_not_read_for_ever(
    npgpt, saving, monkeypatch
):
    """The looks for new checkpoints, and for those that --overwrite renames."""
    empty, found = iter([[], []]), run.step_folders
    monkeypatch.setattr(run, "step_folders", lambda *args: next(empty, found(*args)))
    assert run.is_run(Path("out").resolve()) and next(empty, None) is None
    times = []

    def touched(folder):
        times.append(folder)
        (folder / "state.json").touch()
        raise UserError("damaged")

    monkeypatch.setattr("npgpt.loading.read_checkpoint", lambda folder, *_: touched(folder))
    refused(npgpt("sample"), "damaged")
    assert len(times) == run.MOST_READS + 1
    times.clear()
    monkeypatch.setattr(Path, "touch", lambda self: None)
    refused(npgpt("sample"), "damaged")
    assert len(times) == 1


def test_a_file_that_is_no_model_is_named_and_the_hub_is_not_asked(npgpt, tmp_path, monkeypatch):
    monkeypatch.setattr("npgpt.download.hub.fetch_model", lambda *_: pytest.fail("asks the hub"))
    Path("models").mkdir()
    Path("models/gpt2_124M.bin").write_bytes(struct.pack("<3i", 20240326, 3, 1024))
    refused(npgpt("sample", "models/gpt2_124M.bin"), "gpt2_124M.bin is llm.c's weights")
    Path("models/ckpt.pt").write_bytes(b"PK")
    refused(npgpt("info", "models/ckpt.pt"), "ckpt.pt is not a .safetensors file", "config.json")
