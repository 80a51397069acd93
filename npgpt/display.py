"""What a terminal or a notebook shows: a table for arrays, a bar for progress."""

import html
import sys
import warnings

with warnings.catch_warnings(action="ignore"):      # in a notebook without ipywidgets, the bars are text
    from tqdm.autonotebook import tqdm as tqdm

HIDE_BARS = False if "ipykernel.zmqshell" in sys.modules else None      # tqdm's `disable`; None: unless on a terminal


def table(last, row):
    """Return `__repr__` and `_repr_html_` of a mapping; row(mapping, name): shape, dtype, and what is called `last`."""
    def text(self):
        rows = [("name", "shape", "dtype", last), *((name, *row(self, name)) for name in list(self)[:60])]
        lines = ["{!s:23}  {!s:20}  {!s:7}  {}".format(*each).rstrip() for each in rows]
        rest = len(self) + 1 - len(rows)
        return "\n".join([f"{type(self).__name__}: {len(self)} arrays", *lines, *[f"… and {rest} more"] * (rest > 0)])

    def as_html(self):
        title, *lines = html.escape(repr(self)).splitlines()
        cells = ("<td>".join(filter(None, map(str.strip, line.split("  ")))) for line in lines)
        return f"{title}<table><tr><td>{'<tr><td>'.join(cells)}</table>"

    return text, as_html
