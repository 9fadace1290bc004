"""Rows -> tables as text, Markdown or CSV. Imports neither torch nor pandas."""

import csv
import io
from collections.abc import Sequence
from fractions import Fraction

from rrbench.errors import UseError
from rrbench.names import unknown
from rrbench.rows import COLUMNS, ResultRow, order, to_csv

LAYOUTS = ("text", "markdown", "csv")
PERCENTAGES = frozenset(
    {
        "acc_all",
        "acc_tpr95",
        "coverage_tpr95",
        "acc_tpr95_low",
        "acc_tpr95_high",
        "deploy_acc",
        "deploy_coverage",
        "deploy_robust",
    }
)


def results_table(rows: Sequence[ResultRow], layout: str = "text") -> str:
    """Show the main columns of every row, a block for each data set, network, preset and seed; as CSV, all columns."""
    if layout == "csv":
        return to_csv(sorted(rows, key=order)).rstrip("\n")
    blocks: dict[str, list[ResultRow]] = {}
    for row in sorted(rows, key=order):
        title = f"{row.dataset}, {row.network}, preset {row.preset}, seed {row.seed}, n={row.n or '?'}"
        blocks.setdefault(title if row.status == "ok" else "failed", []).append(row)
    parts = []
    for title, block in blocks.items():
        header, cells = _failures(block) if title == "failed" else _measurements(block)
        parts.append(render(header, cells, layout, title))
    note = (
        "acc_tpr95 [95 % interval over examples]: accuracy when 95 % of the right answers are kept, "
        "threshold from these inputs.\n"
        "deploy_*: threshold fixed on clean validation inputs; robust = 100 - accepted and wrong, "
        "to be read beside clean coverage."
    )
    return "\n\n".join(parts) + (f"\n{note}" if layout == "text" and parts else "")


def _measurements(block: list[ResultRow]) -> tuple[list[str], list[list[str]]]:
    header = [
        "trained as",
        "rejector",
        "attack",
        "budget",
        "acc_all",
        "acc_tpr95",
        "auc",
        "deploy_acc",
        "coverage",
        "robust",
    ]
    return header, [
        [
            row.trained_as,
            row.rejector,
            row.attack,
            budget_text(row),
            number(row, "acc_all"),
            f"{number(row, 'acc_tpr95')} [{number(row, 'acc_tpr95_low')}, {number(row, 'acc_tpr95_high')}]",
            number(row, "auc"),
            number(row, "deploy_acc"),
            number(row, "deploy_coverage"),
            number(row, "deploy_robust"),
        ]
        for row in block
    ]


def _failures(block: list[ResultRow]) -> tuple[list[str], list[list[str]]]:
    return ["trained as", "rejector", "attack", "budget", "error"], [
        [row.trained_as, row.rejector, row.attack, budget_text(row), row.error] for row in block
    ]


def pivot_table(rows: Sequence[ResultRow], by: str, metric: str, layout: str = "text") -> str:
    """Show one metric: a line for each checkpoint, rejector and attack, a column for each value of `by`."""
    for name in (by, metric):
        if name not in COLUMNS:
            raise unknown("column", name, COLUMNS)
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    columns: dict[str, None] = {}
    keys = [key for key in ("dataset", "network", "trained_as", "rejector", "attack") if key != by]
    varying = [key for key in keys if key == "rejector" or len({_shown(row, key) for row in rows}) > 1]
    for row in sorted(rows, key=order):
        value = _shown(row, by)
        columns[value] = None
        line = lines.setdefault(tuple(_shown(row, key) for key in varying), {})
        line.setdefault(value, []).append(number(row, metric) if row.status == "ok" else "failed")
    header = [*varying, *columns]
    cells = [[*key, *(" ".join(line.get(column, ["missing"])) for column in columns)] for key, line in lines.items()]
    return render(header, cells, layout, metric)


def _shown(row: ResultRow, key: str) -> str:
    return f"{row.attack} {budget_text(row)}".strip() if key == "attack" else str(getattr(row, key))


def budget_text(row: ResultRow) -> str:
    """Print a row's budget as it is typed."""
    return f"{row.norm}:{Fraction(row.eps)}" if row.eps else row.norm


def number(row: ResultRow, column: str) -> str:
    """Print one field: percentages with two digits, fractions with three, a dash where undefined."""
    value = getattr(row, column)
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if column in PERCENTAGES else f"{value:.3f}"


def render(header: Sequence[str], cells: Sequence[Sequence[str]], layout: str, title: str = "") -> str:
    """Lay out a table."""
    if layout not in LAYOUTS:
        raise UseError(f"unknown format {layout!r}; one of {', '.join(LAYOUTS)}")
    if layout == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *cells])
        return text.getvalue().rstrip("\n")
    if layout == "markdown":
        table = [header, ["---"] * len(header), *cells]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table)
        return f"**{title}**\n\n{body}" if title else body
    widths = [max(len(line[index]) for line in [header, *cells]) for index in range(len(header))]
    numeric = [all(_is_numeric(line[index]) for line in cells) for index in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [header, ["-" * width for width in widths], *cells]
    ]
    return "\n".join([title, *lines] if title else lines)


def _is_numeric(text: str) -> bool:
    return text[:1].isdigit() or text[:1] == "-" or text == ""
