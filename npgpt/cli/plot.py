"""Draw the loss curve of a run as a PNG (needs the extra "plot")."""

from pathlib import Path

from npgpt.checks import check
from npgpt.errors import UserError
from npgpt.files import atomic_writer
from npgpt.training.metrics import read_metrics


def add_arguments(parser):
    parser.add_argument("run", nargs="?", default="out", help="the folder of a run; by default out")
    parser.add_argument("--out", help="the picture to write; by default loss.png in the run's folder")


def run(args):
    print(draw(args.run, args.out))


def draw(run, out=None):
    """Draw the loss curve of a run, and return the path of the picture. run: its folder. out: by default its loss.png.

    Raises: UserError if matplotlib is missing, there are no measurements, or out has a suffix that it cannot write;
    OSError if it cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('drawing needs matplotlib: pip install "npgpt[plot]"') from None
    records = read_metrics(run)
    steps = [record for record in records if "loss" in record]
    evaluations = [record for record in records if {"train_loss", "val_loss"} <= record.keys()]
    if not records:
        raise UserError(f"{run} has no measurements yet: train some steps first")
    target = Path(out or Path(run) / "loss.png")
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([r["step"] for r in steps], [r["loss"] for r in steps], color="0.75", linewidth=1, label="batch")
    for key, label in (("train_loss", "train"), ("val_loss", "validation")):
        axes.plot([r["step"] for r in evaluations], [r[key] for r in evaluations], marker=".", label=label)
    if evaluations:
        best = min(evaluations, key=lambda record: record["val_loss"])
        axes.annotate(f"best {best['val_loss']:.4f}", (best["step"], best["val_loss"]), textcoords="offset points",
                      xytext=(0, 12), ha="right")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=f"Training in {run}")
    axes.grid(alpha=0.3)
    axes.legend()
    kind = target.suffix[1:].lower() or "png"
    check("the suffix of --out", kind, kind in figure.canvas.get_supported_filetypes(), "png, svg or pdf")
    with atomic_writer(target) as file:
        figure.savefig(file, format=kind)
    return target
