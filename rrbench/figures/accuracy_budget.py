"""Accuracy against budget: what remains, with and without rejection, as the attack may move farther."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.figures.scored import Victim, is_replaced, one_place, preference, provenance_text, victim_label, victims_of
from rrbench.figures.style import NORMS, Look, finish, legend_below, look, panels, styled
from rrbench.metrics.columns import LABELS
from rrbench.names import radius_text, unknown
from rrbench.rows.notes import is_weak
from rrbench.rows.row import ResultRow, order
from rrbench.rows.weak_attacks import with_weak_notes

METRICS = ("acc_all", "acc_tpr95", "deploy_robust")
WIDE = 16  # largest over smallest radius: above it the axis is logarithmic


def draw_accuracy_budget(
    rows: Sequence[ResultRow],
    attack: str | None = None,
    metrics: Sequence[str] = METRICS,
    beside: Sequence[ResultRow] = (),
) -> Figure:
    """Draw a line of panels for each norm: accuracy, TPR-95 and robust, or some of them.

    `rows` are of one data set and network, as `read_rows(folder)` gives them. Radius 0 is the clean row. All points use
    one attack, so that they compare: `attack`, or the one measured at most budgets. Bands are the rows' intervals.
    A hollow point means that other `rows`, or those `beside` them, show its attack to be weak.
    """
    doubted = dict(zip(beside, with_weak_notes(beside), strict=True))
    noted = with_weak_notes(rows) if not beside else [doubted[row] for row in rows]
    name, curves = by_victim(noted, attack)
    norms = sorted({norm for norm, _ in curves}, key=lambda norm: norm != "linf")
    victims = list(dict.fromkeys(victim for _, victim in curves))
    used = [row for points in curves.values() for row in points]
    labels = {
        one: _label(one, [row for (_, own), points in curves.items() if own == one for row in points])
        for one in victims
    }
    with styled():
        # The legend takes space from the panels.
        columns = 1 if len(metrics) == 1 else 2
        height = 2.4 + 0.16 * len(victims) / columns / len(norms)
        figure, axes = panels(len(norms), len(metrics), width=2.6, height=height)
        for panel, (norm, metric) in zip(axes, product(norms, metrics), strict=True):
            for index, victim in enumerate(victims):
                _draw_curve(panel, curves.get((norm, victim), []), metric, look(index), labels[victim])
            _mark_radii(panel, [row for key, points in curves.items() if key[0] == norm for row in points])
            panel.set(xlabel=f"{NORMS[norm]} radius", ylabel=f"{LABELS[metric]} (%)", ylim=(0, 102))
        legend_below(figure, axes, columns)
        doubt = "; hollow: too weak, as other rows show" * any(map(is_weak, used))
        finish(figure, f"{name}, {provenance_text(used)}{doubt}")
    return figure


def _draw_curve(panel: Axes, rows: Sequence[ResultRow], metric: str, style: Look, label: str) -> None:
    """Draw a victim's curve: hollow points where the attack was too weak, a band where the metric has an interval."""
    points = [row for row in rows if getattr(row, metric) is not None]
    weak = list(filter(is_weak, points))
    radii = [float(radius(row)) for row in points]
    values = [getattr(row, metric) for row in points]
    panel.plot(radii, values, color=style.color, linestyle=style.linestyle, marker=style.marker, label=label)
    panel.plot(
        [float(radius(row)) for row in weak],
        [getattr(row, metric) for row in weak],
        linestyle="none",
        marker=style.marker,
        color=style.color,
        markerfacecolor="white",
    )
    if metric == "acc_tpr95":
        low, high = ([getattr(row, f"{metric}_{end}") for row in points] for end in ("low", "high"))
        panel.fill_between(radii, low, high, color=style.color, alpha=0.15, linewidth=0)


def _mark_radii(panel: Axes, rows: Sequence[ResultRow]) -> None:
    """Put a tick at each radius, as an exact fraction."""
    ticks = sorted({radius(row) for row in rows})
    smallest = next((float(tick) for tick in ticks if tick), 1.0)
    if float(ticks[-1]) > WIDE * smallest:
        panel.set_xscale("symlog", base=2, linthresh=smallest, linscale=0.5)
        panel.minorticks_off()
    panel.set_xticks(
        [float(tick) for tick in ticks],
        [radius_text(tick) for tick in ticks],
        rotation=60,
        ha="right",
        rotation_mode="anchor",
        fontsize=6,
    )


def by_victim(rows: Sequence[ResultRow], attack: str | None) -> tuple[str, dict[tuple[str, Victim], list[ResultRow]]]:
    """Return the attack, and {(norm, victim): rows, clean first, then growing radii}."""
    one_place(rows)
    done = [row for row in rows if row.status == "ok"]
    measured = sorted((row for row in done if not is_replaced(row, done)), key=preference)
    attacked = [row for row in measured if row.eps]
    if not attacked:
        raise UseError("no row has a budget: accuracy against budget needs an attack such as pgd10")
    name = attack or _most_budgets(attacked)
    if name not in {row.attack for row in attacked}:
        raise unknown("attack in these results:", name, {row.attack for row in attacked})
    of = victims_of(measured)
    found: dict[tuple[str, Victim], dict[Fraction, ResultRow]] = {}
    for row in attacked:
        if row.attack == name:
            found.setdefault((row.norm, of[row]), {}).setdefault(radius(row), row)
    for (_, victim), points in found.items():
        for row in measured:
            if row.attack == "clean" and of[row] == victim:
                points.setdefault(Fraction(0), row)
    ordered = sorted(found.items(), key=lambda item: (item[0][0] != "linf", order(next(iter(item[1].values())))))
    return name, {key: [points[at] for at in sorted(points)] for key, points in ordered}


def _label(victim: Victim, rows: Sequence[ResultRow]) -> str:
    """Name a victim, which these rows are of, with its clean coverage: rejecting all would make `robust` 100."""
    coverage = next((row.deploy_coverage for row in rows if row.attack == "clean"), None)
    label = victim_label(rows[0], victim.mark)
    return label if coverage is None else f"{label}, clean {LABELS['deploy_coverage']} {coverage:.1f} %"


def radius(row: ResultRow) -> Fraction:
    """Return a row's radius; 0 if clean."""
    return Fraction(row.eps or 0)


def _most_budgets(rows: Sequence[ResultRow]) -> str:
    """Name the attack measured at most budgets; of equals, the one that leaves the least accuracy."""
    budgets = Counter(attack for attack, _, _ in {(row.attack, row.norm, row.eps) for row in rows})
    left: dict[str, float] = {}
    for row in rows:
        left[row.attack] = min(left.get(row.attack, 100.0), 100.0 if row.acc_all is None else row.acc_all)
    return min(budgets, key=lambda name: (-budgets[name], left[name], name))
