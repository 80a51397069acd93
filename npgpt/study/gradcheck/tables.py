"""The checks of a layer's lines as a table: text for a terminal, HTML for a notebook."""

import html
import os

from npgpt.study.gradcheck.check import OK, WRONG, first_wrong

HEADER = "variable", "shape", "line", "dv at", "right to", "to torch", "verdict"
WIDTHS = 24, 14, 5, 6, 9, 9, 0


def rows(checks):
    """Return the cells of each line of the table, texts."""
    return [(each.variable, "x".join(map(str, each.shape)) or "number", str(each.forward_line),
             str(each.backward_line or ""), right_to(each), "" if each.torch is None else f"{each.torch:.1e}",
             each.verdict + (f", {each.through}" if each.through else "")) for each in checks]


def right_to(check):
    """Return how exact a gradient is: "40 digits", or in float64 its relative error."""
    if check.digits is not None:
        return f"{check.digits} digits"
    return "" if check.relative is None else f"{check.relative:.1e}"


def table_text(checks):
    """Return the checks of a layer as a table, one line a variable, and the first wrong line."""
    def line(cells):
        texts = [f"{cell:<{width}}" if i < 2 or not width else f"{cell:>{width}}"
                 for i, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))]
        return "  " + " ".join(texts[:-1]) + f"  {texts[-1]}"

    head = f"{checks[0].layer} ({os.path.basename(checks[0].file)})"
    return "\n".join([head, line(HEADER), *map(line, rows(checks)), *verdict(checks)])


def verdict(checks):
    """Return the line that says which line is the first wrong one, in a list that is empty if there is none."""
    wrong = first_wrong(checks)
    text = wrong and (wrong.backward_text or f"there is no d{wrong.variable}")
    return [f"  the first wrong line is {wrong.backward_line}: {text}"] if wrong else []


def table_html(checks):
    """Return the checks of a layer as an HTML table."""
    colours = {OK: "#1a7f37", WRONG: "#cf222e"}
    body = "".join("<tr>" + "".join(
        f'<td style="text-align: left; color: {colours.get(each.verdict, "inherit") if i == 6 else "inherit"}">'
        f"{html.escape(cell)}</td>" for i, cell in enumerate(cells)) + "</tr>"
        for each, cells in zip(checks, rows(checks), strict=True))
    head = "".join(f"<th>{each}</th>" for each in HEADER)
    said = "".join(f"<p>{html.escape(each)}</p>" for each in verdict(checks))
    return f"<p><b>{html.escape(checks[0].layer)}</b></p><table><tr>{head}</tr>{body}</table>{said}"
