"""The README's callbacks: a CSV file, and TensorBoard, of which a stand-in has the one method that they call."""

import csv

import numpy as np

from npgpt import GPT, GPTConfig, Trainer, TrainOptions

TOKENS = np.arange(300) % 11
OPTIONS = TrainOptions(batch_size=2, max_iters=4, log_interval=2, warmup_iters=0, lr_decay_iters=0, eval_iters=1)


def model():
    return GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=1, n_embd=8), threads=1)


def test_a_csv_file(tmp_path):
    with open(tmp_path / "log.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "loss", "grad_norm"])

        def log(trainer, record):
            rows.writerow([record["step"], float(record["loss"]), float(record["grad_norm"])])

        assert Trainer(model(), TOKENS, None, OPTIONS, on_step=log).run(progress=False)
    with open(tmp_path / "log.csv", newline="") as file:
        first, *rows = csv.DictReader(file)
    assert [first["step"], *(row["step"] for row in rows)] == ["1", "2", "3", "4"]
    assert 2 < float(first["loss"]) < 3 and float(first["grad_norm"]) > 0


def test_tensorboard():
    scalars = []

    class SummaryWriter:            # of torch.utils.tensorboard
        def add_scalar(self, tag, value, step):
            scalars.append((tag, value, step))

    board = SummaryWriter()

    def log(trainer, record):
        if record["step"] % trainer.options.log_interval == 0:
            for name, value in record.items():
                board.add_scalar(name, float(value), record["step"])

    assert Trainer(model(), TOKENS, None, OPTIONS, on_step=log).run(progress=False)
    tags, _, steps = map(set, zip(*scalars, strict=True))
    assert steps == {2, 4} and {"loss", "lr", "update_norm.h.0"} <= tags
