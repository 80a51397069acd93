"""The derivations, `lessons/*.md`: for each pair of functions the mathematics of its gradients, and its exercises.

A file has paragraphs separated by blank lines, `## v` headings, `code`, $inline$ and $$display$$ formulas. The text
before the first heading introduces the pair; the section `v` derives the gradient of the variable v. A heading may be
followed by notes for the exercises on a line of the backward, which the page does not show:

    line: dv            the key of the line (see `exercise.key_of`); by default "d" and the heading
    level: 2            the lowest level of exercises that leaves the line out; 0: it is a line of the long way
    hint: …             how to derive the line, in words; continued in indented lines
    mistake: dv = …     a common mistake, for `npgpt exercise bug`
    known: dv = … | …   another one, and its name, if the judge finds no name itself; there may be several
"""

import dataclasses
import re

NAME = re.compile(r"\\mathrm\{((?:\w|\\_)+)\}")
FIELD = re.compile(r"^(line|level|hint|mistake|known): ", re.MULTILINE)
SYMBOLS = {"cdot": "·", "delta": "δ", "dots": "…", "infty": "∞", "int": "∫", "odot": "⊙", "partial": "∂", "Phi": "Φ",
           "pi": "π", "prime": "′", "sum": "∑", "top": "ᵀ", "left": "", "right": "", "limits": "", "quad": "",
           **{name: name for name in ("cos", "log", "sin", "tanh")}}
IN = r"\{([^{}]*)\}"
RULES = {       # of formulas as text, in this order; each is about innermost braces
    rf"\\frac{IN}{IN}": lambda m: f"{factor(m[1])}/{factor(m[2])}",
    rf"\\sqrt{IN}": lambda m: f"√{factor(m[1])}",
    rf"\\(?:mathrm|operatorname|text){IN}": r"\1",
    rf"([∑∫]_){IN}": lambda m: m[1] + (m[2] if len(m[2]) == 1 else f"({m[2]})"),
    rf"_{IN}": lambda m: f"[{','.join(re.findall('[a-z]' if m[1].islower() and m[1].isalpha() else '[^ ,]+', m[1]))}]",
    r"\^\{([ᵀ′]+)\}": r"\1",
    rf"\^{IN}": lambda m: {"2": "²", "3": "³"}.get(m[1]) or f"^{factor(m[1])}",
}


@dataclasses.dataclass(frozen=True)
class Note:
    """The notes on a line of a backward, as described above; known: (code, name) of mistakes."""

    hint: str
    level: int = 3
    mistake: str | None = None
    known: tuple[tuple[str, str], ...] = ()


def read_text(lesson):
    """Return the text of a lesson's derivation; "" if it has none."""
    return lesson.derivation.read_text(encoding="utf-8-sig") if lesson.derivation.is_file() else ""


def blocks(text):
    """Yield (heading or None, block) for each block of text between blank lines."""
    heading = None
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("## "):
            heading = block[3:].strip()
        yield heading, block


def read_notes(lesson, long=False):
    """Return {key of a line of the backward: its `Note`} of a lesson's derivation; long: of its long way."""
    notes = {}
    for heading, block in blocks(read_text(lesson)):
        if FIELD.match(block):
            _, *parts = FIELD.split(block)
            pairs = [(key, " ".join(value.split())) for key, value in zip(parts[::2], parts[1::2], strict=True)]
            fields = dict(pairs)
            level = int(fields.get("level", 3))
            known = tuple(tuple(value.split(" | ")) for key, value in pairs if key == "known")
            if level > 0 or long:           # a line of the long way may have the key of one above it
                notes[fields.get("line", f"d{heading}")] = Note(fields["hint"], level, fields.get("mistake"), known)
    return notes


def derivation_text(lesson, key=None):
    """Return the paragraphs of a pair's introduction, and of the section on a line of the backward, as text."""
    found = [*blocks(read_text(lesson))]
    wanted = {heading for heading, block in found if key == f"d{heading}" or f"line: {key}\n" in block}
    return [block_text(block) for heading, block in found if heading in {None, *wanted} and not FIELD.match(block)]


def block_text(block):
    """Return a heading, a display formula or a paragraph as text."""
    if block.startswith("## "):
        return f"The gradient of {block[3:].strip()}:"
    if block.startswith("$$"):
        return "\n".join(f"    {formula_text(line)}" for line in block.strip("$\n ").split(r", \quad "))
    return re.sub(r"\$([^$]+)\$", lambda match: formula_text(match[1]), " ".join(block.split()))


def formula_text(latex):
    """Return a formula in one line of Unicode, with indices as in NumPy: "dx[n,i] = ∑_j dy[n,j] weight[i,j]"."""
    # "ˍ" stands for an underscore that is part of a name, as in dy_rows, n_in and J_A.
    text = re.sub(r"_(\\mathrm\{(\w+)\}|[A-Z])", lambda match: f"ˍ{match[2] or match[1]}", latex.replace(r"\_", "ˍ"))
    text = re.sub(r"\\([a-zA-Z]+)", lambda match: SYMBOLS.get(match[1], match[0]), text.replace(r"\,", " "))
    text, before = re.sub(r"([_^])([\w′])", r"\1{\2}", text.replace("∂ ", "∂")), None
    while text != before:       # from the innermost braces to the outermost
        before = text
        for pattern, new in RULES.items():
            text = re.sub(pattern, new, text)
    return re.sub(r"(?<=\() +| +(?=\))", "", " ".join(text.split())).replace("ˍ", "_")


def factor(text):
    """Return a part of a formula, in brackets if it is a sum, a product or a quotient."""
    return text if re.fullmatch(r"[^ +/·-]+", re.sub(r"\[[^]]*\]|√\([^()]*\)", "x", text)) else f"({text})"


def parse_derivation(text):
    """Return the introduction of a derivation, and each variable's section, in lists of HTML: markupsafe.Markup."""
    from latex2mathml.converter import convert
    from markupsafe import Markup, escape  # comes with Jinja2

    def formula(latex, display):
        # A name of the code becomes one <mi>: \mathrm would make an element of each letter, and beside <mtext> an
        # operator loses its spaces. The converter does not escape the content of \text, so "<" must not reach it.
        latex = NAME.sub(lambda match: rf"\text{{{match[1]}}}".replace(r"\_", "_"), latex).replace("<", r"\lt ")
        return Markup(re.sub(r"<mtext>(\w+)</mtext>", r"<mi>\1</mi>", convert(latex, display=display)))

    def inline(piece):
        if piece.startswith("`"):
            return Markup("<code>{}</code>").format(piece[1:-1])
        return formula(piece[1:-1], "inline") if piece.startswith("$") else escape(piece)

    introduction, sections = [], {}
    for heading, block in blocks(text):
        fragments = introduction if heading is None else sections.setdefault(heading, [])
        if block.startswith("$$"):
            fragments.append(formula(block.strip("$\n "), "block"))
        elif not block.startswith("## ") and not FIELD.match(block):
            pieces = re.split(r"(`[^`]+`|\$[^$]+\$)", block)
            fragments.append(Markup("<p>{}</p>").format(Markup("").join(map(inline, pieces))))
    return introduction, sections
