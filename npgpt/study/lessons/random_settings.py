"""The random settings in which a backward is judged, new ones for each check; and simpler ones, to
show a mistake.

A fixed list of cases would accept a solution that is right only for some sizes, layers, rates or
switches. Random ones have holes, too: sizes that are equal, or 1, large numbers, views and float32
are what real data have.
"""

import dataclasses
import itertools
import random

from npgpt.study.lessons.setting import IGNORED, PLAIN, Setting, Sizes

# Switches of lessons -> the case in words if it is off.
OFF = {
    "bias": "without biases",
    "dropout": "without dropout",
    "mask": "without a mask",
    "causal": "with another mask",
    "tanh": "with the exact GELU",
    "ignored": "if every target counts",
    "repeated": "if no token repeats",
}
DEALT = 4  # every combination of this many first switches occurs
RANGES = {
    "B": (2, 5),
    "T": (2, 7),
    "H": (2, 4),
    "D": (2, 6),
    "V": (3, 19),
    "S": (2, 9),
    "F": (2, 17),
    "P": (2, 12),
}
# the sizes that are 1 in two cases: with every switch on, and with every switch off
ONES = ["B", "T", "BT", "BSPT", "SPT", "H", "DF", "HD", "V"]
EQUAL = ["BT", "TS", "CT", "CV", "CF", "DH"]  # two sizes that are equal in a case
SQUARES = Sizes(4, 4, 4, 2, 4, 4, 4, 4), Sizes(2, 2, 4, 2, 4, 2, 4, 2)  # of many equal sizes
# More tokens than uint8 counts; more layers than GPT-2 has; a width that tiles divide; zeros.
# LONG: more positions than int8 counts.
RARE = [{"V": 700}, {"n_layer": 26}, {"C": 128, "H": 4}, {"zeros": "rows"}, {"zeros": "last"}]
LONG = {"B": 1, "H": 1, "T": 140, "P": 150, "S": 145, "V": 2}
OPTIONS = [
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True},
    {"qkv_bias": False},
    {"mlp_bias": False},
    {"attn_pdrop": 0.0},
    {"resid_pdrop": 0.0, "mlp_pdrop": 0.5},
    {"embd_pdrop": 0.0},
    {"mlp_pdrop": 0.0},
    {"attn_pdrop": 0.0, "resid_pdrop": 0.0},
]
OPTIONS_OFF = [
    {"qkv_bias": True},
    {"mlp_bias": True},
    *OPTIONS[:2],
    *[{}] * 5,
]  # with every switch off
UPSTREAM = 1.0, 1e-20, 1.0, 1e5
# Large numbers: scores around 50, spread ones, and in float32 ones with which exp may overflow; and
# small numbers.
LARGE = (
    {"offset": 6.0, "spread": 0.5},
    {"spread": 200.0, "scale": 2.5e-5},
    {"offset": 12.0, "spread": 0.5, "single": True},
    {"spread": 10.0, "scale": 0.01, "single": True},
    {"spread": 1.0, "single": True},
    {"spread": 1e-4, "eps": 1e-12},
)
MORE = 36  # tokens, if none repeats: B T is at most 35
OWN = 12  # the number of random cases of a user's pair
OF_RANGE = {
    "p": (0.05, 0.8),
    "eps": (1e-5, 0.5),
    "scale": (0.2, 2.0),
    "step": (0.5e-5, 1.5e-5),
    "spread": (0.3, 2.0),
}


def random_settings(lesson, seed):
    """Return the `Setting`s of a check: the plain one, the same with other numbers, and random
    ones.
    """
    rng = random.Random(f"{lesson.name} {seed}")
    if lesson.is_own:
        others = [Setting(seed=rng.randrange(1, 1 << 30)) for _ in range(OWN)]
        return [PLAIN, *(each for each in others if runs(lesson.at(each)))]
    off = frozenset({"causal"} & {*lesson.switches})
    settings = [
        PLAIN,
        dataclasses.replace(PLAIN, seed=rng.randrange(1, 1 << 30), ignored="any", off=off),
    ]

    def add(sizes, off=(), **fields):
        i = len(settings)
        numbers = {field: rng.uniform(*limits) for field, limits in OF_RANGE.items()}
        drawn = {
            "n_layer": 1 + i % 4,
            "layer": rng.randrange(4),
            "ignored": IGNORED[i % 4],
            "views": i % 2 == 0,
            "seed": rng.randrange(1, 1 << 30),
            "upstream": UPSTREAM[i % 4],
            "options": tuple(rng.choice(OPTIONS).items()),
        }
        settings.append(
            Setting(sizes, off=frozenset(off) & {*lesson.switches}, **numbers | drawn | fields)
        )

    first, rest = lesson.switches[:DEALT], lesson.switches[DEALT:]
    dealt = [*itertools.product([True, False], repeat=len(first))]
    dealt = rng.sample(dealt * (2**DEALT // len(dealt)), 2**DEALT)
    equals = [*EQUAL, *[""] * 10]
    rare = [*[{}] * len(EQUAL), *RARE, *[{}] * 5]
    for is_on, equal, fields in zip(dealt, equals, rare, strict=True):
        off = {switch for switch, on in zip(first, is_on, strict=True) if not on}
        off |= {switch for switch in rest if rng.random() < 0.5}
        more_tokens = MORE if "repeated" in off else 0
        sizes = random_sizes(rng, equal=equal, more_tokens=more_tokens)
        resized = {name: size for name, size in fields.items() if name in Sizes._fields}
        others = {name: each for name, each in fields.items() if name not in resized}
        add(sizes._replace(**resized), off, **others)
    for ones, on, off in zip(ONES, OPTIONS, OPTIONS_OFF, strict=True):
        add(random_sizes(rng, ones), options=tuple(on.items()))
        more_tokens = MORE if "repeated" in lesson.switches else 0
        add(
            random_sizes(rng, ones, more_tokens=more_tokens),
            lesson.switches,
            options=tuple(off.items()),
        )
    for sizes in *SQUARES, random_sizes(rng)._replace(**LONG):
        add(sizes, {"causal"}, ignored="first")
    for fields in LARGE:
        if lesson.is_composite:
            fields = {"single": fields.get("single", False)}
        elif lesson.name == "difference":
            fields = {}
        if lesson.name == "cross_entropy" and fields.get("spread", 0) > 20:
            fields = {"spread": 20.0}  # no probability is 0
        add(random_sizes(rng), **fields)
    return settings


def runs(lesson):
    """Return whether a user's forward accepts the arrays: it may need fixed sizes."""
    try:
        return bool(lesson.run_forward(lesson.inputs))
    except Exception:
        return False


def random_sizes(rng, ones="", equal="", more_tokens=0):
    """Return random `Sizes` that `fit`.

    ones: letters of size 1; equal: two letters of equal sizes; more_tokens: added to the vocabulary
    size.
    """
    while True:
        found = {
            name: 1 if name in ones else rng.randint(*limits) for name, limits in RANGES.items()
        }
        sizes = Sizes(C=found["H"] * found.pop("D"), **found)
        if fit(sizes, equal):
            return sizes._replace(V=sizes.V + more_tokens)


def fit(sizes, equal=""):
    """Return whether all sizes above 1 differ but the two equal ones, and T is not too large.

    They also differ from D, 3 C and B T.
    """
    B, T, C, H, V, S, F, P = sizes
    by_letter = sizes.by_letter
    if equal and by_letter[equal[0]] != by_letter[equal[1]]:
        return False
    every = [B, T, H, C // H, V, S, F, P, 3 * C, *[C] * (1 < H < C), *[B * T] * (B > 1 < T)]
    every = [size for size in every if size > 1]
    return len({*every}) == len(every) - bool(equal) and P >= T <= S


def simplest(lesson, setting, fails):
    """Return a simpler setting that also fails: the plain value of each part is tried. fails:
    setting -> bool.
    """

    def attempt(**fields):
        nonlocal setting
        simpler = dataclasses.replace(setting, **fields)
        if simpler != setting and fails(simpler):
            setting = simpler

    for field in dataclasses.fields(Setting):
        if field.name not in ("sizes", "off", "seed"):
            attempt(**{field.name: field.default})
    for switch in lesson.switches:
        attempt(off=setting.off - {switch})
    more_tokens = 0 if setting.has("repeated") else MORE
    attempt(sizes=PLAIN.sizes._replace(V=PLAIN.sizes.V + more_tokens))
    return setting


def in_words(lesson, setting):
    """Describe a lesson's case, "with n_layer = 3, without ln_e"; "" for the plain one."""
    if setting == PLAIN:
        return ""
    words = [
        f"{each} {array.shape}"
        for i, (each, array) in enumerate(lesson.inputs.items())
        if i == 0
        or min(array.shape) == 1
        or len({*array.shape}) < array.ndim
        or max(array.shape) > 127
    ]
    if lesson.key == "gpt":
        sizes = setting.sizes._asdict() | {"n_layer": setting.n_layer}
        words = [
            f"{each} = {size}"
            for each, size in sizes.items()
            if each in ("B", "T", "C", "n_layer") or size == 1 and each != "S"
        ]
    words[0] = f"with {words[0]}"
    for switch in lesson.switches:
        if not setting.has(switch) and not (switch == "causal" and not setting.has("mask")):
            words.append(OFF[switch])
    several = "ignored" in lesson.switches and setting.has("ignored") and setting.ignored != "first"
    facts = {
        "with several ignored targets": several,
        f"with numbers around {setting.offset:g}": setting.offset > 0,
        "with large numbers": setting.spread > 2,
        "with small numbers": setting.spread < 0.01,
        f"with an upstream gradient of {setting.upstream:g}": setting.upstream != 1.0,
        "with a row of zeros": setting.zeros == "rows",
        f"with {[*lesson.inputs][-1]} = 0": setting.zeros == "last",
    }
    facts |= {f"with {name} = {value}": lesson.is_composite for name, value in setting.options}
    facts["with arrays that are not contiguous, as those of a model"] = setting.views
    facts["in float32"] = setting.single
    words += [text for text, is_true in facts.items() if is_true]
    return ", ".join(words)
