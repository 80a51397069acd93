"""The checks of a layer's lines as a table."""

import os

from npgpt.study.gradcheck.check import first_wrong

HEADER = "variable", "shape", "line", "dv at", "right to", "to torch", "verdict"
WIDTHS = 24, 14, 5, 6, 9, 9, 0


def table_text(checks):
    """Return the checks of a layer as a table, one line a variable, and the first wrong line."""
    def line(cells):
        texts = [f"{cell:<{width}}" if i < 2 or not width else f"{cell:>{width}}"
                 for i, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))]
        return "  " + " ".join(texts[:-1]) + f"  {texts[-1]}"

    rows = [(each.variable, "x".join(map(str, each.shape)) or "number", str(each.forward_line),
             str(each.backward_line or ""), right_to(each), "" if each.torch is None else f"{each.torch:.1e}",
             each.verdict + (f", {each.through}" if each.through else "")) for each in checks]
    text = [f"{checks[0].layer} ({os.path.basename(checks[0].file)})", line(HEADER), *map(line, rows)]
    if wrong := first_wrong(checks):
        said = wrong.backward_text or f"there is no d{wrong.variable}"
        text.append(f"  the first wrong line is {wrong.backward_line}: {said}")
    return "\n".join(text)


def right_to(check):
    """Return how exact a gradient is: "40 digits", or in float64 its relative error."""
    if check.digits is not None:
        return f"{check.digits} digits"
    return "" if check.relative is None else f"{check.relative:.1e}"
