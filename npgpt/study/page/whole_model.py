"""A whole model on a text: the tokens' losses and gradients, attention, and the logit lens."""

import base64
import functools
import math

import numpy as np

from npgpt.errors import UserError, printable
from npgpt.layers import IGNORE_INDEX
from npgpt.model.losses import log_probs
from npgpt.study.page.steps import short
from npgpt.study.page.walk import walk_stops

MOST_TOKENS = 64  # of a text: attention maps grow with the square
LIKELIEST = 5  # next tokens
# multiplications and additions for the tokens' gradients: a few seconds on two cores
MOST_WORK = 2e11


def study_model(model, tokenizer, prompt, description):
    """Run a GPT with its tokenizer on a text of T tokens, and return the data of the page, a dict.

    losses: of the tokens from the second on
    pulls: for the first losses, the norms of their gradients with respect to the embedding of each
        earlier token
    walk: see `walk_stops`
    next: the likeliest tokens after the text
    maps: (layer, head, base64) of the attention weights
    lens: `lens_rows` before each block, and after the last

    Raises UserError if the text cannot be encoded or has too few or too many tokens, or if the loss
    is not finite.
    """
    from scipy.special import softmax

    ids = prompt_ids(model, tokenizer, prompt)
    idx = ids[None, :-1]
    targets = ids[None, 1:]
    logits, activations = model.run_with_cache(idx, targets)
    grads = model.backward()
    losses = -log_probs(logits, targets)[0]
    loss = float(losses.mean())
    if not all(np.isfinite(each).all() for each in [loss, *grads.values()]):
        raise UserError(
            f"the model's loss on this prompt is {loss:.4g}, and its gradient is not finite: "
            "choose another checkpoint"
        )
    blocks = range(model.config.n_layer)
    streams = [in_block(activations, i, "x") for i in blocks]
    streams.append("ln_f.x" if model.config.final_layer_norm else "head.x")
    maps = [
        (i, j, base64.b64encode(np.rint(255.0 * head).astype(np.uint8).tobytes()).decode())
        for i in blocks
        for j, head in enumerate(activations[in_block(activations, i, "att")][0])
    ]
    pulls = token_gradients(model, idx, targets)
    probs = softmax(model.forward(ids[None])[0][0, -1].astype(np.float64))
    return {
        "text": prompt,
        "description": description,
        "tokens": [shown(tokenizer, i) for i in ids],
        "loss": loss,
        "losses": short(losses),
        "pulls": pulls,
        "walk": walk_stops(model, functools.partial(shown, tokenizer), ids),
        "maps": maps,
        "next": [(shown(tokenizer, i), *short([probs[i]])) for i in np.argsort(-probs)[:LIKELIEST]],
        "lens": [
            lens_rows(tokenizer, each[0], targets[0])
            for each in model.logit_lens(activations, streams).values()
        ],
    }


def in_block(activations, i, name):
    """Return the name of an array of block i, `x` itself, or `att` of its attention.

    Raises UserError if a block has none.
    """
    names = [
        each for each in activations if each.startswith(f"h.{i}.") and each.endswith(f".{name}")
    ]
    if not names or name == "x" and names[0] != f"h.{i}.x":
        raise UserError(
            f"the page shows {name} of each block, and this block has none: it must call "
            "ops.attention_forward, and assign nothing else to its argument x"
        )
    return names[0]


def prompt_ids(model, tokenizer, prompt):
    """Return the tokens of a text, int64 (T,). Raises UserError for too few or too many."""
    ids = tokenizer.encode(prompt, special=True)
    most = min(MOST_TOKENS, model.config.block_size)
    if 2 <= len(ids) <= most:
        return ids
    use = (
        f"at most {most} (the page shows {MOST_TOKENS}, the model reads {model.config.block_size})"
    )
    if len(ids) < 2:
        use = "at least two, one to read and one to predict"
    raise UserError(f"the prompt has {len(ids)} tokens: use {use}")


def shown(tokenizer, token):
    """Return the text of a token, in which all characters are visible."""
    # a part of a character as \xc3, the first half of é
    text = tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace")
    return printable(text.replace(" ", "·").replace("\n", "⏎"))


def lens_rows(tokenizer, logits, targets):
    """Return the likeliest token at each position: its text, and two probabilities.

    These are its own and that of the correct token. logits (T, V): of the logit lens.
    """
    from scipy.special import softmax

    return [
        (shown(tokenizer, row.argmax()), *short([row.max(), row[target]]))
        for row, target in zip(softmax(logits.astype(np.float64), axis=-1), targets, strict=True)
    ]


def token_gradients(model, idx, targets):
    """Return `pulls` of `study_model`."""
    T = idx.shape[1]
    # 6 multiplications and additions for each parameter and token
    n = max(1, min(T, math.isqrt(int(MOST_WORK / (3 * model.params.size)))))
    pulls = []
    for i in range(n):
        seen = i + 1 if model.config.causal else T
        one = np.full((1, seen), IGNORE_INDEX)
        one[0, i] = targets[0, i]
        _, activations = model.run_with_cache(idx[:, :seen], one)
        model.backward()
        pulls.append(short(np.linalg.norm(activations.grads["embedding.x"][0], axis=-1)))
    return pulls
