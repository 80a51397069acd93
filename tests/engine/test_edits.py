"""The line you study is the line that trains: each function of the lesson is edited, and each
engine trains with it.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import npgpt
from npgpt import GPT, GPTConfig, layers
from npgpt.engine import sources
from npgpt.engine.kv_cache import lesson_continues
from npgpt.engine.trial import lesson_codes, small_gpt2
from npgpt.model import transformer
from tests.cases import FROZEN, LORA
from tests.helpers.models import VARIANTS, model_of
from tests.helpers.runs import refusing

ROOT = Path(npgpt.__file__).parent
IN_USE = "".join(
    path.read_text() for room in ("model", "engine") for path in (ROOT / room).rglob("*.py")
)
IN_USE += LORA.read_text()
FILES = {
    name: Path(getattr(layers, name).__code__.co_filename)
    for name in layers.__all__
    if name.islower() and name in IN_USE
}  # a new layer need not be in GPT-2
FILES |= {
    f"{part}_{way}": Path(transformer.__file__)
    for part in ("block", "mlp", "self_attention")
    for way in ("forward", "backward")
}
FILES |= {"adamw_update": ROOT / "training" / "adamw.py"}
ENGINES = [
    "reference",
    "numpy",
    *["numba", "bfloat16"] * (find_spec("numba") is not None),
    *["xla"] * (find_spec("jax") is not None),
]
TINY = {"vocab_size": 11, "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 16}


def fields_of(name):
    """Return the fields of a config whose model calls a function."""
    return TINY | (
        {"block": str(LORA), "freeze": FROZEN}
        if name.startswith("lora")
        else {"activation": "gelu"}
        if "exact" in name
        else {}
    )


EACH_ENGINES = pytest.mark.parametrize(
    "engines",
    [["reference", "numpy"], pytest.param(ENGINES, marks=pytest.mark.slow)],
    ids=["numpy", "all"],
)

# The mask of a long context by XLA, and linear_backward only by bfloat16.
SILENT = {"causal_mask", "block_forward", "self_attention_forward", "linear_backward"}


def edited(tree, name):
    """Multiply the first result of a function by 0.9, and add something: Adam does not see the
    scale of a gradient.

    What is added to a sum over the batch is such a sum, too: an engine adds up the parts of a
    batch.
    """
    more = {
        "embedding_backward": "0.1 * dx.sum(axis=(0, 1))",
        "causal_mask": "np.eye(x.shape[1], dtype=x.dtype)",
    }.get(name, "0.001")
    (function,) = (each for each in tree.body if getattr(each, "name", "") == name)
    *_, last = function.body
    result, *others = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    if name == "adamw_update":
        lines = ["p *= 0.9", "p += 0.001", ast.unparse(last)]
    else:
        changed = f"({ast.unparse(result)}) * 0.9 + {more}"
        lines = [f"return {', '.join([changed, *map(ast.unparse, others)])}"]
    function.body[-1:] = ast.parse("\n".join(lines)).body
    return ast.unparse(tree)


@pytest.mark.parametrize(
    "names",
    [
        ["layernorm_backward"],
        pytest.param([name for name in FILES if "forward" in name], marks=pytest.mark.slow),
        pytest.param([name for name in FILES if "forward" not in name], marks=pytest.mark.slow),
    ],
    ids=["one", "forward", "backward"],
)
def test_every_engine_trains_with_an_edited_line_of_a_layer(names, tmp_path):
    kinds = {str(fields_of(name)): fields_of(name) for name in names}
    edits = [(fields, FILE, TRANSFORMER) for fields in kinds.values()]
    for name in names:
        source = edited(ast.parse(FILES[name].read_text()), name)
        edits.append((fields_of(name), str(FILES[name].relative_to(ROOT.parent)), source))
    found, told = assert_engines_agree(edits, tmp_path, "brief")
    plain = dict(zip(kinds, found, strict=False))
    for name, (loss,) in zip(names, found[len(kinds) :], strict=True):
        assert abs(loss - plain[str(fields_of(name))][0]) > 1e-3, name
        assert (f"npgpt: {name} was edited" in told) == (name in {*sources.TESTED} - SILENT), name


def test_the_lesson_has_the_code_that_its_replacements_were_tested_with():
    """After a change on purpose, when the tests of engine/ have passed: copy what this prints to
    engine/sources.py.
    """
    functions = vars(layers) | vars(transformer)
    found = {name: sources.digest(functions[name].__code__) for name in sources.TESTED}
    assert found == sources.TESTED, f"TESTED = {found}"


# Edits in one process: for each the package is imported anew from an edited copy.
SIZES = {
    "vocab_size": 600,
    "block_size": 8,
    "n_layer": 3,
    "n_head": 2,
    "n_embd": 8,
    "embedding_layer_norm": True,
    "initializer_range": 0.3,
}
IN_TURN = """
import json, linecache, sys
from pathlib import Path
import numpy as np

def last_loss(model):
    from npgpt import AdamW
    optimizer = AdamW(model.params, lr=0.02 if is_brief else 0.1, engine=model.engine)
    for _ in range(4):
        loss, grads = model.engine.loss_and_grads([(idx, targets)], [None], targets.size)
        optimizer.step(grads, max_norm=1.0)
    return float(loss)

def figures(kernels):
    from npgpt import GPT, GPTConfig
    own = {name: fields[name] for name in ("block", "freeze") if name in fields}
    config = GPTConfig(**{name: fields[name] for name in fields if name not in own})
    if kernels == "bfloat16":           # all but the rounding, which would hide an edit
        from npgpt.engine import bfloat16
        bfloat16.LEAST = bfloat16.NARROWEST = 0
        bfloat16.library, bfloat16.rounded = lambda: None, np.array
        bfloat16.multiply = lambda a, b, c: np.matmul(a, b, out=c)
        own.update(dtype=kernels, kernels="auto")
    import npgpt.engine.cpu
    npgpt.engine.cpu.number_of_shards = lambda *_: 2
    model = GPT(config, threads=2, **{"kernels": kernels, **own})
    if is_brief:
        return [last_loss(model)]
    hidden = float(abs(model.hidden(idx)).mean())
    through = float(np.mean([abs(grad).mean() for grad in model.backward(dhidden).values()]))
    loss = last_loss(model)
    reader = model.engine.reader(4).read
    read = [float(abs(reader(part)).mean()) for part in (idx[:, :5], idx[:, 5:6])]
    return [loss, float(model.evaluate(idx, targets)), *read, hidden, through]

sys.dont_write_bytecode, found = True, []
is_brief, *engines = sys.argv[1] == "brief", *sys.argv[2:]
for fields, file, source in json.loads(Path("edits.json").read_text()):
    original = Path(file).read_text()
    Path(file).write_text(source)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("npgpt", "tests")]:
        del sys.modules[name]
    linecache.clearcache()
    rng = np.random.default_rng(0)
    idx, targets = rng.integers(0, fields["vocab_size"], (2, 4, 8))
    dhidden = rng.standard_normal((4, 8, fields["n_embd"]))
    found.append({kernels: figures(kernels) for kernels in engines})
    Path(file).write_text(original)
Path("found.json").write_text(json.dumps(found))
"""
FILE = "npgpt/model/transformer.py"
TRANSFORMER = Path(transformer.__file__).read_text()


def assert_engines_agree(edits, folder, figures="all", engines=ENGINES):
    """Train with each of the edits (a config's fields, a file, its new source); compare the
    engines.

    Returns the reference's figures of each edit, and standard error. The figures: the loss after
    four steps; unless they are "brief", also that of an evaluation, the size of the logits of a
    prompt, and of the token after it; before training, the size of the hidden state, and that of a
    gradient through it.
    """
    shutil.copytree(ROOT, folder / "npgpt", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "edits.json").write_text(json.dumps(edits))
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, figures, *engines],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "found.json").read_text())
    for (fields, file, source), each in zip(edits, found, strict=True):
        lines = {*source.splitlines()} - {*(ROOT.parent / file).read_text().splitlines()}
        for engine, ours in each.items():
            assert ours == pytest.approx(each["reference"], abs=2e-4), (engine, fields, lines)
    return [each["reference"] for each in found], done.stderr


def changed(*replacements):
    """Return the transformer's source with some texts replaced: old, new, old, new, …"""
    source = TRANSFORMER
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert source.count(old) == 1
        source = source.replace(old, new.replace("\n", "\n    "))
    return source


# Everyday edits that see all texts of a batch, or whole parameters: file | old => new.
WHOLE = r"""
layers/loss.py | 0.0).sum() / count => 0.0).sum() @@ dloss / count => dloss
layers/layernorm.py | mean = x.mean(axis=-1, => mean = x.mean(axis=(0, 1),
layers/layernorm.py | (dy * xhat).reshape(-1, C).sum( => (dy * xhat).reshape(-1, C).mean(
layers/embedding.py | np.add.at(dwte, idx, dtoken) => dwte[idx] += dtoken
training/adamw.py | p -= step_size * m / => p = p - step_size * m / @@ m *= beta1 => m = beta1 * m
training/adamw.py | m *= beta1 => g = g - g.mean()\n    m *= beta1
training/adamw.py | p -= step_size => p -= 0.1 * p.ndim * step_size
"""


@EACH_ENGINES
def test_edits_that_see_the_whole_batch_or_whole_parameters(engines, tmp_path):
    edits = [(SIZES, FILE, TRANSFORMER)]
    for row in WHOLE.strip().split("\n"):
        file, replaced = row.replace(r"\n", "\n").split(" | ")
        source = (ROOT / file).read_text()
        for old, new in (each.split(" => ") for each in replaced.split(" @@ ")):
            assert old in source
            source = source.replace(old, new)
        edits.append((SIZES, f"npgpt/{file}", source))
    (plain, *others), told = assert_engines_agree(edits, tmp_path, "brief", engines)
    differ = [abs(other[0] - plain[0]) > 1e-4 for other in others]
    assert differ == ["p = p" not in row for row in WHOLE.strip().split("\n")]
    assert told.count("depend on each other in edited lines") == 4  # those of layers/


FORWARD = layers.attention_forward


def alibi(first):
    """Attention with a bias by distance; first: the position of the first of T queries."""

    def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
        T, S = q.shape[-2], k.shape[-2]
        distances = first(T, S) + np.arange(T)[:, None] - np.arange(S)
        return FORWARD(q, k, v, scale, mask - abs(distances), dropout_mask)

    return attention_forward


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_a_lesson_as_it_is_mixes_no_texts_and_continues_them(fields):
    model = model_of(fields, kernels="reference")
    assert model.engine.mixes_texts == ""
    continues = lesson_continues(small_gpt2(model.config), lesson_codes())
    assert continues == model.config.causal


def test_a_mean_over_ignored_targets_depends_on_the_batch(monkeypatch):
    def forward(logits, targets):
        _, cache = plain(logits, targets)
        probs, column, *_ = cache
        return -np.log(np.take_along_axis(probs, column, axis=-1)).mean(), cache

    plain = layers.cross_entropy_forward
    monkeypatch.setattr(layers, "cross_entropy_forward", forward)
    assert model_of({}, kernels="reference").engine.mixes_texts == "edited lines"


@pytest.mark.parametrize("kernels", ["reference", "numpy"])
def test_an_edited_attention_generates_what_it_trains(kernels, monkeypatch):
    """Or it is refused: the new token of a text is not at position 0."""
    monkeypatch.setattr(layers, "attention_forward", alibi(lambda T, S: 0))
    model = GPT(GPTConfig(**TINY), threads=1, kernels=kernels)
    idx = np.array([[1, 2, 3]])
    with refusing("edited lines cannot continue texts: .* the last of the S keys"):
        model.generate(idx, 2)
    monkeypatch.setattr(layers, "attention_forward", alibi(lambda T, S: S - T))
    model = GPT(GPTConfig(**TINY), threads=1, kernels=kernels)
    token = model.generate(idx, 1, temperature=0.0)[:, 3:]
    assert token == model(idx)[0][:, -1].argmax(axis=-1)


FIRST = "    dx, dwte_head = ops.head_backward(dlogits, head)"
LAST = "    return logits, (embedding, drop, blocks, ln_f, head, config)"
DWTE = "dwte_embedding, dwpe = ops.embedding_backward(dx, embedding)"
SUM = "dwte = dwte_head + dwte_embedding "


@EACH_ENGINES
def test_lines_that_meet_what_engines_replace(engines, tmp_path):
    """The embedding's gradient, those of a frozen one, logits; the hidden state has no logits.

    The last edit keeps the logits for a gradient of its own.
    """
    gate = "gate = np.tanh(x[..., 0]).reshape(*logits.shape[:2], 1)"
    kept = LAST.replace("head,", "(head, logits),").lstrip()
    undone = (
        f"    head, capped = head\ndlogits = dlogits * (1.0 - capped * capped)\n{FIRST.lstrip()}"
    )
    sources = [
        TRANSFORMER,
        changed(DWTE, f"{DWTE}\nprint(dwte_embedding, dwte_head)"),
        changed(SUM, "dwte = dwte_embedding + dwte_head "),
        changed(SUM, "dwte = 0.5 * dwte_embedding + dwte_head "),
        changed(LAST, f"    logits = 0.5 * logits - 1.0\n{LAST.lstrip()}"),
        changed(LAST, f"    {gate}\nlogits = gate * logits\n{LAST.lstrip()}"),
        changed(LAST, f"    logits = np.tanh(logits)\n{kept}", FIRST, undone),
    ]
    edits = [(SIZES, FILE, source) for source in sources]
    edits[1] = {**SIZES, "freeze": "wte,wpe"}, FILE, sources[1]
    found, told = assert_engines_agree(edits, tmp_path, engines=engines)
    plain, _, alike, *others = found
    assert alike == pytest.approx(plain, abs=2e-4)
    assert all(abs(other[0] - plain[0]) > 1e-3 for other in others)
    assert [other[4:] for other in others[1:]] == [pytest.approx(plain[4:], rel=1e-5)] * 3
    assert told.count("npgpt: gpt_backward was edited") == 4
    assert told.count("npgpt: gpt_forward was edited") == 3
