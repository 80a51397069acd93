"""The derivations, `lessons/*.md`: the mathematics of a pair's gradients, and its exercises.

A file has paragraphs separated by blank lines, `## v` headings, `code`, $inline$ and $$display$$
formulas. The text before the first heading introduces the pair; the section `v` derives the
gradient of the variable v. A heading may be followed by notes for the exercises on a line of the
backward, which the page does not show:

    line: dv            the key of the line (see `exercise.key_of`); by default "d" and the heading
    level: 2            the lowest level that leaves the line out; 0: a line of the long way
    hint: …             how to derive the line, in words; continued in indented lines
    mistake: dv = …     a common mistake, for `npgpt exercise bug`
    known: dv = … | …   others, each with its name, if the judge finds no name itself
"""

import dataclasses
import re

FIELD = re.compile(r"^(line|level|hint|mistake|known): (.*(?:\n .*)*)", re.MULTILINE)
SYMBOLS = {
    "cdot": "·", "delta": "δ", "dots": "…", "infty": "∞", "int": "∫", "odot": "⊙",
    "partial": "∂", "Phi": "Φ", "pi": "π", "prime": "′", "sum": "∑", "top": "ᵀ",
    "left": "", "right": "", "limits": "", "quad": "",
}
IN = r"\{([^{}]*)\}"
RULES = {       # of formulas as text, in this order; each is about innermost braces
    rf"\\frac{IN}{IN}": lambda m: f"{factor(m[1])}/{factor(m[2])}",
    rf"\\sqrt{IN}": lambda m: f"√{factor(m[1])}",
    rf"\\(?:mathrm|operatorname|text){IN}": r"\1",
    rf"(?<=[∑∫]_){IN}": lambda m: factor(m[1]),
    rf"_{IN}": lambda m: f"[{indices(m[1])}]",
    r"\^\{([ᵀ′]+)\}": r"\1",
    rf"\^{IN}": lambda m: f"^{factor(m[1])}",
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
    """Return {key of a line of the backward: its `Note`} of a derivation; long: of its long way."""
    notes = {}
    for heading, block in blocks(read_text(lesson)):
        pairs = [(name, " ".join(value.split())) for name, value in FIELD.findall(block)]
        fields = {"line": f"d{heading}", "level": 3, "mistake": None} | dict(pairs)
        level = int(fields["level"])
        if pairs and (level > 0 or long):   # a line of the long way may have the key of one above
            known = tuple(tuple(value.split(" | ")) for name, value in pairs if name == "known")
            notes[fields["line"]] = Note(fields["hint"], level, fields["mistake"], known)
    return notes


def derivation_text(lesson, key=None):
    """Return the paragraphs of the introduction, and of the section on a line, as text."""
    found = [*blocks(read_text(lesson))]
    wanted = {None}
    wanted |= {each for each, block in found if key == f"d{each}" or f"line: {key}\n" in block}
    return [block_text(block) for heading, block in found
            if heading in wanted and not FIELD.match(block)]


def block_text(block):
    """Return a heading, a display formula or a paragraph as text."""
    if block.startswith("## "):
        return f"The gradient of {block[3:].strip()}:"
    if block.startswith("$$"):
        lines = block.strip("$\n ").split(r", \quad ")
        return "\n".join(f"    {formula_text(line)}" for line in lines)
    return re.sub(r"\$([^$]+)\$", lambda m: formula_text(m[1]), " ".join(block.split()))


def formula_text(latex):
    """Return a formula in a line of Unicode: "dx[n,i] = ∑_j dy[n,j] weight[i,j]"."""
    text = re.sub(r"\\([a-zA-Z]+)", lambda m: SYMBOLS.get(m[1], m[0]), latex.replace(r"\,", " "))
    text = text.replace("∂ ", "∂").replace("^2", "²").replace("^3", "³")
    # an index; not the underscore of a name, as in dy\_rows, n_\mathrm{in} and J_A
    text = re.sub(r"(?<!\\)([_^])([a-z0-9ᵀ′])", r"\1{\2}", text)
    before = None
    while text != before:       # from the innermost braces to the outermost
        before = text
        for pattern, new in RULES.items():
            text = re.sub(pattern, new, text)
    return re.sub(r"(?<=\() +| +(?=\))", "", " ".join(text.split())).replace("\\", "")


def indices(text):
    """Return indices separated by commas: "n,i" for "ni" and for "n, i"."""
    is_letters = text.isalpha() and text.islower()
    return ",".join(text if is_letters else re.findall("[^ ,]+", text))


def factor(text):
    """Return a part of a formula, in brackets if it is a sum, a product or a quotient."""
    name = re.sub(r"\[[^]]*\]|√\([^()]*\)", "", text)
    return f"({text})" if re.search("[ +/·,=-]", name) else text


def parse_derivation(text):
    """Return the introduction, and the section of each variable, in lists of markupsafe.Markup."""
    from latex2mathml.converter import convert
    from markupsafe import Markup, escape  # comes with Jinja2

    def formula(latex, display):
        # A name of the code becomes one <mi>: \mathrm would make an element of each letter, and
        # beside <mtext> an operator loses its spaces.
        latex = re.sub(r"\\mathrm(\{\w+\})", r"\\text\1", latex.replace(r"\_", "_"))
        # the converter does not escape the content of \text
        html = convert(latex.replace("<", r"\lt "), display=display)
        return Markup(re.sub(r"<mtext>(\w+)</mtext>", r"<mi>\1</mi>", html))

    def inline(piece):
        if piece.startswith("`"):
            return Markup("<code>{}</code>").format(piece[1:-1])
        return formula(piece[1:-1], "inline") if piece.startswith("$") else escape(piece)

    sections = {None: []}
    for heading, block in blocks(text):
        fragments = sections.setdefault(heading, [])
        if block.startswith("$$"):
            fragments.append(formula(block.strip("$\n "), "block"))
        elif not block.startswith("## ") and not FIELD.match(block):
            pieces = re.split(r"(`[^`]+`|\$[^$]+\$)", block)
            fragments.append(Markup("<p>{}</p>").format(Markup("").join(map(inline, pieces))))
    return sections.pop(None), sections
