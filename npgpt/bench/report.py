"""The figures of a measurement as JSON, as a Markdown table and as a picture."""

import io
import json
from pathlib import Path

from npgpt.errors import UserError
from npgpt.files import write_atomically

LABELS = {"npgpt": "npgpt", "eager": "PyTorch", "compile": "torch.compile", "transformers": "transformers"}
COLORS = {"npgpt": "#0072B2", "eager": "#E69F00", "compile": "#CC79A7", "transformers": "#009E73"}  # Okabe and Ito's
HEADER = ("", "what", "side", "time", "times npgpt's", "tokens/s", "floor / time", "peak memory")
COLUMNS = 4         # of panels in the picture


def write_report(results, folder):
    """Write bench.json, bench.md and bench.png into a folder, each whole or not at all. Returns the files' names.

    The picture is left out where matplotlib is not installed.
    """
    folder = Path(folder)
    files = {"bench.json": (json.dumps(results, indent=1) + "\n").encode(), "bench.md": markdown(results).encode()}
    picture = png(results)
    if picture is not None:
        files["bench.png"] = picture
    for name, data in files.items():
        write_atomically(folder / name, data)
    return list(files)


def markdown(results):
    """The machine, a table with a row for each side of each shape, and a line for the scaling."""
    table = [row for name, shape in results["shapes"].items() if "sides" in shape for row in rows(name, shape)]
    parts = [machine_line(results)]
    if table:
        widths = [max(len(row[i]) for row in [HEADER, *table]) for i in range(len(HEADER))]
        lines = [HEADER, ["-" * width for width in widths], *table]
        parts.append("\n".join(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
            for line in lines))
        parts.append(
            "Medians of the rounds, in which the sides take turns, each in its own process; in brackets their 10th to "
            "90th percentile. A training step is loss and gradients, clipping and AdamW; its floor is the time of its "
            "matrix products at the highest rate that NumPy reached, that of a generated token the time of reading "
            "every weight once.")
    parts += [scaling_line(shape) for shape in results["shapes"].values() if "axes" in shape]
    return "\n\n".join(parts) + "\n"


def rows(name, shape):
    """The cells of a shape, a row for each side."""
    for side, figures in shape["sides"].items():
        first = (name, shape["description"]) if side == "npgpt" else ("", "")
        if "failed" in figures:
            yield (*first, LABELS[side], f"failed: {figures['failed'].replace('|', '/')}", "", "", "", "")
            continue
        floor, memory = figures["floor_share"], figures["peak_memory"]
        yield (*first, LABELS[side] + remark(side, figures),
               time_and_spread(**figures["seconds"]),
               "" if side == "npgpt" else "{median:.2f} ({low:.2f} to {high:.2f})".format(**figures["ratio"]),
               three_digits(figures["tokens_per_second"]),
               "" if floor is None else f"{floor:.0%}",
               "" if memory is None else f"{memory / 1e6:,.0f} MB")


def remark(side, figures):
    """What is to be said of a side's results."""
    if "validation_loss" in figures:
        return f", validation loss {figures['validation_loss']:.4f}"
    if "tokens_equal" in figures and side != "npgpt":
        return ", all tokens equal" if figures["tokens_equal"] else ", other tokens"
    return ""


def machine_line(results):
    """One line on where, with what and how long was measured."""
    machine = results["machine"]
    parts = [f"{machine['cpu']}, {count(results['threads'], 'core')} used"]
    if machine["memory"]:
        parts.append(f"{machine['memory'] / 2**30:.0f} GiB")
    parts += [machine["os"], f"Python {machine['python']}",
              f"NumPy {machine['numpy']} with {machine['blas']} {machine['blas_version']} "
              f"({machine['blas_architecture']})"]
    parts += [f"{label} {machine[name]}" for label, name in (("PyTorch", "torch"), ("transformers", "transformers"))
              if machine[name]]
    return f"{', '.join(parts)}; float32, {count(results['rounds'], 'round')}, {machine['date']}."


def scaling_line(shape):
    """By which powers the time of a step grows."""
    sides = dict.fromkeys(side for axis in shape["axes"].values() for side in axis["exponents"])
    powers = [f"{LABELS[side]} " + ", ".join(
        f"{axis_name(axis)}^{figures['exponents'][side]:.2f}" for axis, figures in shape["axes"].items()
        if side in figures["exponents"]) for side in sides]
    ranges = ", ".join(f"{axis_name(axis)} {figures['values'][0]} to {figures['values'][-1]}"
                       for axis, figures in shape["axes"].items())
    return f"Time grows as {'; '.join(powers)} ({ranges}; base: {shape['description']})."


def axis_name(axis):
    return "C" if axis == "n_embd" else axis


def count(n, what):
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def duration(seconds):
    """Seconds in three digits, as milliseconds where they are fewer than one."""
    return f"{three_digits(seconds)} s" if seconds >= 1 else f"{three_digits(1000 * seconds)} ms"


def time_and_spread(median, low, high):
    """Seconds as `duration` writes them, and the two ends of their spread in the same unit."""
    unit = 1 if median >= 1 else 1000
    return f"{duration(median)} ({three_digits(unit * low)} to {three_digits(unit * high)})"


def three_digits(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}".rstrip(".")


def png(results):
    """The picture as bytes: a panel with a bar for each side of each shape, and one for each axis of the scaling.

    None where there is nothing to draw, or nothing to draw with.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    bars = {name: shape for name, shape in results["shapes"].items() if "sides" in shape}
    curves = {axis: figures for shape in results["shapes"].values() for axis, figures in shape.get("axes", {}).items()}
    n_panels = len(bars) + len(curves)
    if not n_panels:
        return None
    n_columns = min(COLUMNS, max(2, n_panels))      # a single panel would be narrower than the title
    n_rows = -(-n_panels // n_columns)
    figure = Figure(figsize=(3.2 * n_columns + 0.8, 3.0 * n_rows + 0.8), dpi=120, layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flat
    for name, shape in bars.items():
        draw_bars(next(panels), name, shape)
    for axis, figures in curves.items():
        draw_curve(next(panels), axis, figures)
    for panel in panels:
        panel.set_axis_off()
    machine = results["machine"]
    figure.suptitle(f"Time, less is better\n{machine['cpu']}, {count(results['threads'], 'core')}, {machine['date']}",
                    fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def draw_bars(panel, name, shape):
    """A bar for each side, its time above it, and a line for the floor."""
    sides = list(shape["sides"])
    times = [figures.get("seconds", {"median": 0.0, "low": 0.0, "high": 0.0}) for figures in shape["sides"].values()]
    tallest = max(time["high"] for time in times)
    panel.bar(range(len(sides)), [time["median"] for time in times], color=[COLORS[side] for side in sides], width=0.6)
    for i, (time, figures) in enumerate(zip(times, shape["sides"].values(), strict=True)):
        panel.vlines(i, time["low"], time["high"], color="black", linewidth=1)
        panel.annotate("failed" if "failed" in figures else duration(time["median"]), (i, time["high"]), fontsize=8,
                       xytext=(0, 2), textcoords="offset points", ha="center")
    if shape["floor_seconds"]:
        panel.axhline(shape["floor_seconds"], color="0.4", linestyle="--", linewidth=1)
        panel.annotate("floor", (1, shape["floor_seconds"]), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                       textcoords="offset points", ha="right", fontsize=7, color="0.3")
    panel.set_xticks(range(len(sides)), [LABELS[side] for side in sides], fontsize=8)
    panel.set_xlim(-0.5, len(sides) - 0.3)
    panel.set_ylim(0, 1.15 * tallest)
    panel.set_yticks([])
    what, _, size = shape["description"].partition(", ")
    panel.set_title(f"{name}: {what}\n{size}", fontsize=8)
    panel.spines[["top", "right", "left"]].set_visible(False)


def draw_curve(panel, axis, figures):
    """The time of a step over one axis of the scaling, both in logarithms."""
    for side, seconds in figures["seconds"].items():
        label = f"{LABELS[side]}: {axis_name(axis)}^{figures['exponents'][side]:.2f}"
        panel.loglog(figures["values"], [1000 * s for s in seconds], color=COLORS[side], marker=".", label=label)
    panel.set_xticks(figures["values"], [str(value) for value in figures["values"]], fontsize=8)
    panel.minorticks_off()
    panel.tick_params(labelsize=8)
    panel.set_title(f"ms per step over {axis_name(axis)}", fontsize=8)
    panel.legend(fontsize=7)
    panel.grid(alpha=0.3)


def replace_between_markers(text, name, table):
    """The text with the table between <!-- name --> and <!-- /name -->, which must be there, once; else UserError."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begin, rest = text.partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end or text.count(opening) != 1 or text.count(closing) != 1:
        raise UserError(f"README.md needs the lines {opening} and {closing}, once and in this order: put them where "
                        "the table belongs")
    return f"{before}{opening}\n{table}{closing}{after}"
