"""What the page says about each line of a lesson: its variables, its partner lines, and its gradient check."""

import inspect

from npgpt.study.gradcheck.check import CONSTANT, OK, OTHER, SHORTCUT, WRONG
from npgpt.study.gradcheck.flow import Flow


def line_entries(lesson, checks, steps, sections):
    """Return line ("f24", "b51") -> a list of dicts for the script, one for each variable of the line.

    name; partner: the line where the array beside it is made, or None; other: the variable there; section: the variable
    whose derivation belongs to it, or None; verdict and finding: of the gradient check, None if it is no gradient;
    uses: [line, line of the backward, name there] for each use of the variable, see `Flow.uses`; lit: the lines that
    light up with it, if they are not the partner: for the gradient of an argument the lines that use the argument.
    """
    forward = steps.sources["f"]
    flow, arguments = Flow(lesson.forward, lesson.backward), inspect.signature(lesson.forward).parameters
    lines, shares = {}, {}      # shares: (line, name) of what one use adds to a gradient -> (variable, its line, use)
    for checked in checks:
        here = steps.key("f", checked.forward_line)
        there = steps.key("b", checked.backward_line) if checked.backward_line else None
        other = checked.through or f"d{checked.variable}"
        section = "p" if "." in checked.variable else checked.variable
        own = there and checked.verdict != SHORTCUT
        uses = [[steps.key("f", use), steps.key("b", line), name] for use, line, name in
                flow.uses(checked.variable, checked.forward_line, checked.backward_line)] if own else []
        shares |= {(line, name): (checked.variable, here, use) for use, line, name in uses}
        common = {"section": section if section in sections else None, "verdict": checked.verdict,
                  "finding": finding(checked), "uses": uses}
        add_entry(lines, here, common | {"name": checked.variable, "partner": there, "other": other})
        if own:
            lit = {"lit": [use for use, _, _ in uses]} if uses and checked.forward_line == forward.first else {}
            add_entry(lines, there, common | lit | {"name": other, "partner": here, "other": checked.variable})
    for step in steps.steps:
        for name, _ in step["arrays"]:
            if name in lines.get(step["line"], {}):
                continue
            source, line = steps.sources[step["line"][0]], int(step["line"][1:])
            entry = {"name": name, "verdict": None, "section": helper_section(name, line, source, sections)}
            if (step["line"], name) in shares:
                variable, made, use = shares[step["line"], name]
                entry |= {"partner": made, "other": variable, "lit": [use], "uses": [[use, step["line"], name]],
                          "finding": f"{name} is the contribution of this use of {variable} to d{variable}."}
            else:
                made = [each.first for each in forward.statements if name in each.targets]
                partner = None if source is forward else max(
                    made or ([forward.first] if name in arguments else flow.undone.get(line, ())), default=None)
                entry |= {"partner": partner and steps.key("f", partner), "other": name, "uses": [], "finding": None}
            add_entry(lines, step["line"], entry)
    orders = {step["line"]: [name for name, _ in step["arrays"]] for step in steps.steps}
    return {line: [entries[name] for name in dict.fromkeys([*orders.get(line, []), *entries]) if name in entries]
            for line, entries in lines.items()}         # what a line assigns first is shown first


def add_entry(lines, line, entry):
    """Add the entry of a variable to a line; if the line ran several times, keep the worst."""
    known = lines.setdefault(line, {}).setdefault(entry["name"], entry)
    if entry["verdict"] == WRONG:
        known.update(entry)


def finding(checked):
    """Return the result of the gradient check of one variable, in a sentence."""
    gradient = f"d{checked.variable}"
    if checked.verdict == OK:
        return f"{gradient} is verified: relative error {checked.relative:.1e} against central differences."
    if checked.verdict == SHORTCUT:
        return f"{gradient} is skipped by a shortcut, and verified as part of {checked.through}."
    if checked.verdict == CONSTANT:
        return f"{checked.variable} is a constant: no gradient flows through it."
    if checked.verdict == OTHER:
        return f"{gradient} is not the gradient of {checked.variable}, but all results are right."
    error = "it is missing" if checked.relative is None else f"relative error {checked.relative:.1e}"
    return f"{gradient} is WRONG: {error}."


def helper_section(name, line, source, sections):
    """Return the section for a variable that is no gradient: by its name, or that of the next gradient."""
    by_name = [v for v in sections if name == v or f"{name}_".startswith(f"d{v}_")]
    if by_name:
        return max(by_name, key=len)
    later = [target[1:] for each in source.statements if each.first > line for target in each.targets]
    return next((v for v in later if v in sections), None)
