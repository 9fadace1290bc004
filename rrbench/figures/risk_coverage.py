"""Robust risk-coverage curves: how often an accepted answer is wrong, against how much is answered."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rrbench.compute.seeds import derive
from rrbench.figures.scored import (
    Scored,
    Victim,
    is_replaced,
    one_place,
    preference,
    provenance_text,
    victim_label,
    victims_of,
)
from rrbench.figures.style import finish, legend_below, look, panels, styled, typeset
from rrbench.metrics.measures import risk_coverage
from rrbench.metrics.resampling import risk_coverage_band
from rrbench.names import split_list, unknown
from rrbench.rows.row import ResultRow, order
from rrbench.rows.scores import Scores
from rrbench.rows.tables import budget_text

Floats = NDArray[np.float64]
SHOWN_FROM = 0.05  # coverage: below it a handful of inputs decides, and would set the scale
GRID = np.linspace(SHOWN_FROM, 1, 96)  # the coverages at which the band is computed
RESAMPLES = 500
POINTS = 400  # drawn of a curve, at most
COLUMNS = 3


class Curve(NamedTuple):
    """One rejector under one attack, in fractions."""

    row: ResultRow
    coverage: Floats  # at the operating points
    risk: Floats
    low: Floats  # at GRID
    high: Floats


def draw_risk_coverage(cells: Sequence[Scored], attack: str | None = None) -> Figure:
    """Draw a panel for clean inputs and one for each budget, with a curve for every rejector of every checkpoint.

    `cells` are of one data set and network, as `read_scored(folder)` returns them. Under a budget a rejector is shown
    under the attack that harms it most (the largest AURC), or only under `attack`; several attacks, separated by
    commas, have a panel each. Bands are 95 % bootstrap intervals over examples.
    """
    groups = by_budget(cells, attack)
    used = [cell.row for group in groups.values() for cell in group]
    of = victims_of(used)
    victims = list(dict.fromkeys(of[row] for row in sorted(used, key=order)))
    # Then titles name the attack, and all panels share one legend.
    is_one = all(len({cell.row.attack for cell in group}) == 1 for group in groups.values())
    with styled():
        lines = -(-len(groups) // COLUMNS)
        # Spread panels evenly over the lines: four become two and two.
        columns = -(-len(groups) // lines)
        # Legends take space from the panels.
        room = (0.08 if columns > 1 else 0.16) * len(victims) / lines if is_one else 0.12 * len(victims)
        figure, axes = panels(lines, columns, width=2.6, height=2.3 + room)
        for unused in axes[len(groups) :]:
            unused.remove()
        for panel, group in zip(axes, groups.values(), strict=False):
            curves = [curve_of(cell) for cell in group]
            budget = budget_text(group[0].row)
            for curve in curves:
                row = curve.row
                label = victim_label(row, of[row].mark) + (f": {row.attack}" if budget and not is_one else "")
                _draw_curve(panel, curve, victims.index(of[row]), label)
            title = f"{typeset(budget)}, {group[0].row.attack}" if budget and is_one else typeset(budget) or "clean"
            highest = max(float(part.max()) for curve in curves for part in (_shown(curve)[1], curve.high))
            panel.set(xlim=(0, 102), ylim=(0, max(105 * highest, 1)), title=title)
            panel.set(xlabel="answered (%)", ylabel="wrong among the answered (%)")
            if not is_one:
                panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=6)
        if is_one:
            legend_below(figure, axes[: len(groups)], columns=2 if columns > 1 else 1)
        finish(figure, provenance_text(used))
    return figure


def by_budget(cells: Sequence[Scored], attack: str | None = None) -> dict[str, list[Scored]]:
    """Return {budget: a cell for each rejector of each checkpoint}; clean ("") first, then linf, small radii first.

    Of several attacks the keys are budget and attack, in the order in which the attacks are named. Attacks without a
    radius are left out; a cell measured several times is taken once (`preference`). A rejector that was never attacked
    in this way is not shown on clean inputs either, unless none was attacked.
    """
    one_place(cell.row for cell in cells)
    all_rows = [cell.row for cell in cells]
    cells = [cell for cell in cells if not is_replaced(cell.row, all_rows)]
    names = split_list(attack) if attack is not None else []
    is_several = len(names) > 1
    fitting = [
        cell
        for cell in cells
        if cell.row.attack == "clean" or (cell.row.eps and (not names or cell.row.attack in names))
    ]
    of = victims_of(cell.row for cell in cells)
    attacked = {of[cell.row] for cell in fitting if cell.row.eps}
    fitting = [cell for cell in fitting if not attacked or of[cell.row] in attacked]
    known = {cell.row.attack for cell in cells if cell.row.eps}
    for name in names:
        if name not in known:
            raise unknown("attack in these results:", name, known)
    once: dict[tuple[str, str, Victim, str], Scored] = {}
    for cell in sorted(fitting, key=lambda cell: preference(cell.row)):
        row = cell.row
        once.setdefault((row.norm, row.eps, of[row], row.attack), cell)
    worst: dict[tuple[object, ...], Scored] = {}
    for key, cell in sorted(once.items(), key=lambda item: -(item[1].row.aurc or 0)):
        worst.setdefault(key if is_several else key[:3], cell)

    def place(cell: Scored) -> tuple[object, ...]:
        row = cell.row
        return *budget_order(row), names.index(row.attack) if is_several and row.eps else 0, order(row)

    groups: dict[str, list[Scored]] = {}
    for cell in sorted(worst.values(), key=place):
        budget = budget_text(cell.row)
        groups.setdefault(f"{budget}, {cell.row.attack}" if budget and is_several else budget, []).append(cell)
    return groups


def budget_order(row: ResultRow) -> tuple[bool, bool, Fraction]:
    """Sort key of budgets: clean, linf, l2, each from small to large."""
    return bool(row.norm), row.norm != "linf", Fraction(row.eps or 0)


def curve_of(cell: Scored) -> Curve:
    """Compute a cell's curve and band from its scores."""
    certainty, correct = at_its_boldest(cell.scores)
    low, high = risk_coverage_band(certainty, correct, GRID, RESAMPLES, derive(cell.row.seed, "bootstrap"))
    return Curve(cell.row, *risk_coverage(certainty, correct), low, high)


def at_its_boldest(scores: Scores) -> tuple[Floats, NDArray[np.bool_]]:
    """Return certainty and correctness of the boldest wrong image that the attack saw, or of its answer if it saw none.

    That image is an attacker's best choice at every threshold.
    """
    is_wrong = scores.boldest_certainty > -np.inf
    return np.where(is_wrong, scores.boldest_certainty, scores.certainty), scores.correct & ~is_wrong


def _shown(curve: Curve) -> tuple[Floats, Floats]:
    """Return the part of a curve that is drawn."""
    start = int((curve.coverage >= SHOWN_FROM).argmax())
    # Ten thousand operating points would take megabytes; a few hundred look the same. The last one counts everything.
    step = -(-(len(curve.coverage) - start) // POINTS)
    chosen = np.unique(np.append(np.arange(start, len(curve.coverage), step), len(curve.coverage) - 1))
    return curve.coverage[chosen], curve.risk[chosen]


def _draw_curve(panel: Axes, curve: Curve, index: int, label: str) -> None:
    style = look(index)
    coverage, risk = _shown(curve)
    panel.plot(
        100 * coverage,
        100 * risk,
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markevery=np.searchsorted(coverage, np.linspace(0.2, 1, 5) - 1e-9).tolist(),
        drawstyle="steps-pre",
        label=label,
    )
    panel.fill_between(100 * GRID, 100 * curve.low, 100 * curve.high, color=style.color, alpha=0.15, linewidth=0)
