"""Draw the loss curve of a run as a PNG (needs the extra "plot")."""

import io
import os
import warnings
from pathlib import Path

from npgpt.checks import require
from npgpt.errors import UserError, one_line
from npgpt.files import write_atomically
from npgpt.training.metrics import read_metrics

STYLES = {
    "loss": {"label": "batch", "color": "0.75", "linewidth": 1},
    "train_loss": {"label": "train", "marker": "."},
    "val_loss": {"label": "validation", "marker": "."},
}


def add_arguments(parser):
    parser.add_argument("run", nargs="?", default="out", help="the folder of a run; by default out")
    parser.add_argument(
        "--out", help="the picture to write; by default loss.png in the run's folder"
    )


def run_plot(args):
    print(save_picture(args.run, args.out))


def save_picture(run, out=None):
    """Draw the loss curve of a run, and return the path of the picture.

    run: its folder, where the picture is written unless `out` is given. Raises UserError if
    matplotlib is missing, if there are no measurements, or if it cannot write files with the suffix
    of `out`; OSError.
    """
    records = read_metrics(run)
    if not records:
        raise UserError(f"{run} has no measurements yet: train some steps first")
    # It draws to a file; matplotlib refuses to be imported with a backend that it does not know.
    os.environ["MPLBACKEND"] = "agg"
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('drawing needs matplotlib: pip install "npgpt[plot]"') from None
    target = Path(out or Path(run) / "loss.png")
    data = io.BytesIO()
    kind = target.suffix[1:].lower() or "png"
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    is_known = kind in figure.canvas.get_supported_filetypes()
    require("the suffix of --out", kind, is_known, "png, svg or pdf")
    with warnings.catch_warnings(action="ignore"):  # the font may lack characters of the title
        draw_losses(figure, records, one_line(f"Training in {run}", 80))
        figure.savefig(data, format=kind)
    write_atomically(target, data.getvalue(), follow=bool(out))
    return target


def draw_losses(figure, records, title):
    """Draw the losses of batches and evaluations."""
    axes = figure.add_subplot()
    for key, style in STYLES.items():
        found = {record["step"]: record[key] for record in records if key in record}
        axes.plot([*found], [*found.values()], **style)
    if found:
        best = min(found, key=found.__getitem__)
        text = f"best {found[best]:.4f}"
        axes.annotate(text, (best, found[best]), (0, 12), textcoords="offset points", ha="right")
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.set_title(title, parse_math=False, usetex=False)  # a folder's name is not a formula
    axes.grid(alpha=0.3)
    axes.legend()
