"""The random settings in which a backward is judged, new ones for each check; and simpler ones, to show a mistake.

A fixed list of cases would accept a solution that is right only for some sizes, layers, rates or switches.
"""

import dataclasses
import itertools
import random

from npgpt.study.lessons.setting import PLAIN, Setting, Sizes

# Switches of lessons -> the case in words if it is off.
OFF = {"bias": "without biases", "dropout": "without dropout", "mask": "without a mask", "causal": "with another mask",
       "tanh": "with the exact GELU", "ignored": "if every target counts",
       "repeated": "if no token repeats"}
DEALT = 4           # every combination of this many first switches occurs
RANGES = {"B": (2, 5), "T": (2, 7), "H": (2, 4), "D": (2, 6), "V": (3, 19), "S": (2, 9), "F": (2, 17), "P": (2, 12)}
ONES = ["B", "T", "SPT", "H", "DF", "HD", "V"]      # the sizes that are 1 in one case, which has every switch on
CASES = 1 + 2**DEALT + len(ONES)                    # in addition to the plain one
OWN = 12                                            # the same for a pair of one's own
OF_RANGE = {"p": (0.05, 0.8), "eps": (1e-5, 0.5), "scale": (0.2, 2.0), "step": (0.5e-5, 1.5e-5), "spread": (0.3, 2.0)}


def random_settings(lesson, seed):
    """Return the `Setting`s of a check: the plain one, the same with other numbers, and random ones."""
    rng = random.Random(f"{lesson.name} {seed}")
    if lesson.is_own:
        others = [Setting(seed=rng.randrange(1, 1 << 30)) for _ in range(OWN)]
        return [PLAIN, *(each for each in others if runs(lesson.at(each)))]
    settings = [PLAIN, dataclasses.replace(PLAIN, seed=rng.randrange(1, 1 << 30))]
    first, rest = lesson.switches[:DEALT], lesson.switches[DEALT:]
    dealt = [*itertools.product([True, False], repeat=len(first))]
    dealt = rng.sample(dealt * (2**DEALT // len(dealt)), 2**DEALT)
    for i, ones in enumerate([""] * 2**DEALT + ONES):
        off = set()
        if not ones:
            off = {switch for switch, is_on in zip(first, dealt[i], strict=True) if not is_on}
            off |= {switch for switch in rest if rng.random() < 0.5}
        numbers = {field: rng.uniform(*limits) for field, limits in OF_RANGE.items()}
        sizes = random_sizes(rng, ones, more_tokens=33 if "repeated" in off else 0)
        settings.append(Setting(sizes, n_layer=1 + i % 4, layer=rng.randrange(4), off=frozenset(off),
                                seed=rng.randrange(1, 1 << 30), **numbers))
    return settings


def runs(lesson):
    """Return whether a user's forward accepts the arrays: it may need fixed sizes."""
    try:
        return bool(lesson.run_forward(lesson.inputs))
    except Exception:
        return False


def random_sizes(rng, ones="", more_tokens=0):
    """Return random `Sizes` that `fit`. ones: letters of size 1; more_tokens: added to the vocabulary size."""
    while True:
        found = {name: 1 if name in ones else rng.randint(*limits) for name, limits in RANGES.items()}
        sizes = Sizes(C=found["H"] * found.pop("D"), **found)
        sizes = sizes._replace(V=sizes.V + more_tokens)
        if fit(sizes):
            return sizes


def fit(sizes):
    """Return whether all sizes above 1 differ, also from D, 3 C and B T, and T is not too large."""
    B, T, C, H, V, S, F, P = sizes
    every = [B, T, H, C // H, V, S, F, P, 3 * C, *[C] * (1 < H < C), *[B * T] * (B > 1 < T)]
    every = [size for size in every if size > 1]
    return len({*every}) == len(every) and P >= T <= S


def simplest(lesson, setting, fails):
    """Return a simpler setting that also fails: the plain value of each part is tried. fails: setting -> bool."""
    def attempt(**fields):
        nonlocal setting
        simpler = dataclasses.replace(setting, **fields)
        if simpler != setting and fails(simpler):
            setting = simpler

    for field in ("p", "eps", "scale", "step", "spread", "layer", "n_layer"):
        attempt(**{field: getattr(PLAIN, field)})
    for switch in lesson.switches:
        attempt(off=setting.off - {switch})
    if setting.has("repeated"):         # different tokens need a larger vocabulary
        attempt(sizes=PLAIN.sizes)
    return setting


def in_words(lesson, setting):
    """Describe a lesson's case, "with n_layer = 3, without ln_e"; "" for the plain one."""
    if setting == PLAIN:
        return ""
    words = [f"{each} {array.shape}" for i, (each, array) in enumerate(lesson.inputs.items())
             if i == 0 or 1 in array.shape]
    if lesson.key == "gpt":
        sizes = setting.sizes._asdict() | {"n_layer": setting.n_layer}
        words = [f"{each} = {size}" for each, size in sizes.items()
                 if each in ("B", "T", "C", "n_layer") or size == 1 and each != "S"]
    words[0] = f"with {words[0]}"
    words += [OFF[switch] for switch in lesson.switches if not setting.has(switch)
              and not (switch == "causal" and not setting.has("mask"))]
    return ", ".join(words)
