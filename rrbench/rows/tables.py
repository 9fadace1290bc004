"""Rows -> tables as text, Markdown, LaTeX, CSV or HTML. Imports neither torch nor pandas."""

import csv
import io
from collections.abc import Callable, Sequence
from fractions import Fraction

from rrbench.errors import UseError
from rrbench.names import radius_text, split_list, unknown
from rrbench.plugins.catalogue import plugin_name
from rrbench.rows.markup import escape_html, escape_latex, html_page, html_table, latex_table
from rrbench.rows.repeats import row_marks
from rrbench.rows.row import COLUMNS, PERCENTAGES, ResultRow, order, to_csv
from rrbench.rows.sight import attack_text, is_blind

WIDTH = 100  # letters in a line of text
SHOWN = 3  # how many rows a note below a table names
LAYOUTS = ("text", "markdown", "latex", "csv", "html")


def results_table(rows: Sequence[ResultRow], layout: str = "text", *, is_ranked: bool = False) -> str:
    """Show the main columns of every row, in blocks by data set, network, preset and seed; as CSV show all columns.

    If ranked, the best joint number of each budget comes first.
    """
    rows = sorted(rows, key=rank if is_ranked else order)
    if layout == "csv":
        return to_csv(rows).rstrip("\n")
    blocks: dict[str, list[ResultRow]] = {}
    for row in rows:
        title = f"{row.dataset}, {row.network}, preset {row.preset}, seed {row.seed}, n={row.n or '?'}"
        blocks.setdefault(title if row.status == "ok" else "failed", []).append(row)
    parts = []
    for title, block in blocks.items():
        header, cells = _failures(block) if title == "failed" else _measurements(block)
        parts.append(render(header, cells, layout, title))
    note = (
        "acc_tpr95 [95 % interval over examples]: accuracy when 95 % of the right answers are kept, "
        "threshold from these inputs.\n"
        "coverage, robust, joint: the threshold is fixed on other, clean inputs, or brought by the rejector.\n"
        "coverage: accepted. robust: rejected, or right. joint: robust, and also accepted and right when clean."
    )
    if layout == "html":
        return html_page("Results of rrbench", "\n".join(parts))
    below = [note, *_notes(rows)] if layout == "text" and parts else []
    return "\n".join(["\n\n".join(parts), *below])


def rank(row: ResultRow) -> tuple[object, ...]:
    """Sort key: by budget, then the largest joint number first; rows without one last."""
    joint = row.deploy_joint
    return row.norm != "linf", row.norm, Fraction(row.eps or 0), joint is None, -(joint or 0.0), *order(row)


def is_of(row: ResultRow, attacks: str) -> bool:
    """Tell whether a row's attack is one of `attacks`: `pgd` means every PGD, `pgd100` only itself."""
    return not {row.attack, plugin_name("attack", row.attack)}.isdisjoint(split_list(attacks))


def _notes(rows: Sequence[ResultRow]) -> list[str]:
    """Return a line for each different note, with the rows that have it."""
    said: dict[str, dict[str, None]] = {}
    for row in sorted(rows, key=order):
        if row.note:
            said.setdefault(row.note, {})[f"{row.rejector} {_shown(row, 'attack')}"] = None
    return [f"note for {_some(list(places))}: {note}" for note, places in said.items()]


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _measurements(block: list[ResultRow]) -> tuple[list[str], list[list[str]]]:
    header = [
        "trained as",
        "rejector",
        "attack",
        "budget",
        "acc_all",
        "acc_tpr95",
        "auc",
        "coverage",
        "robust",
        "joint",
    ]
    return header, [
        [
            row.trained_as,
            row.rejector,
            attack_text(row),
            budget_text(row),
            number(row, "acc_all"),
            _with_interval(row, "acc_tpr95"),
            number(row, "auc"),
            number(row, "deploy_coverage"),
            number(row, "deploy_robust"),
            _with_interval(row, "deploy_joint"),
        ]
        for row in block
    ]


def _with_interval(row: ResultRow, column: str) -> str:
    value, low, high = (number(row, name) for name in (column, f"{column}_low", f"{column}_high"))
    return value if low == high == "-" else f"{value} [{low}, {high}]"


def _failures(block: list[ResultRow]) -> tuple[list[str], list[list[str]]]:
    return ["trained as", "rejector", "attack", "budget", "error"], [
        [row.trained_as, row.rejector, row.attack, budget_text(row), row.error] for row in block
    ]


def pivot_table(
    rows: Sequence[ResultRow],
    by: str,
    metric: str,
    layout: str = "text",
    field: Callable[[ResultRow], str] | None = None,
) -> str:
    """Show one metric: a line for each checkpoint, rejector and attack, a column for each value of `by`.

    Seeds stand side by side. Other presets, precisions and numbers of inputs get their own lines. So do rows that only
    have the same names, but another network, rejector or revision: the column `of` tells them apart.
    `field` prints a row if the metric alone is not enough.
    """
    for name, known in ((by, (*COLUMNS, "budget")), (metric, COLUMNS)):
        if name not in known:
            raise unknown("column", name, known)
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    columns: dict[str, None] = {}
    columns_of_names = ("dataset", "network", "preset", "precision", "n", "trained_as", "rejector", "attack")
    keys = [key for key in columns_of_names if key != by]
    marks = row_marks(rows)
    has_marks = any(marks.values())
    done = [row for row in rows if row.status == "ok"] or rows  # a failed row does not know its number of inputs

    def name_of(row: ResultRow, key: str) -> str:
        shown = row.attack if (key, by) == ("attack", "budget") else _shown(row, key)
        return f"{shown} (blind)" if key == "attack" and layout != "csv" and is_blind(row) else shown

    varying = [
        key
        for key in keys
        if key == "rejector" or len({name_of(row, key) for row in (done if key == "n" else rows)}) > 1
    ]
    for row in sorted(rows, key=order):
        value = name_of(row, by)
        columns[value] = None
        names = [*(name_of(row, key) for key in varying), *([marks[row]] if has_marks else [])]
        line = lines.setdefault(tuple(names), {})
        shown = field(row) if field else number(row, metric)
        line.setdefault(value, []).append(shown if row.status == "ok" else "failed")
    varying += ["of"] if has_marks else []
    header, joint = [*varying, *columns], "; " if field else " "
    cells = [[*key, *(joint.join(line.get(column, ["missing"])) for column in columns)] for key, line in lines.items()]
    if layout == "html":
        return html_page(metric, render(header, cells, layout, metric))
    return render(header, cells, layout, metric) if layout != "text" else _folded(header, cells, len(varying), metric)


def _folded(header: Sequence[str], cells: Sequence[Sequence[str]], names: int, title: str) -> str:
    """Lay out a table as text; columns that do not fit go below, with the names repeated."""
    lines = [header, *cells]
    widths = [max(len(line[index]) for line in lines) + 2 for index in range(len(header))]
    rows: list[list[int]] = [[]]
    for index in range(names, len(header)):
        used = sum(widths[:names]) + sum(widths[place] for place in rows[-1])
        if rows[-1] and used + widths[index] > WIDTH + 2:
            rows.append([])
        rows[-1].append(index)
    parts = []
    for row in rows:
        chosen = [[line[index] for index in (*range(names), *row)] for line in lines]
        parts.append(render(chosen[0], chosen[1:], "text"))
    return "\n".join([title, "\n\n".join(parts)] if title else parts)


def _shown(row: ResultRow, key: str) -> str:
    if key == "budget":
        return budget_text(row) or row.attack
    return f"{row.attack} {budget_text(row)}".strip() if key == "attack" else str(getattr(row, key))


def budget_text(row: ResultRow) -> str:
    """Print a row's budget as the command line takes it."""
    return f"{row.norm}:{radius_text(Fraction(row.eps))}" if row.eps else row.norm


def number(row: ResultRow, column: str) -> str:
    """Print one field: percentages with two digits, fractions with three, a dash if undefined."""
    value = getattr(row, column)
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if column in PERCENTAGES else f"{value:.3f}"


def render(header: Sequence[str], cells: Sequence[Sequence[str]], layout: str, title: str = "") -> str:
    """Lay out a table."""
    check_layout(layout)
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
    if layout in ("latex", "html"):
        escape, lay_out = (escape_latex, latex_table) if layout == "latex" else (escape_html, html_table)
        escaped = [[escape(cell) for cell in line] for line in [header, *cells]]
        names = next((index for index, is_number in enumerate(numeric) if is_number), len(header))
        return lay_out(escaped[0], escaped[1:], names=names, caption=escape(title))
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [header, ["-" * width for width in widths], *cells]
    ]
    return "\n".join([title, *lines] if title else lines)


def check_layout(layout: str) -> None:
    """Refuse an unknown format."""
    if layout not in LAYOUTS:
        raise UseError(f"unknown format {layout!r}; one of {', '.join(LAYOUTS)}")


def _is_numeric(text: str) -> bool:
    return text[:1].isdigit() or text[:1] == "-" or text == ""
