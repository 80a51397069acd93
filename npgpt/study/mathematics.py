"""The derivations beside the source: `derivations/*.md`, one a pair of layers, as HTML with MathML.

A file is paragraphs with blank lines between them, `## name` headings, `code`, $inline$ and $$display$$ formulas. What
stands before the first heading introduces the pair; the section `name` derives the gradient of that variable.
"""

import dataclasses
import re
from importlib import resources

from npgpt.errors import UserError

NAME = re.compile(r"\\mathrm\{((?:\w|\\_)+)\}")


@dataclasses.dataclass(frozen=True)
class Derivation:
    """HTML fragments, each a paragraph or a display formula: the introduction, and those of each variable's section."""

    introduction: list[str]
    sections: dict[str, list[str]]


def read_derivation(name):
    """The derivation of the pair `name` ("linear", …).

    Raises UserError for a name that has none, and where the extra "study" is not installed.
    """
    file = resources.files(__package__) / "derivations" / f"{name}.md"
    if not file.is_file():
        raise UserError(f'there is no derivation of "{name}"')
    return parse_derivation(file.read_text(encoding="utf-8"))


def parse_derivation(text):
    """Text in the format above -> `Derivation`; its fragments are markupsafe.Markup, all text in them is escaped."""
    try:
        from latex2mathml.converter import convert
        from markupsafe import Markup, escape  # comes with Jinja2
    except ImportError:
        raise UserError('the study pages need latex2mathml and Jinja2: pip install "npgpt[study]"') from None

    def formula(latex, display):
        # A name of the code becomes one word, where \mathrm would make an element of each letter. It becomes <mi>: to
        # MathML <mtext> is a space, and an operator between two spaces loses those around it. The converter does not
        # escape what stands in \text, so no "<" may get that far.
        latex = NAME.sub(lambda match: rf"\text{{{match[1]}}}".replace(r"\_", "_"), latex).replace("<", r"\lt ")
        return Markup(re.sub(r"<mtext>(\w+)</mtext>", r"<mi>\1</mi>", convert(latex, display=display)))

    def inline(piece):
        if piece.startswith("`"):
            return Markup("<code>{}</code>").format(piece[1:-1])
        return formula(piece[1:-1], "inline") if piece.startswith("$") else escape(piece)

    introduction, sections = [], {}
    fragments = introduction
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("## "):
            fragments = sections[block[3:].strip()] = []
        elif block.startswith("$$"):
            fragments.append(formula(block.strip("$\n "), "block"))
        else:
            pieces = re.split(r"(`[^`]+`|\$[^$]+\$)", block)
            fragments.append(Markup("<p>{}</p>").format(Markup("").join(map(inline, pieces))))
    return Derivation(introduction, sections)
