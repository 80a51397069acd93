"""The figures of a measurement as JSON, as a Markdown table and as a picture."""

import json
import os
from importlib.util import find_spec

import numpy as np
from shapes import PEERS

LABELS = {"npgpt": "npgpt", "fast": "npgpt, fast", "first": "npgpt, fast, first run", "mkl": "npgpt, mkl",
          "xla": "npgpt, XLA", "reference": "npgpt, reference lines", "equal": "npgpt, equal work",
          "old": "npgpt, older", "torch": "PyTorch", "compile": "torch.compile", "transformers": "transformers"}
HEADER = ("row", "what", "side", "time", "times the first's", "PyTorch's time / this", "tokens/s", "floor / time",
          "memory")
RATIO = "{median:.2f} ({low:.2f} to {high:.2f})"


def write_report(results, folder):
    """Write bench.json, bench.md and, if matplotlib is installed, bench.png into a folder."""
    for name, text in (("bench.json", json.dumps(results, indent=1) + "\n"), ("bench.md", markdown(results))):
        (folder / f"{name}.part").write_text(text, encoding="utf-8")
        os.replace(folder / f"{name}.part", folder / name)      # whole, even if this process is killed
    draw(results, folder / "bench.png")


def markdown(results):
    """Return the machine, tables of the rows and of whole runs' losses, and the tracebacks of the sides that failed."""
    machine = dict(results["machine"])
    in_use = "; ".join(f"{library}: {says}" for library, says in machine.pop("in use", {}).items())
    parts = [", ".join(f"{key} {value}" for key, value in machine.items() if value),
             f"Instructions, as the libraries say: {in_use}." if in_use else "",
             table(HEADER, [line for name, row in results["rows"].items() for line in lines(name, row)])]
    parts += [losses(name, row["sides"]) for name, row in results["rows"].items()]
    parts += [f"{name}, {side}:\n\n```\n{figures['failed']}\n```" for name, row in results["rows"].items()
              for side, figures in row["sides"].items() if "failed" in figures]
    return "\n\n".join(filter(None, parts)) + "\n"


def table(header, rows):
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def lines(name, row):
    """Return the cells of a row, a line for each side."""
    for i, (side, figures) in enumerate(row["sides"].items()):
        first = ("", "") if i else (name, row["description"])
        if "failed" in figures:
            yield (*first, LABELS[side], "**failed**, see below", *[""] * 5)
            continue
        seconds = figures["seconds"]
        unit, factor = ("s", 1) if seconds["median"] >= 1 else ("ms", 1000)
        median, low, high = (digits(factor * seconds[key]) for key in ("median", "low", "high"))
        yield (*first, LABELS[side] + remark(figures), f"{median} {unit} ({low} to {high})",
               RATIO.format(**figures["ratio"]) if figures["ratio"] and i else "",
               RATIO.format(**figures["speedup"]) if figures["speedup"] and side not in PEERS else "",
               digits(figures["tokens_per_second"]) if figures["tokens_per_second"] else "",
               f"{row['floor_seconds'] / seconds['median']:.0%}" if row["floor_seconds"] else "",
               f"{figures['memory'] / 1e6:,.0f} MB" if figures["memory"] else "")


def remark(figures):
    """Return a remark if a side's result differs from the first's; for whole runs, the mean of their last losses."""
    if "curves" in figures:
        loss = np.mean([curve[-1][1] for curve in figures["curves"]])
        return f", {figures['preset']}, validation loss {loss:.4f}" + ("" if figures["same"] else ", **not reached**")
    return "" if figures["same"] else ", **other result**"


def losses(name, sides):
    """Return a table of the validation losses by step of whole runs, a line for each side and seed; or None."""
    runs = {(LABELS[side], figures["preset"], str(seed)): dict(curve) for side, figures in sides.items()
            for seed, curve in enumerate(figures.get("curves", ()))}
    steps = sorted({step for curve in runs.values() for step in curve})
    header = (f"{name}: validation loss at step", "preset", "seed", *map(str, steps))
    return table(header, [(*run, *(f"{curve[step]:.4f}" if step in curve else "" for step in steps))
                          for run, curve in runs.items()]) if runs else None


def digits(number):
    """Format a number with three significant digits, or as an integer."""
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}".rstrip(".")


def draw(results, path):
    """Draw a bar for each side of each row: its time as a multiple of the first side's."""
    bars = [(f"{name}, {LABELS[side]}", figures["ratio"]["median"], f"C{list(LABELS).index(side)}")
            for name, row in results["rows"].items() for side, figures in row["sides"].items() if figures.get("ratio")]
    if bars and find_spec("matplotlib"):
        from matplotlib.figure import Figure

        labels, ratios, colors = zip(*reversed(bars), strict=True)
        figure = Figure(figsize=(7, 1 + 0.25 * len(bars)), layout="constrained")
        panel = figure.subplots()
        panel.bar_label(panel.barh(labels, ratios, color=colors), fmt="%.2f", padding=2)
        panel.set_title("Time as a multiple of the first side's (less is better)")
        figure.savefig(path)
