"""The report's tables: each rejector at its weakest, all rows, distances, failures, doubts."""

import math
from collections.abc import Sequence
from fractions import Fraction

from rrbench.metrics.columns import DEPLOYED, LABELS, MEANINGS
from rrbench.report.html import Safe, TableField, element, joined, number, table, with_interval
from rrbench.report.standings import Measured, Standing
from rrbench.rows.notes import WEAK, notes_of
from rrbench.rows.row import FRACTIONS, ResultRow
from rrbench.rows.sight import attack_text
from rrbench.rows.tables import budget_text

WIDTH, HEIGHT = 72, 14  # of the strip that draws an interval
COLUMNS = ("acc_all", "acc_tpr95", "auc", *DEPLOYED, "aurc", "fpr95")
WITH_INTERVAL = ("acc_tpr95", "auc", "deploy_robust", "deploy_joint")


def weakest_table(standings: Sequence[Standing]) -> Safe:
    """Show every rejector at one budget under the attack that harms it most; those without a rank come last."""
    first = standings[0]
    metric, with_robust = first.metric, first.metric == "deploy_joint"
    floor = min(90, 10 * math.floor(min(standing.interval[0] for standing in standings) / 10))
    coverage, accuracy, robust = (LABELS[name] for name in ("deploy_coverage", "acc_all", "deploy_robust"))
    header = ["rejector", "trained as", "rank", LABELS[metric], f"{floor} to 100", f"clean {coverage}", coverage]
    header += [*([robust] if with_robust else []), accuracy, f"clean {accuracy}", "strongest attack"]
    lines: list[list[TableField | str]] = [
        [
            standing.rejector,
            standing.trained_as,
            number(place if standing.is_ranked else None, 0),
            with_interval(standing.value, standing.interval, 1),
            TableField(strip(standing.value, standing.interval, (floor, 100)), standing.value, is_number=True),
            number(standing.clean.mean("deploy_coverage") if standing.clean else None, 1),
            number(standing.strongest.mean("deploy_coverage"), 1),
            *([number(standing.strongest.mean("deploy_robust"), 1)] if with_robust else []),
            number(standing.strongest.mean("acc_all"), 1),
            number(standing.clean.mean("acc_all") if standing.clean else None, 1),
            attack_text(standing.strongest.first),
        ]
        for place, standing in enumerate(standings, start=1)
    ]
    return table(f"{first.budget}: each rejector under the attack that harms it most", header, lines)


def strip(
    value: float, interval: tuple[float, float], ends: tuple[float, float], reference: float | None = None
) -> Safe:
    """Draw a value and its interval, and a reference to compare with; the numbers are printed beside it."""
    low, middle, high = (_place(each, ends) for each in (interval[0], value, interval[1]))
    level = HEIGHT / 2
    beside = ""
    if reference is not None:
        place = f"{_place(reference, ends):.1f}"
        beside = f'<line class="reference" x1="{place}" x2="{place}" y1="1" y2="{HEIGHT - 1}"/>'
    return Safe(
        f'<svg class="strip" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true">'
        f'<line class="axis" x1="4" x2="{WIDTH - 4}" y1="{level}" y2="{level}"/>'
        f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{level}" y2="{level}"/>{beside}'
        f'<circle cx="{middle:.1f}" cy="{level}" r="3.5"/></svg>'
    )


def _place(value: float, ends: tuple[float, float]) -> float:
    return 4 + (WIDTH - 8) * (value - ends[0]) / (ends[1] - ends[0])


def rows_table(rows: Sequence[ResultRow], caption: str) -> Safe:
    """Show every row of one setting and budget; each seed has its own line."""
    has_seeds = len({row.seed for row in rows}) > 1
    header = ["rejector", "trained as", "attack", *(["seed"] if has_seeds else [])]
    header += [*(LABELS[column] for column in COLUMNS), "note"]
    lines: list[list[TableField | str]] = [
        [
            row.rejector,
            row.trained_as,
            attack_text(row),
            *([number(row.seed, 0)] if has_seeds else []),
            *[_measurement(row, column) for column in COLUMNS],
            element("span", row.note, class_="note"),
        ]
        for row in rows
    ]
    return table(caption, header, lines)


def meanings() -> Safe:
    """Explain the columns."""
    return element(
        "dl",
        *[
            joined(
                [
                    element("dt", f"{LABELS[column]} ", element("code", column)),
                    element(
                        "dd", f"{'share' if column in FRACTIONS else 'percent'}: {MEANINGS[column]}{_threshold(column)}"
                    ),
                ]
            )
            for column in COLUMNS
        ],
    )


def _threshold(column: str) -> str:
    return "; threshold fixed on other, clean inputs, or brought by the rejector" if column in DEPLOYED else ""


def distances_table(rows: Sequence[ResultRow]) -> Safe:
    """Show the attacks that look for the smallest change."""
    header = ["rejector", "trained as", "attack", "norm", "distance", "distance_success", "success"]
    lines: list[list[TableField | str]] = [
        [
            *(row.rejector, row.trained_as, attack_text(row), row.norm),
            number(row.distance),
            number(row.distance_success),
            number(row.success, 3),
        ]
        for row in rows
    ]
    return table("Smallest distortions: 255 times linf, or l2 squared; mean over inputs", header, lines)


def failures_table(rows: Sequence[ResultRow]) -> Safe:
    """Show the cells that could not be measured, and why."""
    header = ["rejector", "trained as", "attack", "budget", "data set", "seed", "error"]
    lines: list[list[TableField | str]] = [
        [row.rejector, row.trained_as, row.attack, _budget(row), row.dataset, number(row.seed, 0), row.error]
        for row in rows
    ]
    return table("Cells that failed", header, lines)


def notes_list(rows: Sequence[ResultRow]) -> Safe:
    """List each note once, with the cells that have it."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for note in notes_of(row):
            cell = f"{row.rejector} under {row.attack} {budget_text(row)}".strip()
            found.setdefault(note, []).append(cell)
    return element(
        "ul",
        *[
            element("li", element("b", note), ": ", ", ".join(dict.fromkeys(cells)))
            for note, cells in sorted(found.items(), key=lambda item: (not item[0].startswith(WEAK), item[0]))
        ],
    )


def _measurement(row: ResultRow, column: str) -> TableField:
    digits = 3 if column in FRACTIONS else 1
    measured = Measured((row,))
    interval = measured.interval(column) if column in WITH_INTERVAL else None
    return with_interval(getattr(row, column), interval, digits)


def _budget(row: ResultRow) -> TableField:
    """Print a budget, sorted by norm, then radius."""
    if not row.norm:
        return TableField("")
    radius = float(Fraction(row.eps)) if row.eps else math.inf
    return TableField(budget_text(row), radius + (1e6 if row.norm == "l2" else 0.0))
