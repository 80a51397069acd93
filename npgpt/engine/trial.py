"""Try a user's block, and edited lines of the lesson, on small random arrays: what would train
wrongly is refused.
"""

import copy
import dataclasses
import functools
import itertools
from types import FunctionType, SimpleNamespace

import numpy as np

from npgpt import layers
from npgpt.errors import UserError
from npgpt.layers.loss import IGNORE_INDEX
from npgpt.model import transformer
from npgpt.model.block import GPT2, places
from npgpt.model.masks import BlockMasks, draw_masks
from npgpt.model.parameters import Parameters
from npgpt.model.tree import flatten, nest
from npgpt.model.variants import model_backward, model_forward

ALONE = slice(0, 1), slice(1, 2)  # each text of a trial


def random_arguments(config, dtype=np.float32, rng=None, B=2, T=3):
    """Return x and dx_out (B, T, C), the parameters p of one block, and a mask.

    The numbers are random, of unit scale. x, dx_out and p are read-only: they are reused later.
    rng: by default always the same; T: at most block_size.
    """
    rng, T = rng or np.random.default_rng(0), min(T, config.block_size)
    x, dx_out = rng.standard_normal((2, B, T, config.n_embd), dtype)
    p = {}
    for name, (shape, _) in config.block.parameters_of(config).items():
        scale = dtype(shape[0] ** 0.5 if len(shape) > 1 else 1)
        p[name] = rng.standard_normal(shape, dtype) / scale
    for array in (x, dx_out, *p.values()):
        array.flags.writeable = False
    return x, dx_out, nest(p), layers.causal_mask(None, x) if config.causal else None


def run_block(config, ops=layers, compiled=lambda function: function, texts=(slice(2),)):
    """Run all forwards, then all backwards, on `random_arguments`.

    compiled: compiles a function of x, dx_out and p.
    texts: slices, one for each call; by default one call with both texts.
    Returns a dict for each call: "x_out", "dx", "the gradient of …" -> array.
    """
    x, dx_out, p, mask = random_arguments(config)
    block = config.with_block().block

    def forwards_and_backwards(x, dx_out, p):
        masks = BlockMasks()
        ran = [block.forward(x[part], p, config, 0, mask, masks, ops) for part in texts]
        results = []
        for part, (x_out, cache) in zip(texts, ran, strict=True):
            dx, dp = block.backward(dx_out[part], cache, ops)
            grads = {f"the gradient of {name}": each for name, each in flatten(dp).items()}
            results.append({"x_out": x_out, "dx": dx, **grads})
        return results

    with np.errstate(all="ignore"):
        return compiled(forwards_and_backwards)(x, dx_out, p)


def validate(config):
    """Raise UserError unless both functions run, and a call changes nothing that others returned.

    Gradients are added up in place: none may share memory with another or with a parameter.
    """
    (results,) = run_block(config)
    grads = {name: array for name, array in results.items() if name not in ("x_out", "dx")}
    for (name, one), (other, two) in itertools.product(grads.items(), repeat=2):
        if not one.flags.writeable or name != other and np.shares_memory(one, two):
            raise UserError(
                f"{config.block}: {name} must have memory of its own, because "
                "other gradients are added to it in place: return a copy"
            )
    (first,) = run_block(config, texts=ALONE[:1])
    before = copy.deepcopy(first)
    again, _ = run_block(config, texts=ALONE)
    if changed := differing(before, first) + differing(before, again):
        raise UserError(
            f"{config.block}: {changed[0]} differs after the block has been called for another "
            "text: return new arrays and a new cache each time, draw no random numbers"
        )


def check_trained(config, trained):
    """Raise UserError unless the backward returns the gradients of these parameters of a model."""
    (results,) = run_block(config)
    for name in trained:
        if name.startswith("h.") and f"the gradient of {name.split('.', 2)[2]}" not in results:
            raise config.block.lacks(name)


def small_gpt2(config):
    """Return the config of a small GPT-2 with the options of another one."""
    sizes = {"vocab_size": 5, "block_size": 4, "n_layer": 1, "n_head": 2, "n_embd": 8}
    others = {"n_inner": None, "block": GPT2, "bos_token_id": None, "eos_token_id": None}
    return dataclasses.replace(config, positions="learned", **sizes, **others)


def lesson_codes():
    """Return all functions of the lesson with their code, which differs after an edit."""
    functions = (vars(layers) | vars(transformer)).values()
    return tuple((each, each.__code__) for each in functions if isinstance(each, FunctionType))


def random_model(config):
    """Return the random parameters of a model, and tokens (2, 3), of which some are equal, also in
    both texts.
    """
    rng, params = np.random.default_rng(0), Parameters(config)
    params.flat[:] = 0.5 * rng.standard_normal(params.size)
    return params, np.array([[0, 1, 1], [0, 2, 1]])


def run_model(config, texts):
    """Run a model with its loss on slices of two texts; return a dict for each: "logits", "loss",
    name -> gradient.

    As in an engine that divides a batch, a loss counts by the share of its targets.
    """
    params, idx = random_model(config)
    targets = idx[:, ::-1].copy()
    targets[0, 0] = IGNORE_INDEX
    results = []
    for part in texts:
        share = (targets[part] != IGNORE_INDEX).sum() / (targets != IGNORE_INDEX).sum()
        masks = draw_masks(config, *idx[part].shape, params.dtype)
        logits, gpt = model_forward(idx[part], params.tree, config, masks, layers)
        result = {"logits": logits.copy()}
        loss, cross_entropy = layers.cross_entropy_forward(logits, targets[part])
        result["loss"] = np.asarray(loss * share)
        dlogits = layers.cross_entropy_backward(float(share), cross_entropy)
        results.append(result | params.flatten(model_backward(dlogits, gpt, layers)))
    return results


@functools.lru_cache(64)
def lesson_mixes_texts(config, codes):
    """Return whether GPT-2's results for a text depend on the other texts, as those of edited lines
    may: a loss that is summed, BatchNorm. codes: `lesson_codes`.
    """
    try:
        with np.errstate(all="ignore"):
            (whole,) = run_model(config, [slice(2)])
            alone = run_model(config, ALONE)
    except Exception:  # edited lines may need other sizes
        return True
    return differing(whole, joined(*alone, ["logits"])) != []


def joined(one, two, of_texts):
    """Return the results of two texts as those of a batch: sums, but for arrays of each text."""
    with np.errstate(all="ignore"):
        return {
            name: np.concatenate([one[name], two[name]])
            if name in of_texts
            else one[name] + two[name]
            for name in one
        }


def mixes_texts(config):
    """Return where the results for a text of a batch depend on the other texts, or ""."""
    if lesson_mixes_texts(small_gpt2(config), lesson_codes()):
        return "edited lines"
    if config.block == GPT2:
        return ""
    (whole,) = run_block(config)
    alone = joined(*run_block(config, texts=ALONE), ["x_out", "dx"])
    return str(config.block) if differing(whole, alone) else ""


def check_continuing(config, ends=(1, 2, 3)):
    """Raise UserError unless reading part by part, with cached keys, equals reading all at once.

    ends: the number of tokens after each part.
    """
    if config.block == GPT2:
        return
    x, _, p, mask = random_arguments(config)
    B, T, _ = x.shape
    kept, rows, begin = [], [], 0
    expected = []  # of each part: the shapes of the keys and values that attention gets

    def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
        kept.append((k, v))
        k, v = (np.concatenate(each, axis=2) for each in zip(*kept, strict=True))
        return layers.attention_forward(q, k, v, scale, mask)

    def forward(ops, begin, end, **where):
        at, seen = config.at(**where), mask[begin:end, :end]
        return at.block.forward(x[:, begin:end], p, config, 0, seen, BlockMasks(), ops)[0]

    ops = SimpleNamespace(**{**vars(layers), "attention_forward": attention_forward})
    where = places(x)
    with config.block.blamed(), np.errstate(all="ignore"):
        whole = forward(layers, 0, T, **where)
    when = (
        " for a token that continues a text, where tokens may see each other only in one call of "
        "ops.attention_forward"
    )
    with config.block.blamed(when), np.errstate(all="ignore"):
        for end in sorted({min(end, T) for end in ends}):
            positions = where["positions"].repeat(B, axis=0)[:, begin:end]
            distances = where["distances"][..., begin:end, :end]
            rows.append(forward(ops, begin, end, positions=positions, distances=distances))
            expected.append(2 * [(B, config.n_head, end - begin, config.head_size)])
            found = [[k.shape, v.shape] for k, v in kept]
            if found not in ([], expected):
                break
            begin = end
    if begin < T or abs(np.concatenate(rows, axis=1) - whole).max() > 1e-3 * abs(whole).max():
        raise UserError(
            f"{config.block} cannot continue texts: token by token it computes something else than "
            "at once, so it trains, but cannot generate; let tokens see each other only in one "
            "call of ops.attention_forward, with GPT-2's heads and the mask"
        )


def differing(results, others):
    """Return the names of the arrays of two dicts that differ by more than rounding."""
    finite = {name: array[np.isfinite(array)] for name, array in results.items()}
    scales = {name: abs(array).max(initial=0.0) for name, array in finite.items()}
    rounding = 1e-5 * max(scales.values())  # of a gradient that is 0, but for rounding
    near = {
        name: np.isclose(
            others[name], array, rtol=0.0, atol=1e-4 * scales[name] + rounding, equal_nan=True
        )
        for name, array in results.items()
    }
    return [name for name, each in near.items() if not each.all()]
