"""Figure 4: RR under the five adaptive objectives, by the weight eta of their rejector term."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from rrbench.figures.request import PaperRequest, paper_etas
from rrbench.figures.scored import Scored, provenance_text, victim_label
from rrbench.figures.style import BLACK, ETA, GREY, LINES, finish, legend_below, look, panels, styled, typeset
from rrbench.metrics.columns import LABELS
from rrbench.names import show
from rrbench.rows.row import PERCENTAGES, ResultRow

TRAINED_AS, REJECTOR, ATTACK = "pgd-at+rr", "rr", "adaptive"
OBJECTIVES = ("ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)")
METRICS = ("acc_tpr95", "acc_all", "auc")


def figure4(request: PaperRequest) -> Figure:
    """Draw TPR-95, accuracy and AUC against eta, and the other rejectors under their worst attacks."""
    curves = curves_of(request)
    references = reference_rows(request.cells)
    used = [row for curve in curves.values() for row in curve.values()]
    etas = sorted({eta for curve in curves.values() for eta in curve})
    smallest = next((eta for eta in etas if eta > 0), 1.0)
    with styled():
        figure, axes = panels(1, len(METRICS), width=2.7, height=3.4 + 0.06 * len(references))
        for panel, metric in zip(axes, METRICS, strict=True):
            for index, (objective, curve) in enumerate(curves.items()):
                points = {eta: getattr(row, metric) for eta, row in curve.items() if getattr(row, metric) is not None}
                style = look(index)
                panel.plot(
                    list(points), list(points.values()),
                    color=style.color, linestyle=style.linestyle, marker=style.marker, label=objective,
                )  # fmt: skip
            for index, row in enumerate(references):
                if getattr(row, metric) is not None:
                    panel.axhline(
                        getattr(row, metric),
                        color=BLACK if row.trained_as == TRAINED_AS else GREY,
                        linestyle=LINES[index % len(LINES)],
                        linewidth=0.9,
                        label=f"{victim_label(row)}: {row.attack}",
                    )
            # Linear below the smallest positive weight and logarithmic above, so that 0 can be shown.
            panel.set_xscale("symlog", linthresh=smallest, linscale=0.5)
            panel.set_xlim(-0.2 * smallest, 1.8 * max(etas[-1], smallest))
            panel.set_xticks(etas, [show(eta) for eta in etas], rotation=60)
            panel.minorticks_off()
            panel.set(xlabel=ETA, ylabel=LABELS[metric] + (" (%)" if metric in PERCENTAGES else ""))
        legend_below(figure, axes, columns=3)
        finish(figure, f"{TRAINED_AS}, {typeset(request.budget)}, {provenance_text([*used, *references])}")
    return figure


def curves_of(request: PaperRequest) -> dict[str, dict[float, ResultRow]]:
    """Return {objective: {eta: row}} of RR; every objective must have every eta that any objective has."""
    found: dict[tuple[str, float], list[Scored]] = {}
    for cell in request.cells:
        name, settings = cell.attack
        is_single = name == ATTACK and len(settings["eta"]) == 1
        if is_single and (cell.row.trained_as, cell.row.rejector) == (TRAINED_AS, REJECTOR):
            found.setdefault((settings["objective"], float(settings["eta"][0])), []).append(cell)
    etas = sorted({eta for _, eta in found}) or paper_etas()
    absent = [(name, eta) for name in OBJECTIVES for eta in etas if (name, eta) not in found]
    if absent:
        # `rrbench run` takes all five objectives of an eta as one word, and does not repeat measured cells.
        wanted = [f"{ATTACK}(eta={show(eta)})" for eta in sorted({eta for _, eta in absent})]
        raise request.missing(
            _described(absent, bool(found)), frameworks=["pgd-at"], rejectors=[REJECTOR], attacks=wanted
        )
    return {name: {eta: _strongest(found[name, eta]) for eta in etas} for name in OBJECTIVES}


def _described(absent: Sequence[tuple[str, float]], is_begun: bool) -> list[str]:
    if not is_begun:
        return [f"{TRAINED_AS} {REJECTOR} under {ATTACK} at any single eta"]
    return [f"{ATTACK}({name},eta={show(eta)})" for name, eta in absent]


def _strongest(cells: Sequence[Scored]) -> ResultRow:
    """Return the preferred preset's row; of several, the one with most inputs, then most gradients."""
    preset = cells[0].row.preset
    return max(
        (cell.row for cell in cells if cell.row.preset == preset), key=lambda row: (row.n or 0, row.gradients or 0)
    )


def reference_rows(cells: Sequence[Scored]) -> list[ResultRow]:
    """Return the row with the lowest TPR-95, for each other rejector and for RR under other attacks.

    The paper does not say which attack its baselines are under; this is the worst one measured at this budget.
    """
    lowest: dict[tuple[str, str], ResultRow] = {}
    for cell in cells:
        row = cell.row
        victim = (row.trained_as, row.rejector)
        is_shown = victim == (TRAINED_AS, REJECTOR) or row.trained_as != TRAINED_AS
        is_adaptive_rr = victim == (TRAINED_AS, REJECTOR) and cell.attack[0] == ATTACK
        if not is_shown or is_adaptive_rr or row.attack == "clean" or row.acc_tpr95 is None:
            continue
        if any(word in row.note for word in ("oracle", "mixture")):
            continue
        if victim not in lowest or row.acc_tpr95 < (lowest[victim].acc_tpr95 or 0):
            lowest[victim] = row
    return [lowest[victim] for victim in sorted(lowest, key=lambda victim: (victim[0] != TRAINED_AS, victim))]
