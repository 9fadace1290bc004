"""Figures 1, 3 and 6: which attacked inputs pass the coupled filter, and how R-Con separates them (section 4)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.figures.certainty import Booleans, CoupledScores, Floats, couple
from rrbench.figures.request import Need, PaperRequest
from rrbench.figures.scored import Scored, provenance_text
from rrbench.figures.style import BLACK, GREY, RIGHT, WRONG, XI, finish, legend_below, panels, styled, typeset
from rrbench.figures.style import LOG2_TAU as TAU_LABEL
from rrbench.rows.tables import budget_text

LOG2_TAU = (0, -1, -2, -3)  # the paper gives no list for Figures 3 and 6
NEED = Need("pgd-at", "rr", "pgd10", "pgd-at+rr")


def figure1(request: PaperRequest) -> Figure:
    """Draw R-Con against confidence at temperature 1."""
    (cell,) = request.find(NEED)
    with styled():
        figure, (panel,) = panels(1, 1, width=4.0, height=3.6)
        draw_filtered(panel, coupled_at(cell, 0), 0)
        _finish(figure, [panel], cell, columns=2)
    return figure


def figure3(request: PaperRequest) -> Figure:
    """Draw Figure 1 for several temperatures."""
    (cell,) = request.find(NEED)
    with styled():
        figure, axes = panels(1, len(LOG2_TAU), width=2.3, height=3.0)
        for panel, log2_tau in zip(axes, LOG2_TAU, strict=True):
            draw_filtered(panel, coupled_at(cell, log2_tau), log2_tau)
            panel.set_ylabel("R-Con" if panel is axes[0] else "")
        _finish(figure, axes, cell, columns=4)
    return figure


def figure6(request: PaperRequest) -> Figure:
    """Draw confidence against the xi-error for the temperatures of Figure 3, right inputs above wrong ones."""
    (cell,) = request.find(NEED)
    with styled():
        figure, axes = panels(2, len(LOG2_TAU), width=2.3, height=2.4)
        for index, log2_tau in enumerate(LOG2_TAU):
            points = coupled_at(cell, log2_tau)
            upper, lower = axes[index], axes[index + len(LOG2_TAU)]
            # In two panels: among ten thousand inputs, the wrong ones would cover the right ones.
            _scatter(upper, points.xi, points.confidence, points.correct, "right", RIGHT, "o")
            _scatter(lower, points.xi, points.confidence, ~points.correct, "wrong", WRONG, "X")
            upper.set_title(_title(points, log2_tau))
            xi = np.linspace(0, 1, 101)
            for panel in (upper, lower):
                panel.plot(xi, 1 / (2 - xi), color=BLACK, label=f"confidence = 1 / (2 - {XI})")
                panel.set(xlim=(-0.05, 2.05), ylim=(0, 1.03), xlabel=f"{XI}-error")
        axes[0].set_ylabel("confidence of right inputs")
        axes[len(LOG2_TAU)].set_ylabel("confidence of wrong inputs")
        _finish(figure, axes, cell, columns=3)
    return figure


def coupled_at(cell: Scored, log2_tau: float) -> CoupledScores:
    """Compute the plotted values of a cell."""
    scores = cell.whole_scores
    if scores.head.shape[1] != 1:
        raise UseError(f"the scores of {cell.row.trained_as} {cell.row.rejector} hold no output of RR's head")
    return couple(scores.labels, scores.logits, scores.head, 2.0**log2_tau)


def draw_filtered(panel: Axes, points: CoupledScores, log2_tau: float) -> None:
    """Draw R-Con against confidence; inputs that pass and inputs that do not look different."""
    rejected = ~points.passes
    _scatter(panel, points.confidence, points.rectified, rejected & points.correct, "right, filtered out", GREY, "o", 5)
    _scatter(
        panel, points.confidence, points.rectified, rejected & ~points.correct, "wrong, filtered out", GREY, "x", 5
    )
    passing_right, passing_wrong = points.passes & points.correct, points.passes & ~points.correct
    _scatter(panel, points.confidence, points.rectified, passing_right, "right, passes", RIGHT, "o")
    _scatter(panel, points.confidence, points.rectified, passing_wrong, "wrong, passes", WRONG, "X", 22, edge=BLACK)
    panel.axhline(0.5, color=BLACK, linestyle="--", linewidth=1)
    panel.set(xlim=(0, 1.03), ylim=(-0.03, 1.03), xlabel="confidence", ylabel="R-Con")
    panel.set_title(_title(points, log2_tau))


def _scatter(
    panel: Axes,
    x: Floats,
    y: Floats,
    chosen: Booleans,
    label: str,
    color: str,
    marker: str,
    size: float = 12,
    edge: str | None = None,
) -> None:
    shrink = min(1.0, (400 / len(x)) ** 0.5)  # ten thousand points of full size would be one blot
    # As pixels even in a vector file: ten thousand points would take megabytes.
    panel.scatter(
        x[chosen],
        y[chosen],
        s=size * shrink,
        c=color,
        marker=marker,
        edgecolors=edge,
        linewidths=max(0.6 * shrink, 0.25),
        alpha=max(0.8 * shrink, 0.4),
        label=label,
        rasterized=True,
    )


def _title(points: CoupledScores, log2_tau: float) -> str:
    return f"{TAU_LABEL} = {log2_tau}: {100 * points.passes.mean():.1f} % pass"


def _finish(figure: Figure, axes: list[Axes], cell: Scored, columns: int) -> None:
    legend_below(figure, axes, columns)
    row = cell.row
    finish(figure, f"{row.trained_as}, {row.attack} {typeset(budget_text(row))}, {provenance_text([row])}")
