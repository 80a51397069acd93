"""The random cases for judging a backward, drawn anew for each check; and smaller ones, to show a mistake.

A fixed list of cases would accept a solution that is right only for some sizes, layers, rates or switches.
"""

import dataclasses
import itertools
import random

from npgpt.study.gradcheck.lessons import PLAIN, Setting, Sizes

CASES = 24          # random ones, in addition to the plain one
# Switches that change a line of a layer's backward or its arguments -> the case in words if it is off.
OFF = {"bias": "without biases", "dropout": "without dropout", "mask": "without a mask", "causal": "with another mask",
       "tanh": "with the exact GELU", "ln_e": "without ln_e", "ln_f": "without ln_f", "tied": "with an untied head",
       "head_bias": "without a bias of the head", "ignored": "if every target counts",
       "repeated": "if no token repeats"}
SWITCHES = {"linear": ["bias"], "layernorm": ["bias"], "cross_entropy": ["ignored"], "embedding": ["repeated"],
            "head": ["bias"], "dropout": ["dropout"], "attention": ["mask", "causal", "dropout"],
            "mlp": ["bias", "tanh"], "self_attention": ["bias", "mask", "causal", "dropout"],
            "block": ["bias", "mask", "dropout", "tanh"],
            "gpt": ["ln_e", "ln_f", "tied", "head_bias", "bias", "dropout", "causal", "tanh"]}
DEALT = 4           # every combination of this many first switches occurs
LEAST = {"B": 2, "T": 2, "V": 3, "S": 2, "F": 2, "P": 2}
MOST = {"B": 5, "T": 7, "V": 19, "S": 9, "F": 17, "P": 12}
OF_RANGE = {"p": (0.05, 0.8), "eps": (1e-5, 0.5), "scale": (0.2, 2.0), "step": (0.5e-5, 1.5e-5), "spread": (0.3, 2.0)}


def draw(name, seed, config=None):
    """Draw the `Setting`s of a check of the lesson `name`: the plain one, then `CASES` random ones.

    config: of a model, for one more case.
    """
    rng = random.Random(f"{name} {seed}")
    switches = SWITCHES.get(name, [])
    combinations = [*itertools.product([True, False], repeat=min(len(switches), DEALT))]
    layers = [1, 2, 3, 4]
    settings = [PLAIN]
    if config is not None:
        sizes = PLAIN.sizes._replace(C=3 * config.n_head, H=config.n_head)
        settings.append(Setting(sizes, config.n_layer, off=frozenset() if config.causal else frozenset({"mask"}),
                                eps=config.layer_norm_epsilon, seed=rng.randrange(1, 1 << 30), config=config))
    for i in range(CASES):
        if i % len(combinations) == 0:
            rng.shuffle(combinations)
        if i % len(layers) == 0:
            rng.shuffle(layers)
        on = combinations[i % len(combinations)]
        off = {switch for switch, is_on in itertools.zip_longest(switches, on) if not (
            rng.random() < 0.5 if is_on is None else is_on)}
        numbers = {field: rng.uniform(*limits) for field, limits in OF_RANGE.items()}
        sizes = draw_sizes(rng, least_tokens=33 if "repeated" in off else 0)
        settings.append(Setting(sizes, n_layer=layers[i % len(layers)], layer=rng.randrange(4), off=frozenset(off),
                                seed=rng.randrange(1, 1 << 30), **numbers))
    return settings


def draw_sizes(rng, least_tokens=0):
    """Draw `Sizes` that all differ, also from D, 3 C and B T. least_tokens: added to the vocabulary size."""
    while True:
        found = {name: rng.randint(LEAST[name], MOST[name]) for name in LEAST}
        H, D = rng.randint(2, 4), rng.randint(2, 6)
        found |= {"H": H, "C": H * D, "V": found["V"] + least_tokens}
        sizes = Sizes(**found)
        every = [*sizes, D, 3 * sizes.C, sizes.B * sizes.T]
        if len({*every}) == len(every) and sizes.P > sizes.T <= sizes.S:
            return sizes


def smallest(name, setting, fails):
    """Return a smaller setting that also fails, by a greedy search over its parts. fails: setting -> bool."""
    def attempt(**fields):
        nonlocal setting
        simpler = dataclasses.replace(setting, **fields)
        if simpler != setting and fails(simpler):
            setting = simpler
            return True
        return False

    for field in ("p", "eps", "scale", "step", "spread", "layer"):
        attempt(**{field: getattr(PLAIN, field)})
    for switch in SWITCHES.get(name, []):
        attempt(off=setting.off - {switch})
    any(attempt(n_layer=n) for n in range(1, setting.n_layer))
    for size in ("B", "T", "S", "H", "D", "V", "F", "P"):
        sizes = setting.sizes
        for n in range(1, getattr(sizes, size, sizes.C // sizes.H)):
            other = with_size(sizes, size, n)
            if other.P >= other.T <= other.S and (setting.has("repeated") or other.V >= other.B * other.T) \
                    and attempt(sizes=other):
                break
    return setting


def with_size(sizes, name, n):
    """Return the sizes with one of them replaced; H and D change C."""
    D = sizes.C // sizes.H
    if name in ("H", "D"):
        H, D = (n, D) if name == "H" else (sizes.H, n)
        return sizes._replace(H=H, C=H * D)
    return sizes._replace(**{name: n})


def in_words(lesson, setting):
    """Describe a lesson's case, "with n_layer = 3, without ln_e"; "" for the plain one."""
    if setting == PLAIN:
        return ""
    if setting.config is not None:
        return "with the model's own config"
    sizes, (first, array) = setting.sizes, next(iter(lesson.inputs.items()))
    words = [f"with {first} {array.shape}"]
    if lesson.name == "gpt":
        words = [f"with B = {sizes.B}, T = {sizes.T}, C = {sizes.C}, n_layer = {setting.n_layer}"]
    words += [OFF[switch] for switch in SWITCHES.get(lesson.name, []) if not setting.has(switch)
              and not (switch == "causal" and lesson.name != "gpt" and not setting.has("mask"))]
    return ", ".join(words)
