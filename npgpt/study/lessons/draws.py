"""The random cases for judging a backward, drawn anew for each check; and smaller ones, to show a mistake.

A fixed list of cases would accept a solution that is right only for some sizes, layers, rates or switches.
"""

import dataclasses
import itertools
import random

from npgpt.study.lessons.setting import PLAIN, Setting, Sizes

# Switches of lessons -> the case in words if it is off.
OFF = {"bias": "without biases", "dropout": "without dropout", "mask": "without a mask", "causal": "with another mask",
       "tanh": "with the exact GELU", "ln_e": "without ln_e", "ln_f": "without ln_f", "tied": "with an untied head",
       "head_bias": "without a bias of the head", "ignored": "if every target counts",
       "repeated": "if no token repeats"}
DEALT = 4           # every combination of this many first switches occurs
RANGES = {"B": (2, 5), "T": (2, 7), "H": (2, 4), "D": (2, 6), "V": (3, 19), "S": (2, 9), "F": (2, 17), "P": (2, 12)}
ONES = ["B", "T", "SPT", "H", "DF", "HD", "V"]      # the sizes that are 1 in one case, which has every switch on
CASES = 1 + 2**DEALT + len(ONES)                    # in addition to the plain one
OWN = 12                                            # the same for a pair of one's own
OF_RANGE = {"p": (0.05, 0.8), "eps": (1e-5, 0.5), "scale": (0.2, 2.0), "step": (0.5e-5, 1.5e-5), "spread": (0.3, 2.0)}


def draw(lesson, seed):
    """Draw the `Setting`s of a check of a lesson: the plain one, the same with other numbers, random ones.

    In one of these a size is 1, in some a switch is on, in others it is off.
    """
    rng = random.Random(f"{lesson.name} {seed}")
    if lesson.is_own:
        others = [Setting(seed=rng.randrange(1, 1 << 30)) for _ in range(OWN)]
        return [PLAIN, *(each for each in others if runs(lesson.at(each)))]
    switches = lesson.switches
    combinations = [*itertools.product([True, False], repeat=min(len(switches), DEALT))]
    others = [rng.sample([True, False] * 2**(DEALT - 1), 2**DEALT) for _ in switches[DEALT:]]
    layers = [1, 2, 3, 4]
    settings = [PLAIN, dataclasses.replace(PLAIN, seed=rng.randrange(1, 1 << 30))]
    for i, ones in enumerate([""] * 2**DEALT + ONES):
        if i % len(combinations) == 0:
            rng.shuffle(combinations)
        if i % len(layers) == 0:
            rng.shuffle(layers)
        on = [True] * len(switches) if ones else [*combinations[i % len(combinations)], *(each[i] for each in others)]
        off = {switch for switch, is_on in zip(switches, on, strict=True) if not is_on}
        numbers = {field: rng.uniform(*limits) for field, limits in OF_RANGE.items()}
        sizes = draw_sizes(rng, ones, least_tokens=33 if "repeated" in off else 0)
        settings.append(Setting(sizes, n_layer=layers[i % len(layers)], layer=rng.randrange(4), off=frozenset(off),
                                seed=rng.randrange(1, 1 << 30), **numbers))
    return settings


def runs(lesson):
    """Return whether one's own forward accepts the arrays: it may need fixed sizes."""
    try:
        return bool(lesson.run_forward(lesson.inputs))
    except Exception:
        return False


def draw_sizes(rng, ones="", least_tokens=0):
    """Draw `Sizes` that `fit`. ones: letters of those that are 1; least_tokens: added to the vocabulary size."""
    while True:
        drawn = {name: 1 if name in ones else rng.randint(*limits) for name, limits in RANGES.items()}
        sizes = Sizes(C=drawn["H"] * drawn.pop("D"), **drawn)
        sizes = sizes._replace(V=sizes.V + least_tokens)
        if fit(sizes):
            return sizes


def fit(sizes):
    """Whether all sizes above 1 differ, also from D, 3 C and B T, and T is not too large."""
    B, T, C, H, V, S, F, P = sizes
    every = [B, T, H, C // H, V, S, F, P, 3 * C, *[C] * (1 < H < C), *[B * T] * (B > 1 < T)]
    every = [size for size in every if size > 1]
    return len({*every}) == len(every) and P >= T <= S


def smallest(lesson, setting, fails):
    """Return a simpler setting that also fails, by a greedy search over its parts. fails: setting -> bool.

    Sizes stay above 1, and differ, if it fails then too: at 1, sums and roots of sizes tell nothing.
    """
    def attempt(**fields):
        nonlocal setting
        simpler = dataclasses.replace(setting, **fields)
        if simpler != setting and fails(simpler):
            setting = simpler
            return True
        return False

    def resized(sizes):
        return fit(sizes) and (setting.has("repeated") or sizes.V >= sizes.B * sizes.T) and attempt(sizes=sizes)

    for field in ("p", "eps", "scale", "step", "spread", "layer", "n_layer"):
        attempt(**{field: getattr(PLAIN, field)})
    for switch in lesson.switches:
        attempt(off=setting.off - {switch})
    if not lesson.is_own and not resized(PLAIN.sizes):
        for size in "SPBTSPHDVF":       # S and P before T, which they bound, and after it
            now = getattr(setting.sizes, size, setting.sizes.C // setting.sizes.H)
            any(resized(with_size(setting.sizes, size, n)) for n in range(2, now if now > 1 else 8))
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
    words = [f"{each} {array.shape}" for i, (each, array) in enumerate(lesson.inputs.items())
             if i == 0 or 1 in array.shape]
    if lesson.key == "gpt":
        sizes = setting.sizes._asdict() | {"n_layer": setting.n_layer}
        words = [f"{each} = {size}" for each, size in sizes.items()
                 if each in ("B", "T", "C", "n_layer") or size == 1 and each != "S"]
    words[0] = f"with {words[0]}"
    words += [OFF[switch] for switch in lesson.switches if not setting.has(switch)
              and not (switch == "causal" and lesson.key != "gpt" and not setting.has("mask"))]
    return ", ".join(words)
