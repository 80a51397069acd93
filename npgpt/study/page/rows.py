"""The rows of a lesson on the page: a line of the forward beside the lines that undo it."""

from npgpt.study.gradcheck.flow import undone
from npgpt.study.gradcheck.verdicts import CONSTANT, FUSED, OK, OTHER, WRONG


def rows_of(lesson, forward, backward, checks):
    """Return the rows, dicts with lists of units, "forward" and "backward", in the forward's order.

    forward, backward: from `code_units`. The forward's arguments are beside the backward's
    `return`. Another line of the backward is in the lowest row that it undoes and that is not below
    the line before it: the backward reads upwards.
    why: why no line of the backward is in a row; at: the line that it then names.
    """
    rows = []
    for group in grouped(forward):
        unit = group[-1]
        if unit["doc"]:
            rows[0]["forward"] += group
        else:
            row = {"forward": group, "backward": [], "line": unit["line"]}
            rows.append(row | {"why": None, "at": None})
    at = len(rows) - 1
    for group in grouped(backward):
        unit = group[-1]
        lines = undone(lesson, unit["line"])
        found = [i for i, row in enumerate(rows) if row["line"] in lines]
        if unit["returns"]:
            at = 0
        elif found:
            at = max([i for i in found if i <= at], default=max(found))
        for i in found:
            if i != at:
                rows[i] |= {"why": "undone together", "at": unit["line"]}
        rows[at]["backward"] += group
    verdicts = {each.forward_line: each for each in checks}
    for row in rows:
        checked = verdicts.get(row["line"])
        if any(unit["key"] for unit in row["backward"]):
            row |= {"why": None, "at": None}
        elif checked and checked.verdict == CONSTANT:
            row["why"] = "a constant: no gradient flows through it"
        elif checked and checked.verdict == FUSED and not row["why"]:
            row |= {"why": f"fused: part of {checked.through}", "at": checked.backward_line}
    return rows


def grouped(units):
    """Split units after each statement or docstring.

    It keeps the lines above it, such as an `if` or a `for`.
    """
    groups = [[]]
    for unit in units:
        groups[-1].append(unit)
        if unit["key"] or unit["doc"]:
            groups.append([])
    return groups[:-1]


def line_entries(checks, steps, sections):
    """Return line of the backward, "b51" -> a dict for each gradient that it computes.

    section: of the derivation, or None. Of several checks of a name the worst counts.
    """
    lines = {}
    for checked in checks:
        if checked.backward_line and checked.verdict != FUSED:
            name = f"d{checked.variable}"
            section = "p" if "." in checked.variable else checked.variable
            entries = lines.setdefault(steps.key("b", checked.backward_line), {})
            if checked.verdict == WRONG or name not in entries:
                entries[name] = {
                    "name": name,
                    "section": section if section in sections else None,
                    "verdict": checked.verdict,
                    "finding": finding(checked),
                }
    return {line: [*entries.values()] for line, entries in lines.items()}


def finding(checked):
    """Return the result of one variable's gradient check in a sentence."""
    gradient = f"d{checked.variable}"
    if checked.verdict == OK:
        error = f"{checked.relative:.1e} against central differences"
        return f"{gradient} is verified: relative error {error}."
    if checked.verdict == OTHER:
        return f"{gradient} is not the gradient of {checked.variable}, but all results are right."
    error = (
        "it is missing" if checked.relative is None else f"relative error {checked.relative:.1e}"
    )
    return f"{gradient} is WRONG: {error}."
