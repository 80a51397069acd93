"""Arrays that show themselves: as pictures in a notebook (matplotlib), as numbers elsewhere."""

import io
from typing import Any

import numpy as np

COLUMNS = 3


class Arrays(dict[str, np.ndarray]):
    """Arrays by name. In a notebook each is a picture: red positive, blue negative.

    All axes but the last are rows. Without matplotlib, and in a terminal, they are numbers.
    """

    def __repr__(self) -> str:
        return "\n".join(f"{name} {np.shape(array)}\n{array}" for name, array in self.items())

    def _repr_png_(self) -> bytes | None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return None
        figure = Figure(dpi=110, layout="constrained")
        data = io.BytesIO()
        self.draw(figure)
        figure.savefig(data, format="png")
        return data.getvalue()

    def draw(self, figure: Any) -> None:
        n_rows = -(-len(self) // COLUMNS)
        n_columns = min(COLUMNS, len(self))
        figure.set_size_inches(3.2 * n_columns, 2.2 * n_rows)
        panels = figure.subplots(n_rows, n_columns, squeeze=False).flat
        for axes, (name, array) in zip(panels, self.items(), strict=False):
            cells = np.asarray(array, float).reshape(-1, (np.shape(array) or (1,))[-1])
            most = np.abs(cells).max(initial=0.0, where=np.isfinite(cells)) or 1.0
            axes.imshow(
                cells, "RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
            )
            axes.set_title(f"{name} {np.shape(array)}", fontsize=8, parse_math=False)
        for axes in panels.base.flat:
            axes.set_axis_off()


class Losses(dict[str, list[float]]):
    """Losses of each step, by whose they are."""

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: {len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}"
            for name, losses in self.items()
        )
