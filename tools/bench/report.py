"""The figures of a measurement as JSON and as a Markdown table."""

import json
import os

from shapes import PEERS

LABELS = {
    "npgpt": "npgpt",
    "fast": "npgpt, fast",
    "xla": "npgpt, XLA",
    "cupy": "npgpt, CuPy",
    "reference": "npgpt, reference lines",
    "old": "npgpt, older",
    "torch": "PyTorch",
    "compile": "torch.compile",
    "transformers": "transformers",
}
HEADER = (
    "row",
    "what",
    "side",
    "time",
    "times the first's",
    "PyTorch's time / this",
    "tokens/s",
    "memory",
)
RATIO = "{median:.2f} ({low:.2f} to {high:.2f})"


def write_report(results, folder):
    """Write bench.json and bench.md into a folder."""
    for name, text in (
        ("bench.json", json.dumps(results, indent=1) + "\n"),
        ("bench.md", markdown(results)),
    ):
        (folder / f"{name}.part").write_text(text, encoding="utf-8")
        os.replace(folder / f"{name}.part", folder / name)  # whole, even if this process is killed


def markdown(results):
    """Return the machine, a table of the rows, and the tracebacks of the sides that failed."""
    rows = [line for name, row in results["rows"].items() for line in lines(name, row)]
    parts = [
        ", ".join(f"{key} {value}" for key, value in results["machine"].items() if value),
        "\n".join(
            "| " + " | ".join(line) + " |" for line in (HEADER, ["---"] * len(HEADER), *rows)
        ),
    ]
    parts += [
        f"{name}, {side}:\n\n```\n{figures['failed']}\n```"
        for name, row in results["rows"].items()
        for side, figures in row["sides"].items()
        if "failed" in figures
    ]
    return "\n\n".join(parts) + "\n"


def lines(name, row):
    """Return the cells of a row, a line for each side."""
    for i, (side, figures) in enumerate(row["sides"].items()):
        first = ("", "") if i else (name, row["description"])
        if "failed" in figures:
            yield (*first, LABELS[side], "**failed**, see below", *[""] * 4)
            continue
        seconds = figures["seconds"]
        unit, factor = ("s", 1) if seconds["median"] >= 1 else ("ms", 1000)
        median, low, high = (digits(factor * seconds[key]) for key in ("median", "low", "high"))
        yield (
            *first,
            LABELS[side] + ("" if figures["same"] else ", **other result**"),
            f"{median} {unit} ({low} to {high})",
            RATIO.format(**figures["ratio"]) if figures["ratio"] and i else "",
            RATIO.format(**figures["speedup"]) if figures["speedup"] and side not in PEERS else "",
            digits(figures["tokens_per_second"]),
            f"{figures['memory'] / 1e6:,.0f} MB",
        )


def digits(number):
    """Format a number with three significant digits, or as an integer."""
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}".rstrip(".")
