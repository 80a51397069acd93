"""How flags are spelled, what `--help` says of them, and what they become."""


import pytest

from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from tests.helpers.runs import refused


@pytest.mark.parametrize(("command", "says"), [
    (["train", "--eval", "1"], "did you mean --eval-interval or --eval-iters?"),
    (["train", "--learn_rate", "1"], "unknown flag --learn_rate: did you mean --learning-rate?"),
    (["data", "prepare", "x", "--out", "y", "--tokeniser", "char"], "--tokenizer? (see npgpt data prepare --help)"),
    (["train", "--zebra"], "unknown flag --zebra (see npgpt train --help)"),
    (["info", "out", "more"], "unrecognized arguments: more"),
])
def test_a_flag_is_spelled_out(npgpt, command, says):
    refused(npgpt(*command), says)


def test_underscores_are_taken_and_values_stay_as_they_are(train, npgpt, tmp_path):
    assert train("--max_iters=2", "--eval_interval", 2, "--out_dir", "out_1", "--no_qkv_bias")[0] == 0
    assert find_checkpoint("out_1").name == "step-00000002"
    assert read_checkpoint(find_checkpoint("out_1")).config.used("qkv_bias") is False
    (tmp_path / "--data_dir").write_text("To be, or not to be, that is the question:\n" * 20)
    assert npgpt("data", "prepare", "--tokenizer=char", "--out=--a_b", "--", "--data_dir")[0] == 0
    assert (tmp_path / "--a_b/train.bin").exists()
