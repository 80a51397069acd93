"""Golden values: what a run of an earlier version depends on when it is resumed.

If one of them changes, old runs cannot be resumed, or not with their bits. So change one only
together with FORMAT of npgpt/checkpoints/run.py. Random bits and integers are the same on every
machine; what matmuls have computed is compared in float64, to 1e-9.
"""

import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, Trainer, TrainOptions
from npgpt.checkpoints.run import find_checkpoint, fingerprint
from npgpt.engine.memory import number_of_shards
from npgpt.model.masks import draw_masks
from npgpt.training.loop import batch_starts
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import succeeded

# A run of 3 steps in float64, with dropout, two micro-batches and two shards, that was written when
# FORMAT was 1.
OLD_RUN = Path(__file__).with_name("old_run")
# Number of threads -> loss, learning rate and gradient norm of the steps 4 to 6; and the losses of
# the last evaluation.
RESUMED = {
    2: (
        [
            (2.054475973052567, 0.009931634888554936, 0.533953252072089),
            (2.0401237527382614, 0.00972861679353659, 0.45490607869058963),
            (2.0001479885991236, 0.009397114317029977, 0.60788011198111),
        ],
        (2.020655755134133, 2.0236543176314763),
    ),
    1: (
        [
            (2.0541864317962584, 0.009931634888554936, 0.5423554320088633),
            (2.0410219476710707, 0.00972861679353659, 0.4924104507119506),
            (1.9964722778056296, 0.009397114317029977, 0.5855643201058433),
        ],
        (2.022052512224146, 2.022673421142909),
    ),
}

# Of some matrices: the first and the last value, and the sum of the magnitudes.
WEIGHTS = {
    "wte.weight": (0.01685004, 0.03515011, 6.1563833),
    "wpe.weight": (0.00075848, -0.00242300, 0.8548675),
    "h.0.attn.c_proj.weight": (0.00176137, 0.01366282, 0.5330478),
    "h.1.mlp.c_fc.weight": (-0.00183727, -0.00946527, 3.7519079),
}

TOKENS = np.arange(90, dtype=np.uint16)
# A digest is of the first and last million.
MANY = (np.arange(2_500_000) * 2_654_435_761 % 65_521).astype(np.uint16)


def resume(npgpt, *flags):
    """Resume the old run with these flags, and return the folder of its new checkpoint."""
    shutil.copytree(OLD_RUN, "out")
    Path("poem.txt").write_text("to be or not to be\n" * 9)
    succeeded(npgpt("train --resume --corpus poem.txt", *flags))
    return find_checkpoint("out")


@pytest.mark.parametrize("threads", RESUMED)
def test_an_old_run_is_resumed(npgpt, threads):
    resume(npgpt, "--max-iters", 6, "--threads", threads)
    steps, losses = RESUMED[threads]
    *records, last = [record for record in read_metrics("out") if record["step"] > 3]
    assert [record["step"] for record in records] == [4, 5, 6]
    for record, expected in zip(records, steps, strict=True):
        found = record["loss"], record["lr"], record["grad_norm"]
        assert found == pytest.approx(expected, rel=1e-9)
    assert (last["train_loss"], last["val_loss"]) == pytest.approx(losses, rel=1e-9)


def test_a_checkpoint_has_the_form_of_an_old_one(npgpt):
    """Options may be added. Of the tensors' files, the headers are the same."""
    old, new = OLD_RUN / "step-00000003", resume(npgpt, "--max-iters", 4)
    before, after = (json.loads((folder / "state.json").read_text()) for folder in (old, new))
    assert kinds(after) == kinds(before) and kinds(after["sha256"]) == kinds(before["sha256"])
    options, found = before.pop("options") | {"max_iters": 4}, after.pop("options")
    assert {name: found[name] for name in options} == options
    assert kinds(found)[: len(options)] == kinds(options)
    changed = {name: after[name] for name in ("best_step", "best_loss", "sha256")}
    assert after == before | changed | {"step": 4}
    for name in ("config.json", "npgpt_tokenizer.json"):
        assert (new / name).read_bytes() == (old / name).read_bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = ((folder / name).read_bytes() for folder in (new, old))
        header = 8 + int.from_bytes(theirs[:8], "little")
        assert ours[:header] == theirs[:header] and len(ours) == len(theirs)


def kinds(fields):
    """The keys of a dict, in their order, and the types of the values."""
    return [(name, type(value)) for name, value in fields.items()]


def test_fingerprints():
    for tokens, expected in (
        (MANY[:100], "f9b89b8ad13cc72ad2cfa6da96be4961c81a79cd8dd03fde6e29260ecf1075bf"),
        (MANY, "a35403311df6c3b4b95481041033f9ead887970f1b169333f16920a3af4b5156"),
    ):
        wide = tokens.astype(np.int64)  # what `encode` returns, which was uint16
        assert fingerprint(tokens) == fingerprint(wide) == expected
        for at in (0, -1):
            other = wide.copy()
            other[at] += 2**16
            assert fingerprint(other) != expected
    mask = MANY[:100] % 3 == 0
    others = [np.ma.array(MANY[:100], mask=each) for each in (False, mask, ~mask)]
    assert len({fingerprint(each) for each in (MANY[:100], MANY, *others)}) == 5
    assert fingerprint(MANY, MANY) != fingerprint(MANY, None) == fingerprint(MANY)


STARTS = {
    "random": "57 68 1 68 3 48 49 22 75 63 48 33 27 27 71 60 27 9 25 28 8 72 73 61",
    "sequential": "0 5 10 15 20 25 30 35 40 45 50 55 60 65 70 75 0 5 10 15 20 25 30 35",
}


@pytest.mark.parametrize("sampling", STARTS)
def test_starts_of_a_batch(sampling):
    """Of two micro-batches of 4 crops in each of the steps 0, 1 and 1000."""
    trainer = trainer_of(TOKENS, sampling=sampling)
    found = []
    for step in (0, 1, 1000):
        for i in range(2):
            found.extend(batch_starts(trainer.crops["train"], trainer.options, step, i))
    assert " ".join(map(str, found)) == STARTS[sampling]


def test_starts_of_an_evaluation():
    starts = trainer_of(TOKENS).crops["train"].evenly(2, 4)
    assert starts.tolist() == [[0, 12, 24, 36], [48, 60, 72, 84]]


def trainer_of(tokens, **options):
    model = GPT(GPTConfig(vocab_size=90, block_size=5, n_layer=1, n_head=1, n_embd=2))
    options |= {"batch_size": 4, "gradient_accumulation_steps": 2, "seed": 5}
    return Trainer(model, tokens, TOKENS, TrainOptions(**options))


@pytest.mark.parametrize(
    ("threads", "numbers", "expected"),
    [
        (1, (5, 0, 0), {(): "7ffa5f 65a9c7 db571f ed9b5d fbadba b7d865 de5aeb"}),
        (1, (6, 7, 0), {(): "49d373 e89f3a 0e1f5f 3254c0 3adb8f 2de5c9 fefcfc"}),
        (1, (5, 7, 1), {(): "5fd65a dbcfd9 367978 b87eb1 93ed0c dffbb7 330af9"}),
        (2, (5, 7, 1), {(0,): "3a 52 ff 4f 8c f9 3f", (1,): "ce9e 6045 f86e bff4 d37d 81be 52ac"}),
    ],
)
def test_dropout_masks(monkeypatch, threads, numbers, expected):
    """The bits of all masks of each shard, for (seed, step, micro-batch): after the embedding, and
    of two blocks.
    """
    config = GPTConfig(vocab_size=4, block_size=2, n_layer=2, n_head=2, n_embd=4, dropout=0.4)
    found = {}

    def drawn(config, B, T, dtype, rng):
        embd, blocks = masks = draw_masks(config, B, T, dtype, rng)
        bits = [np.packbits(mask != 0).tobytes().hex() for mask in (embd, *blocks[0], *blocks[1])]
        found[rng.bit_generator.seed_seq.spawn_key] = " ".join(bits)
        return masks

    monkeypatch.setattr("npgpt.engine.reference.draw_masks", drawn)
    engine = GPT(config, threads=threads, kernels="numpy").engine
    idx = np.arange(6).reshape(3, 2) % 4
    engine.loss_and_grads([(idx, idx)], [engine.dropout_rng(*numbers)], idx.size)
    assert found == expected


def test_shards():
    """Of 1 to 6 rows, on 2 to 4 threads: each shard has masks of its own."""
    config = GPTConfig(vocab_size=50, block_size=8, n_layer=2, n_head=2, n_embd=32)
    for threads, expected in {2: "122222", 3: "121333", 4: "121144"}.items():
        found = [number_of_shards(config, B, 8, threads) for B in range(1, 7)]
        assert "".join(map(str, found)) == expected


def test_initial_weights():
    config = GPTConfig(vocab_size=50, block_size=8, n_layer=2, n_head=2, n_embd=8)
    params = GPT(config, seed=1337).params
    for name, expected in WEIGHTS.items():
        array = params[name]
        found = array[0, 0], array[-1, -1], np.abs(array).sum(dtype=np.float64)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_what_xla_seeds_dropout_with():
    """Its bits are JAX's; these are the words that it is given."""
    pytest.importorskip("jax", reason="JAX is not installed")
    from npgpt.engine.xla.engine import XLAEngine

    engine = mock.Mock(devices=mock.Mock(put=lambda array: array))
    words = XLAEngine._words(engine, XLAEngine.dropout_rng(engine, (7 << 32) + 5, 1000, 3))
    assert words.dtype == np.uint32 and words.tolist() == [7, 5, 1000, 3]
