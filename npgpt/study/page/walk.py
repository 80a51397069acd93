"""A walk from the loss of a text's last token back to its embedding: a stop for each layer."""

import contextlib
import re

import numpy as np

from npgpt import layers
from npgpt.layers import IGNORE_INDEX
from npgpt.model import transformer
from npgpt.study.gradcheck.source import read_source
from npgpt.study.page.origins import evaluated
from npgpt.study.page.steps import short, summary

SHOWN = 8  # entries of an array: the largest ones
STEP = 1e-3  # of a central difference
MOST_PARAMS = 2e8  # of a model that is copied in float64


def walk_stops(model, text_of, ids):
    """Return the stops, a list of dicts for the script; [] for a model that is too large.

    ids: tokens (T,), the last is the one whose loss is followed; text_of(id): its text.
    A stop is left out if the model has no such arrays, or calls them otherwise. Its keys:
    title, says
    line: see `line_of`
    data: as in `Steps`, of one line of the arrays
    labels: of their rows
    first: the row that is checked
    checked: its gradient by the backward, and by a central difference in float64
    drawing: of a branch, the names in it
    """
    if model.params.size > MOST_PARAMS:
        return []
    walk = Walk(model.copied(dtype="float64"), text_of, ids)
    names = "loss predicted head last_norm mlp_branch attention_branch softmax embedding".split()
    stops = []
    for name in names:
        # another block, or no last LayerNorm
        with contextlib.suppress(KeyError):
            stops.append(getattr(walk, name)())
    return stops


class Walk:
    """A model on a text: its arrays, and the gradients of the loss of the last token alone."""

    def __init__(self, model, text_of, ids):
        self.model = model
        self.text_of = text_of
        self.idx, self.target = ids[None, :-1], int(ids[-1])
        self.targets = np.full(self.idx.shape, IGNORE_INDEX)
        self.targets[0, -1] = self.target
        logits, self.arrays = model.run_with_cache(self.idx, self.targets)
        self.params = model.backward()
        self.grads = self.arrays.grads
        self.channel = int(np.abs(self.grads["head.x"][0, -1]).argmax())  # is followed
        self.block = f"h.{model.config.n_layer - 1}."
        exps = np.exp(logits[0, -1] - logits[0, -1].max())
        self.probs = exps / exps.sum()
        likeliest = np.argsort(-self.probs)[:SHOWN].tolist()
        self.likeliest = likeliest if self.target in likeliest else [*likeliest[:-1], self.target]

    def slope(self, loss):
        """Return the slope of loss(step) at 0."""
        return (loss(STEP) - loss(-STEP)) / (2.0 * STEP)

    def checked(self, name, *place):
        """Return the gradient of an entry of an array of the forward, and its measured slope."""

        def loss(step):
            change = np.zeros(self.arrays[name].shape)
            change[place] = step
            return self.model.forward(self.idx, self.targets, add={name: change})[1]

        return self.grads[name][place], self.slope(loss)

    def loss(self):
        texts = [*map(self.text_of, self.likeliest)]
        at = self.likeliest.index(self.target)
        return stop(
            "The loss of one token",
            f"The model gave “{texts[at]}” a probability of "
            f"{100.0 * self.probs[self.target]:.2g}%. The loss is minus the logarithm of that.",
            line_of(layers.cross_entropy_forward, "losses"),
            f"loss = -np.log(probs[{at}, 0])",
            {"probs": self.probs[self.likeliest]},
            texts,
            0,
        )

    def predicted(self):
        true = np.equal(self.likeliest, self.target).astype(float)
        return stop(
            "Predicted minus true",
            "The gradient of a token's logit is its probability, less 1 "
            "for the right one: a step against the gradient raises it and lowers the others.",
            line_of(layers.cross_entropy_backward, "dlogits"),
            "dlogits = probs - true",
            {"probs": self.probs[self.likeliest], "true": true},
            map(self.text_of, self.likeliest),
            self.likeliest.index(self.target),
            self.checked("head.logits", 0, -1, self.target),
        )

    def head(self):
        dlogits = self.grads["head.logits"][0, -1]
        tree = self.model.params.tree
        weight = tree.get("lm_head", tree["wte"])["weight"][:, self.channel]
        terms = dlogits * weight
        tokens = np.argsort(-np.abs(terms))[:SHOWN].tolist()
        return stop(
            "Through the head, all tokens add up",
            "A logit is the product of x and a token's "
            f"vector, so a channel of x, here number {self.channel}, gets a sum over all tokens: "
            f"the {len(tokens)} largest and rest, the sum of {len(terms) - len(tokens)} more.",
            line_of(layers.head_backward, "drows"),
            "drows = (dlogit_rows * weight).sum() + rest",
            {
                "dlogit_rows": dlogits[tokens],
                "weight": weight[tokens],
                "rest": terms.sum() - terms[tokens].sum(),
            },
            map(self.text_of, tokens),
            0,
            self.checked("head.x", 0, -1, self.channel),
        )

    def last_norm(self):
        xhat, rstd = self.arrays["ln_f.xhat"][0, -1], self.arrays["ln_f.rstd"][0, -1, 0]
        dxhat = self.grads["ln_f.xhat"][0, -1]
        channels, at = largest(self.grads["ln_f.x"][0, -1], self.channel)
        return stop(
            "The last LayerNorm takes two parts away",
            "A shift or a stretch of x changes no "
            "output, so the gradient loses its mean and its part along xhat.",
            line_of(layers.layernorm_backward, "dx"),
            "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)",
            {
                "rstd": rstd,
                "dxhat": dxhat[channels],
                "mean_dxhat": dxhat.mean(),
                "xhat": xhat[channels],
                "mean_dxhat_xhat": (dxhat * xhat).mean(),
            },
            channels,
            at,
            self.checked("ln_f.x", 0, -1, self.channel),
        )

    def branch(self, title, says, v, out, norm, layer):
        """Return a sum of the residual stream, out = v + layer(norm(v)), where v is used twice."""
        along, through = (self.grads[self.block + name][0, -1] for name in (out, f"{norm}.x"))
        channels, at = largest(through, self.channel)
        code = f"d{v} = d{out} + d{v}_normed"
        return stop(
            title,
            says,
            line_of(transformer.block_backward, f"d{v}"),
            code,
            {f"d{out}": along[channels], f"d{v}_normed": through[channels]},
            channels,
            at,
            self.checked(self.block + v, 0, -1, self.channel),
        ) | {"drawing": {"v": v, "out": out, "norm": norm, "layer": layer}}

    def mlp_branch(self):
        return self.branch(
            "Used twice, so its gradient is a sum",
            "x_mid goes along the residual stream and into "
            "the MLP. dx_out goes back both ways, and what comes back is added up.",
            "x_mid",
            "x_out",
            "ln_2",
            "mlp",
        )

    def attention_branch(self):
        return self.branch(
            "The same once more, around attention",
            "Along the stream the gradient comes back as it is, and the branch adds its own.",
            "x",
            "x_mid",
            "ln_1",
            "attention",
        )

    def softmax(self):
        name = f"{self.block}attn."
        att = self.arrays[f"{name}att"][0, :, -1]  # (H, T)
        datt, dmasked = (self.grads[name + each][0, :, -1] for each in ("att", "masked"))
        head = int(np.abs(dmasked).max(axis=-1).argmax())
        keys, at = largest(dmasked[head], np.abs(dmasked[head]).argmax())
        return stop(
            "Through attention's softmax",
            f"In head {head} the last position reads with weights "
            "att. A score counts as far as its datt differs from dot, their weighted mean.",
            line_of(layers.attention_backward, "dmasked"),
            "dmasked = att * (datt - dot)",
            {"att": att[head, keys], "datt": datt[head, keys], "dot": (datt * att)[head].sum()},
            map(self.text_at, keys),
            at,
            self.checked(f"{name}masked", 0, head, -1, keys[at]),
        )

    def embedding(self):
        dtoken = self.grads["embedding.token"][0]  # (T, C)
        tokens, counts = np.unique(self.idx[0], return_counts=True)
        token = int(tokens[counts.argmax()])
        places = np.flatnonzero(self.idx[0] == token)
        channel = int(np.abs(dtoken[places].sum(axis=0)).argmax())
        weight = self.model.params.tree["wte"]["weight"]
        total = self.params["wte.weight"][token, channel]

        def loss(step):
            weight[token, channel] += step
            value = self.model.forward(self.idx, self.targets)[1]
            weight[token, channel] -= step
            return value

        return stop(
            "To the row of a token",
            f"“{self.text_of(token)}” was read at {len(places)} of "
            f"{self.idx.size} positions: its row of wte gets the sum of their gradients, here in "
            f"channel {channel}. A tied head reads the same row, and adds its own.",
            line_of(layers.embedding_backward, "np.add.at"),
            "dwte = dtoken.sum() + head",
            {"dtoken": dtoken[places, channel], "head": total - dtoken[places, channel].sum()},
            map(self.text_at, places),
            0,
            (total, self.slope(loss)),
        )

    def text_at(self, place):
        return f"{self.text_of(self.idx[0, place])} ({place})"


def largest(values, one):
    """Return the numbers of one entry and the largest others, in order; and where the one is."""
    order = [i for i in np.argsort(-np.abs(values)).tolist() if i != one]
    found = sorted([int(one), *order[: SHOWN - 1]])
    return found, found.index(one)


def stop(title, says, line, code, arrays, labels, first, checked=None):
    """Return a stop, as `walk_stops` does. code: "dv = …"; checked: claimed, measured."""
    made, expression = code.split(" = ")
    arrays = {name: np.reshape(each, (-1, 1)[: 2 * np.ndim(each)]) for name, each in arrays.items()}
    value, where = evaluated(expression, arrays)
    parts = re.split(rf"\b({'|'.join([made, *arrays])})\b(?!\()", code)
    parts = [[each, i == 1] if i % 2 else each for i, each in enumerate(parts)]
    at = {name: i for i, name in enumerate(arrays, 1)}
    step = {"line": made, "arrays": [[made, 0]], "from": {made: where}, "at": at}
    return {
        "title": title,
        "says": says,
        "line": line,
        "labels": [*labels],
        "first": first,
        "made": made,
        "checked": checked and short(checked),
        "data": {
            "steps": [step],
            "arrays": [*map(summary, (value, *arrays.values()))],
            "parts": {made: parts},
        },
    }


def line_of(function, start):
    """Return the first line that assigns a name, or calls it: {text, file, number, address}."""
    source = read_source(function)
    found = next(
        each for each in source.statements if each.text.startswith((f"{start} = ", f"{start}("))
    )
    name, _, side = function.__name__.rpartition("_")
    return {
        "text": source.lines[found.first - source.first].split("  #")[0].strip(),
        "file": f"{function.__module__.rpartition('.')[2]}.py",
        "number": found.first,
        "address": f"{name}:{side[0]}{found.first}",
    }
