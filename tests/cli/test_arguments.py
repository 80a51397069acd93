"""How flags are spelled, what `--help` says of them, and what they become."""

import pytest

from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from tests.helpers.runs import refused, succeeded


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train --eval 1", "did you mean --eval-interval or --eval-iters?"),
        ("train --learn_rate 1", "unknown flag --learn_rate: did you mean --learning-rate?"),
        ("data prepare x --out y --tokeniser char", "--tokenizer? (see npgpt data prepare --help)"),
        ("train --zebra", "unknown flag --zebra (see npgpt train --help)"),
        ("train --lr 1e-3", "unknown flag --lr: it is --learning-rate here (see npgpt train"),
        ("train --num_steps=5", "unknown flag --num_steps: it is --max-iters here"),
        ("train --dataset=shakespeare_char", "it is --corpus here"),
        ("sample --dataset=shakespeare_char", "unknown flag --dataset (see npgpt sample"),
        ("sample --start=To", "it is --prompt here"),
        ("train --decay_lr=False", "--lr-decay-iters 0 keeps the learning rate constant"),
        ("train --eval_only=True", "npgpt eval measures the loss of a run (see npgpt train"),
        ("train --compile=False", "leave it out; --kernels xla compiles"),
        ("sample --out_dir=out-char", "give the folder alone, as MODEL"),
        ("sample --init_from=gpt2-xl", "give the model alone, as MODEL"),
        ("train --bias=False", "--bias takes no value: write --bias or --no-bias (see"),
        ("train --resume=True", "--resume takes no value: write --resume (see"),
        ("train --init_from=resume", "continue the run in --out-dir, give --resume"),
        ("train --init-from scratch", "leave --init-from out"),
        ("train --corpus a.txt --corpus=b.txt", "twice: put the texts into one file"),
        ("eval tiny --corpus=a.txt --corpus b.txt", "--corpus was given twice"),
        ("info out more", "unrecognized arguments: more"),
    ],
)
def test_a_flag_is_spelled_out(npgpt, command, says):
    refused(npgpt(command), says)


def test_underscores_are_taken_and_values_stay_as_they_are(train, npgpt, tmp_path):
    flags = "--max_iters=2 --eval_interval 2 --out_dir out_1 --no_qkv_bias"
    succeeded(train(flags))
    assert find_checkpoint("out_1").name == "step-00000002"
    assert read_checkpoint(find_checkpoint("out_1")).config.resolved("qkv_bias") is False
    (tmp_path / "--data_dir").write_text("To be, or not to be, that is the question:\n" * 20)
    succeeded(npgpt("data prepare --tokenizer=char --out=--a_b -- --data_dir"))
    assert (tmp_path / "--a_b/train.bin").exists()
