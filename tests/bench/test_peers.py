"""The peers do the same work as npgpt: losses, tokens, the number of operations, the recipe."""

import dataclasses
import itertools

import numpy as np
import pytest

from npgpt.bench import worker
from npgpt.model.config import GPTConfig
from npgpt.training.options import TrainOptions
from tests.bench.conftest import GENERATION, TINY, TRAINING

torch = pytest.importorskip("torch", reason="the peers need torch")
from npgpt.bench import torch_gpt, torch_train  # noqa: E402


def test_torchs_training_steps_are_npgpts(monkeypatch):
    """Five steps at a rate so high that betas, decay and clipping show in the losses."""
    monkeypatch.setattr(worker, "LR", 0.3)
    monkeypatch.setattr("npgpt.bench.shapes.N_BATCHES", 2)
    ours, theirs = worker.training(TRAINING, threads=1), torch_gpt.training(TRAINING, 0.3, compiled=False)
    losses = [[step() for _ in range(5)] for step in (ours, theirs)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert max(losses[0]) - min(losses[0]) > 0.5


def test_transformers_tokens_are_npgpts(tmp_path):
    pytest.importorskip("transformers", reason="the peer of generation")
    worker.write_weights(GENERATION, tmp_path)
    ours, theirs = worker.generation(tmp_path, GENERATION, threads=1)(), torch_gpt.generation(tmp_path, GENERATION)()
    assert ours == theirs and np.shape(ours) == (2, 4 + 10)
    assert len({token for row in ours for token in row[4:]}) > 5      # not one token for ever


def test_the_operations_are_those_that_torch_counts():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    step = torch_gpt.training(TRAINING, 0.0, compiled=False)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:    # the fused ones are not counted
        step()
    assert counter.get_total_flops() == TRAINING.flops


@pytest.mark.parametrize("threads", [1, 2])
def test_the_floor_is_made_of_honest_rates(monkeypatch, threads):
    """A rate that counts an operation twice, or too few seconds, is above what the products take by themselves."""
    monkeypatch.setattr(worker, "PRODUCTS", ((64, 48, 32), (8, 8, 8)))
    clock = itertools.count()
    monkeypatch.setattr(worker.time, "perf_counter", lambda: next(clock))       # each product takes a second
    assert worker.products(threads)() == 2 * 64 * 48 * 32 * threads
    assert worker.reading(GENERATION, threads)() == 1


def test_weights_are_read_once_for_a_token(monkeypatch):
    sizes = []
    monkeypatch.setattr(worker, "timed", lambda matmul, matrix, vector: sizes.append(matrix.size))
    worker.reading(GENERATION, 1)()
    n_params = sum(p.numel() for p in torch_gpt.GPT(GENERATION.config).parameters())
    assert 0 <= n_params - 16 * 16 - sizes[0] < 16              # but for the positions and the last, broken row


def test_the_training_loop_evaluates_logs_saves_and_learns(tmp_path, capsys):
    tokens = np.tile(np.arange(31, dtype=np.uint16), 20)
    options = TrainOptions(batch_size=4, learning_rate=1e-2, min_lr=1e-3, warmup_iters=2, max_iters=50,
                           lr_decay_iters=50, eval_interval=20, eval_iters=2, log_interval=10)
    torch_train.train(GPTConfig(**TINY), options, {"train": tokens, "val": tokens}, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "step 0", "iter 0", "iter 10", "step 20", "iter 20", "iter 30", "step 40", "iter 40", "step 50"]
    losses = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("step")]
    assert losses[0] == pytest.approx(np.log(31), abs=0.1) and losses[-1] < 1.0
    assert (tmp_path / "ckpt.pt").stat().st_size > 3 * 4 * sum(     # the weights and both moments
        p.numel() for p in torch_gpt.GPT(GPTConfig(**TINY)).parameters())


def test_the_training_loop_follows_the_schedule(tmp_path, monkeypatch):
    rates = []
    monkeypatch.setattr(torch_train, "train_step", lambda forward, model, optimizer, idx, targets, grad_clip: (
        rates.append([group["lr"] for group in optimizer.param_groups]), forward(idx, targets))[1])
    options = TrainOptions(batch_size=1, warmup_iters=1, max_iters=3, lr_decay_iters=3, eval_iters=1, log_interval=1)
    tokens = np.zeros(100, np.uint16)
    torch_train.train(GPTConfig(**TINY), dataclasses.replace(options), {"train": tokens, "val": tokens}, tmp_path)
    assert rates == pytest.approx(np.array([[5e-4] * 2, [1e-3] * 2, [5.5e-4] * 2]))
