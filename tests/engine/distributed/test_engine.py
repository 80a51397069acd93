"""Training on ranks gives the bits of one process with as many shards. Here the ranks are threads: see world.py."""

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.data.token_files import Documents
from npgpt.engine.update import NotFiniteError
from npgpt.model.batch import check_batch
from tests.engine.distributed.world import content, ranks
from tests.helpers.models import SMALL, batch
from tests.torch_gpt import unit_scale

TOKENS = np.random.default_rng(0).integers(0, 11, 400).astype(np.uint16)
LENGTHS = np.random.default_rng(1).integers(2, 15, 20)
DOCUMENTS = Documents(TOKENS[:LENGTHS.sum()], np.cumsum(LENGTHS) - LENGTHS)     # ranks have unequally many targets
FIVE = {        # fields of the model, options of the training, what it reads
    "dropout": ({"dropout": 0.2}, {}, TOKENS),
    "untied float32": ({"tie_word_embeddings": False, "bias": False, "embd_pdrop": 0.1, "attn_pdrop": 0.3},
                       {"dtype": "float32", "sampling": "sequential", "kernels": "numpy"}, TOKENS),
    "documents": ({"lm_head_bias": True, "embedding_layer_norm": True, "dropout": 0.1},
                  {"decay": "all", "kernels": "numpy"}, DOCUMENTS),
    "no clipping float32": ({"scale_attn_weights": False, "final_layer_norm": False, "n_inner": 7, "mlp_pdrop": 0.4},
                            {"dtype": "float32", "grad_clip": 0.0, "gradient_accumulation_steps": 1}, TOKENS),
    "lora": ({"lora_rank": 2, "dropout": 0.1, "initializer_range": 0.3}, {}, TOKENS)}
EACH_OF_FIVE = pytest.mark.parametrize(("fields", "options", "tokens"), FIVE.values(), ids=FIVE.keys())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """A shard for each thread; several slices for each rank, and several rounds of an exchange."""
    monkeypatch.setattr("npgpt.engine.cpu.number_of_shards", lambda config, B, T, threads: min(B, threads))
    for module in ("update", "distributed.engine"):
        monkeypatch.setattr(f"npgpt.engine.{module}.SLICE", 101)
    monkeypatch.setattr("npgpt.engine.distributed.engine.ROUND", 700)
    monkeypatch.setattr("npgpt.engine.distributed.engine.SENT", 90)


def trainer_of(model, out_dir, tokens=TOKENS, **options):
    options = TrainOptions(**{
        "batch_size": 7, "gradient_accumulation_steps": 2, "max_iters": 5, "eval_interval": 2, "eval_iters": 2,
        "log_interval": 1, "warmup_iters": 2, "lr_decay_iters": 20, "learning_rate": 0.05, "grad_clip": 0.01,
        "weight_decay": 0.3, "dtype": "float64", **options})
    return Trainer(model, tokens, DOCUMENTS if tokens is DOCUMENTS else TOKENS[:60], options, out_dir)


def result_of(trainer):
    """Train, and return the files and the records of the run."""
    assert trainer.run()
    return content(trainer.out_dir)


def train_alone(out_dir, fields, n, tokens=TOKENS, kernels="auto", **options):
    model = GPT(GPTConfig(**SMALL | fields), dtype=options.get("dtype", "float64"), threads=n, kernels=kernels)
    return result_of(trainer_of(model, out_dir, tokens, **options))


def train_on_ranks(out_dir, fields, n, tokens=TOKENS, kernels="auto", **options):
    with ranks(n, GPTConfig(**SMALL | fields), options.get("dtype", "float64"), kernels=kernels) as model:
        result = result_of(trainer_of(model, out_dir, tokens, **options))
    for engine in model.engine.world.engines:
        assert engine.params.flat.tobytes() == model.params.flat.tobytes(), "a rank has other parameters"
    return result


@pytest.mark.parametrize("n", [2, 3, 4])
@EACH_OF_FIVE
def test_ranks_have_the_bits_of_shards(tmp_path, n, fields, options, tokens):
    """Losses, norms, evaluations and all files; the batch of 7 is not even for any n."""
    expected = train_alone(tmp_path / "shards", fields, n, tokens, **options)
    assert train_on_ranks(tmp_path / "ranks", fields, n, tokens, **options) == expected
    norms = [record["grad_norm"] for record in expected[1] if "grad_norm" in record]
    assert len(set(norms)) == 5 and min(norms) > 0.01        # if there is a clip, it works in each step


@pytest.mark.parametrize(("n", "rows"), [(2, 1), (3, 2), (4, 2), (4, 3), (4, 4)])
def test_fewer_rows_than_ranks(tmp_path, n, rows):
    fields, options = {"dropout": 0.2}, {"batch_size": rows, "dtype": "float32"}
    expected = train_alone(tmp_path / "shards", fields, n, **options)
    assert train_on_ranks(tmp_path / "ranks", fields, n, **options) == expected


def step(model, optimizer, rows=5, seed=3):
    """Take a step on a random batch; some targets do not count. Returns the loss and the norm."""
    idx, targets = batch(model.config, seed, rows)
    rng = model.engine.dropout_rng(seed, 0, 0)
    loss, grads = model.engine.accumulated([check_batch(model.config, idx, targets)], [rng], int((targets != -1).sum()))
    return loss, optimizer.step(grads, 0.5)


def test_runs_move_between_two_three_and_one_rank(tmp_path):
    """Two ranks save, three continue, then one process; compared with two, three threads and one."""
    fields, config = {"dropout": 0.2, "lm_head_bias": True}, GPTConfig(**SMALL, dropout=0.2, lm_head_bias=True)
    results = {"shards": [], "ranks": []}
    for n, max_iters in ((2, 4), (3, 9), (1, 12)):
        for name, found in results.items():
            alone = name == "shards" or n == 1
            options = {"max_iters": max_iters, "eval_interval": 4}
            if max_iters == 4:
                found.append((train_alone if alone else train_on_ranks)(tmp_path / name, fields, n, **options))
                continue
            with ranks(1 if alone else n, config) as model:
                if alone:
                    model = GPT(config, None, "float64", threads=n)
                else:
                    model.params.flat[...] = np.nan
                trainer = trainer_of(model, tmp_path / name, **options)
                trainer.restore(read_checkpoint(find_checkpoint(tmp_path / name)))
                found.append(result_of(trainer))
    assert results["shards"] == results["ranks"]
    assert results["ranks"][0][0].keys() != results["ranks"][2][0].keys()


@pytest.mark.parametrize(("rank", "value"), [(0, np.nan), (1, np.inf), (2, np.nan)])
def test_a_norm_that_is_not_finite_changes_nothing_on_any_rank(rank, value):
    """The gradients of one rank's rows are not finite; the step after it is that of one process."""
    alone = GPT(GPTConfig(**SMALL), dtype="float64", threads=3)
    optimizers = [AdamW(alone.params, engine=alone.engine)]
    step(alone, optimizers[0])
    with ranks(3, GPTConfig(**SMALL)) as model:
        optimizers.append(AdamW(model.params, engine=model.engine))
        step(model, optimizers[1])
        engine = model.engine.world.engines[rank].engine

        def spoilt(*args):
            loss, grads = type(engine).accumulated(engine, *args)
            grads["h.1.ln_2.weight"][3] = value
            return loss, grads

        engine.accumulated = spoilt
        before = [state_of(each) for each in model.engine.world.engines]
        with pytest.raises(NotFiniteError, match=f"norm is {value}"):
            step(model, optimizers[1])
        assert [state_of(each) for each in model.engine.world.engines] == before and optimizers[1].t == 1
        del engine.accumulated
        assert step(alone, optimizers[0], seed=4) == step(model, optimizers[1], seed=4)
        assert alone.params.flat.tobytes() == model.params.flat.tobytes()


def state_of(engine):
    return [array.tobytes() for array in (engine.params.flat, engine.m.chunk, engine.v.chunk)]


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize(("n", "threads"), [(2, 2), (3, 2), (2, 3)])
def test_ranks_with_threads_agree_with_one_process(n, threads, kernels):
    """Up to rounding, because sums have another order; also with the reference lines."""
    config = GPTConfig(**SMALL)
    alone = GPT(config, dtype="float64", threads=2, kernels="reference")
    unit_scale(alone.params)
    optimizer = AdamW(alone.params, engine=alone.engine)
    with ranks(n, config, threads=threads, kernels=kernels) as model:
        model.params.flat[...] = alone.params.flat
        assert model.engine.threads == n * threads and model.engine.ranks == (n, n)
        chunks = [engine.m.chunk.size for engine in model.engine.world.engines]
        assert sum(chunks) == model.params.size > max(chunks)
        on_ranks = AdamW(model.params, engine=model.engine)
        for seed in range(4):
            assert step(model, on_ranks, 7, seed) == pytest.approx(step(alone, optimizer, 7, seed), rel=1e-10)
        for name, values in alone.params.items():
            np.testing.assert_allclose(model.params[name], values, rtol=1e-7, atol=1e-9, err_msg=name)
            np.testing.assert_allclose(on_ranks.m[name].get(), optimizer.m[name], rtol=1e-7, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_whose_targets_are_all_ignored(rank):
    """In one micro-batch of two, and in both."""
    alone = GPT(GPTConfig(**SMALL, dropout=0.2), dtype="float64", threads=3)
    with ranks(3, alone.config) as model:
        pairs = [(alone, AdamW(alone.params, engine=alone.engine)), (model, AdamW(model.params, engine=model.engine))]
        for hidden in ([0], [0, 1], [1]):
            batches = [batch(alone.config, seed, 6) for seed in range(2)]
            for i in hidden:
                batches[i][1][2 * rank:2 * rank + 2] = -1
            count = int(sum((targets != -1).sum() for _, targets in batches))
            results = []
            for each, optimizer in pairs:
                rngs = [each.engine.dropout_rng(1, optimizer.t, i) for i in range(2)]
                loss, grads = each.engine.accumulated(batches, rngs, count)
                results.append((loss, optimizer.step(grads, 0.1)))
            assert results[0] == results[1]
            assert alone.params.flat.tobytes() == model.params.flat.tobytes()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_evaluation_is_divided(n):
    """With every kind of mask, ignored rows, and fewer rows than ranks."""
    alone = GPT(GPTConfig(**SMALL, causal=False), dtype="float64", threads=n)
    masks = [None, np.random.default_rng(2).standard_normal((6, 6)),
             np.random.default_rng(3).standard_normal((5, 1, 6, 6)),
             np.random.default_rng(4).standard_normal((5, alone.config.n_head, 6, 6))]
    with ranks(n, alone.config) as model:
        for mask in masks:
            idx, targets = batch(alone.config, rows=5)
            targets[-2:] = -1
            assert model.evaluate(idx, targets, mask) == alone.evaluate(idx, targets, mask)
        for rows in (1, 3):
            idx, targets = (each[:rows] for each in batch(alone.config))
            assert model.evaluate(idx, targets) == alone.evaluate(idx, targets)
