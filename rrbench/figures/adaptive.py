"""Figure 4: RR under the five adaptive objectives, by the weight eta of their rejector term."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from matplotlib.figure import Figure

from rrbench.figures.request import PaperRequest, paper_settings
from rrbench.figures.scored import Scored, preference, provenance_text, victim_label
from rrbench.figures.style import (
    BLACK,
    DARK_GREY,
    ETA,
    GREY,
    LINES,
    finish,
    legend_below,
    look,
    panels,
    styled,
    typeset,
)
from rrbench.metrics.columns import LABELS
from rrbench.names import show
from rrbench.paper.reduced import EFFORT, REDUCED, Less, Reduction
from rrbench.paper.wanted import input_count
from rrbench.rows.notes import is_mixture, is_oracle
from rrbench.rows.row import PERCENTAGES, ResultRow

TRAINED_AS, REJECTOR, ATTACK = "pgd-at+rr", "rr", "adaptive"
OBJECTIVES = ("ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)")
METRICS = ("acc_tpr95", "acc_all", "auc")


@dataclass(frozen=True)
class Point:
    """A measured cell, and in what it differs from the paper's protocol."""

    cell: Scored
    reduction: Reduction
    other: tuple[str, ...] = ()  # settings that are neither the paper's nor simply less, such as keep=best

    @property
    def row(self) -> ResultRow:
        """The cell's row."""
        return self.cell.row

    @property
    def differs(self) -> str:
        """What is less than, or other than, the paper's; empty if nothing is."""
        return ", ".join(filter(None, (self.reduction.lacks, *self.other)))

    @property
    def rank(self) -> tuple[object, ...]:
        """Sort key: full rows first, then the paper's settings, the least reduced, and the preferred preset."""
        return bool(self.differs), bool(self.other), self.reduction.rank, preference(self.row)


Curves = Mapping[str, Mapping[float, Point]]  # {objective: {eta: point}}


def figure4(request: PaperRequest) -> Figure:
    """Draw TPR-95, accuracy and AUC against eta, and the other rejectors under their worst attacks."""
    curves = curves_of(request)
    references = reference_points(request)
    shared = _shared(references)
    used = [point.row for point in (*(each for curve in curves.values() for each in curve.values()), *references)]
    etas = sorted({eta for curve in curves.values() for eta in curve})
    smallest = next((eta for eta in etas if eta > 0), 1.0)
    with styled():
        figure, axes = panels(1, len(METRICS), width=2.7, height=3.4 + 0.06 * len(references))
        for panel, metric in zip(axes, METRICS, strict=True):
            for index, (objective, curve) in enumerate(curves.items()):
                values = {eta: getattr(point.row, metric) for eta, point in curve.items()}
                points = {eta: value for eta, value in values.items() if value is not None}
                style = look(index)
                panel.plot(
                    list(points), list(points.values()),
                    color=style.color, linestyle=style.linestyle, marker=style.marker, label=objective,
                )  # fmt: skip
            for index, reference in enumerate(references):
                row, lacks = reference.row, "" if shared else reference.differs
                if getattr(row, metric) is not None:
                    panel.axhline(
                        getattr(row, metric),
                        color=BLACK if row.trained_as == TRAINED_AS else (GREY, DARK_GREY)[index // len(LINES) % 2],
                        linestyle=LINES[index % len(LINES)],
                        linewidth=0.9,
                        label=f"{victim_label(row)}: {row.attack}" + (f", {lacks}" if lacks else ""),
                    )
            # Linear below the smallest positive weight and logarithmic above, so that 0 can be shown.
            panel.set_xscale("symlog", linthresh=smallest, linscale=0.5)
            panel.set_xlim(-0.2 * smallest, 1.8 * max(etas[-1], smallest))
            panel.set_xticks(etas, [show(eta) for eta in etas], rotation=60)
            panel.minorticks_off()
            panel.set(xlabel=ETA, ylabel=LABELS[metric] + (" (%)" if metric in PERCENTAGES else ""))
        legend_below(figure, axes, columns=3)
        drawn_from = f"{TRAINED_AS}, {typeset(request.budget)}, {provenance_text(used)}"
        of_lines = f"horizontal lines: {shared}" if shared else ""
        finish(figure, "; ".join(filter(None, (drawn_from, reduced_text(curves), of_lines))))
    return figure


def curves_of(request: PaperRequest) -> Curves:
    """Return the points of RR at every eta that all five objectives have, all of the network with the first seed."""
    found: dict[tuple[str, float], list[Point]] = {}
    for cell in (*request.cells, *request.short):
        name, settings = cell.attack
        is_single = name == ATTACK and len(settings["eta"]) == 1
        if is_single and (cell.row.trained_as, cell.row.rejector) == (TRAINED_AS, REJECTOR):
            point = _attacked_point(request, cell)
            found.setdefault((settings["objective"], float(settings["eta"][0])), []).append(point)
    seed = min((point.row.seed for points in found.values() for point in points), default=0)
    own = {place: [point for point in points if point.row.seed == seed] for place, points in found.items()}
    # Of equal points the first is taken: cells are in the order of preference.
    best = {place: min(points, key=lambda point: point.rank) for place, points in own.items() if points}
    begun = sorted({eta for _, eta in best})
    etas = [eta for eta in begun if all((name, eta) in best for name in OBJECTIVES)]
    if not etas:
        wanted = begun or [float(eta) for eta in paper_settings(ATTACK)["eta"]]
        absent = [(name, eta) for name in OBJECTIVES for eta in wanted if (name, eta) not in best]
        # `rrbench run` takes all five objectives of an eta as one word, and does not repeat measured cells.
        effort, sample = _like(best.values())
        wanted_attacks = [f"{ATTACK}(eta={show(eta)}{effort})" for eta in sorted({eta for _, eta in absent})]
        raise request.missing(
            _described(absent, bool(best)),
            frameworks=["pgd-at"],
            rejectors=[REJECTOR],
            attacks=wanted_attacks,
            more=sample,
        )
    return {name: {eta: best[name, eta] for eta in etas} for name in OBJECTIVES}


def _attacked_point(request: PaperRequest, cell: Scored) -> Point:
    """Compare the attack's settings with the paper's; `until` changes no answer."""
    _, settings = cell.attack
    paper = {name: value for name, value in paper_settings(ATTACK).items() if name not in ("eta", "until")}
    pairs = [(name, Fraction(settings[name]), Fraction(paper[name])) for name in EFFORT if name in paper]
    less = tuple(Less(*pair) for pair in pairs if pair[1] < pair[2])
    other = [name for name, found, wanted in pairs if found > wanted]
    other += [name for name, value in paper.items() if name not in EFFORT and settings[name] != value]
    step = settings["step"]  # None is a quarter of the radius
    if step is not None and 4 * Fraction(step) != Fraction(cell.row.eps):
        other.append("step")
    return _point(request, cell, less, tuple(f"{name}={settings[name]}" for name in other))


def _point(request: PaperRequest, cell: Scored, less: tuple[Less, ...] = (), other: tuple[str, ...] = ()) -> Point:
    whole = (each.row.n or 0 for each in request.cells if each.has_all_inputs)
    size = input_count(cell.row.dataset) or max(whole, default=0)
    return Point(cell, Reduction(cell.row.n or 0, size, cell.sample.every, less), other)


def _described(absent: Sequence[tuple[str, float]], is_begun: bool) -> list[str]:
    if not is_begun:
        return [f"{TRAINED_AS} {REJECTOR} under {ATTACK} at any single eta"]
    return [f"{ATTACK}({name},eta={show(eta)})" for name, eta in absent]


def _like(points: Iterable[Point]) -> tuple[str, str]:
    """Return the settings and options that measure further points as these were; empty if these differ."""
    ways = {(point.reduction.less, point.other, point.cell.sample) for point in points}
    if len(ways) != 1:
        return "", ""
    ((less, other, sample),) = ways
    options = "".join(f" --{name} {value}" for name, value in sample.facts().items() if value)
    return "".join(f",{each}" for each in (*(f"{each.name}={each.found}" for each in less), *other)), options


def reduced_text(curves: Curves) -> str:
    """Say what is less or other than in the paper: inputs, settings, and the weights eta; empty if nothing is."""
    groups: dict[str, dict[float, list[str]]] = {}
    for name, curve in curves.items():
        for eta, point in curve.items():
            groups.setdefault(point.differs, {}).setdefault(eta, []).append(name)
    parts = []
    for lacks, places in groups.items():
        where = ", ".join(
            show(eta) if len(names) == len(curves) else f"{show(eta)} ({', '.join(names)})"
            for eta, names in sorted(places.items())
        )
        if lacks:
            parts.append(lacks if len(groups) == 1 else f"{lacks} at {ETA} {where}")
    etas = sorted({eta for curve in curves.values() for eta in curve})
    grid = [float(eta) for eta in paper_settings(ATTACK)["eta"]]
    if not set(grid) <= set(etas):
        parts.append(f"{ETA} {', '.join(map(show, etas))} instead of {', '.join(map(show, grid))}")
    is_less = not set(grid) <= set(etas) or any(
        each.reduction.lacks for curve in curves.values() for each in curve.values()
    )
    return f"{REDUCED if is_less else 'other settings'}: {'; '.join(parts)}" if parts else ""


def _shared(references: Sequence[Point]) -> str:
    """Return what all references have less of, which the caption then says once; empty if they differ."""
    lacks = {reference.differs for reference in references}
    return lacks.pop() if len(references) > 1 and len(lacks) == 1 else ""


def reference_points(request: PaperRequest) -> list[Point]:
    """Return the cell with the lowest TPR-95, for each other rejector and for RR under other attacks.

    The paper does not say which attack its baselines are under; this is the worst one measured at this budget, of those
    that all of them met, if there are any: a line would else be lower only because a stronger attack was run on it
    alone. A cell on fewer inputs is taken only for a rejector that has none on all.
    """
    found: dict[tuple[str, str], list[Point]] = {}
    for cell in (*request.cells, *request.short):
        row = cell.row
        victim = (row.trained_as, row.rejector)
        is_shown = victim == (TRAINED_AS, REJECTOR) or row.trained_as != TRAINED_AS
        is_adaptive_rr = victim == (TRAINED_AS, REJECTOR) and cell.attack[0] == ATTACK
        if not is_shown or is_adaptive_rr or row.attack == "clean" or row.acc_tpr95 is None:
            continue
        if is_oracle(row) or is_mixture(row):
            continue
        found.setdefault(victim, []).append(_point(request, cell))
    victims = sorted(found, key=lambda victim: (victim[0] != TRAINED_AS, victim))
    met = set.intersection(*({point.row.attack for point in points} for points in found.values())) if found else set()
    if met:
        found = {victim: [point for point in points if point.row.attack in met] for victim, points in found.items()}
    return [min(found[victim], key=lambda point: (bool(point.differs), point.row.acc_tpr95)) for victim in victims]
