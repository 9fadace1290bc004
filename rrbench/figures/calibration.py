"""Figure 8: reliability diagrams, and the expected calibration error."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.figures.request import Need, PaperRequest
from rrbench.figures.scored import Scored, provenance_text
from rrbench.figures.style import BLACK, BLUE, ORANGE, finish, legend_below, panels, styled, typeset
from rrbench.metrics.measures import reliability
from rrbench.rows.tables import budget_text

NEEDS = tuple(Need("pgd-at", "confidence", attack, "pgd-at") for attack in ("clean", "pgd10"))


def figure8(request: PaperRequest) -> Figure:
    """Draw accuracy against confidence in the bins of `ece`, on clean and on attacked inputs."""
    cells = request.find(*NEEDS)
    with styled():
        figure, axes = panels(1, len(cells), width=3.0, height=3.1)
        for panel, cell in zip(axes, cells, strict=True):
            draw_reliability(panel, cell)
        axes[0].set_ylabel("accuracy")
        legend_below(figure, axes, columns=3)
        finish(figure, f"{cells[0].row.trained_as}, {provenance_text([cell.row for cell in cells])}")
    return figure


def draw_reliability(panel: Axes, cell: Scored) -> None:
    """Draw each bin's accuracy, and the gap to its mean confidence."""
    bins = reliability(cell.scores.correct, cell.scores.confidence)
    if bins is None:
        raise UseError(f"an infinite logit leaves the calibration of {cell.row.trained_as} undefined")
    filled = np.flatnonzero(bins.inputs)
    width = 1 / len(bins.inputs)
    centre = (filled + 0.5) * width
    accuracy = bins.right[filled] / bins.inputs[filled]
    gap = bins.gap[filled] / bins.inputs[filled]
    panel.bar(centre, accuracy, width, color=BLUE, edgecolor="white", linewidth=0.6, label="accuracy")
    panel.bar(
        centre, gap, width, bottom=accuracy, fill=False, edgecolor=ORANGE, hatch="////", linewidth=0.8,
        label="gap to the mean confidence",
    )  # fmt: skip
    panel.plot([0, 1], [0, 1], color=BLACK, linestyle="--", linewidth=1, label="perfect")
    row = cell.row
    attack = f"{row.attack} {typeset(budget_text(row))}".strip()
    error = np.abs(bins.gap).sum() / bins.inputs.sum()
    panel.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", title=f"{attack}: ECE {100 * error:.2f} %")
