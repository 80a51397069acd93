"""Arrays and losses that show themselves: as pictures in a notebook (matplotlib), as numbers elsewhere."""

import io
from typing import Any

import numpy as np

COLUMNS = 3
CORNERS = np.array([[-0.5, 0.5, 0.5, -0.5, -0.5], [-0.5, -0.5, 0.5, 0.5, -0.5]])       # of the frame of a cell


class Picture:
    """What `draw` draws into a figure of matplotlib, if it is installed."""

    def draw(self, figure: Any) -> None:
        raise NotImplementedError

    def _repr_png_(self) -> bytes | None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return None
        figure, data = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained"), io.BytesIO()
        self.draw(figure)
        figure.savefig(data, format="png")
        return data.getvalue()


class Arrays(Picture, dict[str, np.ndarray]):
    """Arrays by name. In a notebook each is a picture: red positive, blue negative, its largest cell framed.

    All axes but the last are rows. Without matplotlib, and in a terminal, they are numbers.
    """

    def __repr__(self) -> str:
        return "\n".join(f"{name} {np.shape(array)}\n{array}" for name, array in self.items())

    def draw(self, figure: Any) -> None:
        n_rows, n_columns = -(-len(self) // COLUMNS), min(COLUMNS, len(self))
        figure.set_size_inches(3.2 * n_columns, 2.2 * n_rows)
        panels = figure.subplots(n_rows, n_columns, squeeze=False).flat
        for axes, (name, array) in zip(panels, self.items(), strict=False):
            cells = np.asarray(array, float).reshape(-1, (np.shape(array) or (1,))[-1])
            size = np.abs(np.nan_to_num(cells, posinf=0.0, neginf=0.0))
            most = size.max(initial=0.0) or 1.0
            axes.imshow(cells, "RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
            title = f"{name} {np.shape(array)}"
            if size.any():
                row, column = np.unravel_index(size.argmax(), size.shape)
                axes.plot(column + CORNERS[0], row + CORNERS[1], color="gold", clip_on=False)
                index = ", ".join(map(str, np.unravel_index(size.argmax(), np.shape(array))))
                title += f"\nlargest: {cells[row, column]:.3g} at [{index}]"
            axes.set_title(title, fontsize=8, parse_math=False)
        for axes in panels.base.flat:
            axes.set_axis_off()


def compared_arrays(yours, true):
    """Return a gradient, the true one, and their difference if the shapes are equal."""
    arrays = {"yours": np.asarray(yours), "true": np.asarray(true)}
    return Arrays(arrays | ({"difference": yours - true} if np.shape(yours) == np.shape(true) else {}))


class Losses(Picture, dict[str, list[float]]):
    """Losses of each step, by whose they are; in a notebook a curve for each."""

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}"
                         for name, losses in self.items())

    def draw(self, figure: Any) -> None:
        axes = figure.add_subplot()
        for i, (name, losses) in enumerate(self.items()):
            axes.plot(losses, label=f"{name}: {losses[-1]:.4f}", linewidth=3 - 2 * i, alpha=0.5 + 0.5 * i)
        axes.set(xlabel="step", ylabel="loss (nats per token)")
        axes.grid(alpha=0.3)
        axes.legend()
