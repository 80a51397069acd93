"""The derivations, `lessons/*.md`: the mathematics of a pair's gradients, and its exercises.

A file has paragraphs separated by blank lines, `## v` headings, `code`, $inline$ and $$display$$
formulas. The text before the first heading introduces the pair; the section `v` derives the
gradient of the variable v. A sentence "That is `code`" gives the line away: it comes after the
formulas. A block that begins with > is about the fused gradient, and not shown for the long way.
A heading may be followed by notes for the exercises on a line of the backward, which the page does
not show:

    line: dv            the key of the line (see `exercise.key_of`); by default "d" and the heading
    level: 2            the lowest level that leaves the line out; 0: a line of the long way
    hint: …             how to derive the line, in words; continued in indented lines
    why: …              why it is so, in a sentence, once it is written; by default the hint
    mistake: dv = …     a common mistake, for `npgpt exercise bug`
    known: dv = … | …   others, each with its name, if the judge finds no name itself
"""

import dataclasses
import re

FIELD = re.compile(r"^(line|level|hint|why|mistake|known): (.*(?:\n .*)*)", re.MULTILINE)
SYMBOLS = {
    "cdot": "·",
    "delta": "δ",
    "dots": "…",
    "infty": "∞",
    "int": "∫",
    "odot": "⊙",
    "partial": "∂",
    "Phi": "Φ",
    "pi": "π",
    "prime": "′",
    "sum": "∑",
    "top": "ᵀ",
    "left": "",
    "right": "",
    "limits": "",
    "quad": "",
}
CODE = re.compile(r"(?:^| )That is (?=`)(?:`[^`]*`|[^`.])*\.")  # a sentence that says the code
IN = r"\{([^{}]*)\}"
RULES = {  # of formulas as text, in this order; each is about innermost braces
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
    why: str = ""
    level: int = 3
    mistake: str | None = None
    known: tuple[tuple[str, str], ...] = ()


def read_text(lesson):
    """Return the text of a lesson's derivation; "" if it has none."""
    return lesson.derivation.read_text(encoding="utf-8-sig") if lesson.derivation.is_file() else ""


def blocks(text, long=False):
    """Yield (heading or None, block) for each block of text; long: of the long way."""
    heading = None
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("## "):
            heading = block[3:].strip()
        if not (long and block.startswith(">")):
            yield heading, re.sub("(?m)^> ?", "", block)


def is_long(lesson):
    """Return whether a lesson's backward is its long way."""
    return lesson.backward is lesson.long_way


def built_on(lesson):
    """Return {heading: the sections that it builds on, in order}: those of skipped gradients.

    A fused gradient is derived from them; in the long way each has a line of its own.
    """
    found, before = {}, []
    for heading in dict.fromkeys(heading for heading, _ in blocks(read_text(lesson)) if heading):
        before.append(heading)
        if heading not in lesson.skipped or is_long(lesson):
            *found[heading], _ = before
            before = []
    return found


def read_notes(lesson):
    """Return {key of a line of the backward: its `Note`} of a derivation; long: of its long way."""
    notes = {}
    for heading, block in blocks(read_text(lesson)):
        pairs = [(name, " ".join(value.split())) for name, value in FIELD.findall(block)]
        fields = {"line": f"d{heading}", "level": 3, "mistake": None} | dict(pairs)
        level = int(fields["level"])
        # a line of the long way may have the key of one above
        if pairs and (level > 0 or is_long(lesson)):
            known = tuple(tuple(value.split(" | ")) for name, value in pairs if name == "known")
            why = fields.get("why", fields["hint"].split(". ")[0].rstrip(".") + ".")
            notes[fields["line"]] = Note(fields["hint"], why, level, fields["mistake"], known)
    return notes


def derivation_text(lesson, keys=()):
    """Return the introduction, the sections on some lines and what they build on, as paragraphs.

    Returns the idea with the formulas, and the sentences that say the code of the lines.
    """
    found = [*blocks(read_text(lesson), is_long(lesson))]
    headings = {
        each
        for each, block in found
        for key in keys
        if key == f"d{each}" or f"line: {key}\n" in block
    }
    before = built_on(lesson)
    wanted = {None, *headings}.union(*(before.get(each, ()) for each in headings))
    idea, code = [], []
    for heading, block in found:
        if heading in wanted and not FIELD.match(block):
            text = block_text(block)
            if heading in headings:
                code += [each.strip() for each in CODE.findall(text)]
            idea.append(re.sub(r"^ (?=\S)", "", CODE.sub("", text)))
    return [*filter(None, idea)], code


def formula_of(lesson, key):
    """Return the formula for a line in the derivation, "dbias[c] = ∑_n dy[n,c]", or None.

    It is the last one before the sentence that says the code; in the long way the first one.
    """
    found = [*blocks(read_text(lesson), is_long(lesson))]
    names = {key}
    if not key.isidentifier():  # np.add.at: what its section derives
        names |= {f"d{heading}" for heading, block in found if f"line: {key}\n" in block}
    formula = None
    for _, block in found:
        if formula and (is_long(lesson) or CODE.search(block_text(block))):
            break
        for line in block_text(block).split("\n") * block.startswith("$$"):
            if re.split(r"\[| = ", line.strip())[0] in names:
                formula = line.strip()
    return formula


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
    while text != before:  # from the innermost braces to the outermost
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
    """Return the introduction, and the section of each variable, in lists of markupsafe.Markup.

    What is about the fused gradient is in elements of the class "fused".
    """
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
    steps = [*blocks(text, long=True)]
    for heading, block in blocks(text):
        fragments = sections.setdefault(heading, [])
        wrapped = Markup("{}" if (heading, block) in steps else '<div class="fused">{}</div>')
        if block.startswith("$$"):
            fragments.append(wrapped.format(formula(block.strip("$\n "), "block")))
        elif not block.startswith("## ") and not FIELD.match(block):
            pieces = re.split(r"(`[^`]+`|\$[^$]+\$)", block)
            paragraph = Markup("<p>{}</p>").format(Markup("").join(map(inline, pieces)))
            fragments.append(wrapped.format(paragraph))
    return sections.pop(None), sections
