"""The joint number against the share of right clean answers that a threshold keeps: what each choice of it buys."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from rrbench.figures.risk_coverage import at_its_boldest, by_budget
from rrbench.figures.scored import Scored, provenance_text, victim_label, victims_of
from rrbench.figures.style import finish, legend_below, look, panels, styled, typeset
from rrbench.metrics.columns import LABELS
from rrbench.metrics.deployment import joint_where_kept
from rrbench.metrics.tallies import KEPT_PERCENT
from rrbench.rows.row import order
from rrbench.rows.tables import budget_text

KEPT = np.linspace(0.5, 1, 101)


def draw_joint_kept(cells: Sequence[Scored], attack: str | None = None) -> Figure:
    """Draw a panel for each budget, and for each attack if several are named, with a curve for every victim.

    The cells are chosen as for the risk-coverage curve. Thresholds come from all clean inputs that may fix them, so at
    95 % a curve is near the rows' number, which is cross-fitted. The dotted line is at that share. There is no band.
    """
    groups = {key: group for key, group in by_budget(cells, attack).items() if key}
    used = [cell.row for group in groups.values() for cell in group]
    of = victims_of(used)
    victims = list(dict.fromkeys(of[row] for row in sorted(used, key=order)))
    with styled():
        figure, axes = panels(1, len(groups), width=3.2, height=2.5 + 0.08 * len(victims))
        lowest, highest = 100.0, 0.0
        for panel, group in zip(axes, groups.values(), strict=True):
            for cell in group:
                joint = joint_where_kept(cell.scores.clean, *at_its_boldest(cell.scores), KEPT)
                lowest, highest = min(lowest, float(joint.min())), max(highest, float(joint.max()))
                row = cell.row
                style = look(victims.index(of[row]))
                panel.plot(
                    100 * KEPT,
                    joint,
                    color=style.color,
                    linestyle=style.linestyle,
                    marker=style.marker,
                    markevery=20,
                    label=victim_label(row, of[row].mark),
                )
            attacks = {cell.row.attack for cell in group}
            named = attacks.pop() if len(attacks) == 1 else "the worst attack on each"
            panel.axvline(KEPT_PERCENT, color="0.6", linestyle=":", linewidth=1)
            panel.set(title=f"{typeset(budget_text(group[0].row))}, {named}")
            panel.set(xlabel="right clean answers kept (%)", ylabel=f"{LABELS['deploy_joint']} (%)")
        for panel in axes:  # panels compare only on one scale
            panel.set(xlim=(100 * KEPT[0], 100), ylim=(0.95 * lowest, 1.03 * highest))
        legend_below(figure, axes, columns=2)
        finish(figure, provenance_text(used))
    return figure
