"""Rows -> tables as text, Markdown, LaTeX, CSV or HTML. Imports neither torch nor pandas."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import fmean, stdev

from rrbench.errors import UseError
from rrbench.metrics.columns import LABELS, MEANINGS
from rrbench.names import parse_budget, radius_text, split_list, unknown
from rrbench.plugins.catalogue import plugin_name
from rrbench.rows.markup import escape_html, escape_latex, html_page, html_table, latex_table
from rrbench.rows.repeats import gather_all, row_marks
from rrbench.rows.row import COLUMNS, PERCENTAGES, ResultRow, check_rejectors, goes_by, order, to_csv
from rrbench.rows.sight import attack_text, is_blind

WIDTH = 100  # letters in a line of text
SHOWN = 3  # how many rows a note below a table names
LAYOUTS = ("text", "markdown", "latex", "csv", "html")
MAIN = ("acc_all", "acc_tpr95", "auc", "deploy_coverage", "deploy_robust", "deploy_joint")


def results_table(rows: Sequence[ResultRow], layout: str = "text", *, is_ranked: bool = False) -> str:
    """Show the main columns in blocks by data set, network, preset and number of inputs; as CSV all columns.

    Seeds of one training share a line: mean and standard deviation. If ranked, the best joint number of each budget
    comes first.
    """
    rows = sorted(rows, key=rank if is_ranked else order)
    if layout == "csv":
        return to_csv(rows).rstrip("\n")
    blocks: dict[tuple[str, str, str, int], list[ResultRow]] = {}
    for row in rows:
        if row.status == "ok":
            blocks.setdefault((row.dataset, row.network, row.preset, row.n or 0), []).append(row)
    if not is_ranked:
        blocks = dict(sorted(blocks.items()))
    parts = [render(*measurements(block, is_ranked), layout, _title(block)) for block in blocks.values()]
    failed = [row for row in rows if row.status != "ok"]
    parts += [render(*_failures(failed), layout, "failed")] if failed else []
    note = [
        *_spread(rows),
        f"{LABELS['acc_tpr95']} [95 % interval over examples]: {MEANINGS['acc_tpr95']}.",
        f"{', '.join(LABELS[name] for name in MAIN[3:])}: the threshold is fixed on other, clean inputs, "
        "or brought by the rejector.",
        *(f"{LABELS[name]}: {MEANINGS[name]}." for name in MAIN[3:]),
    ]
    if layout == "html":
        return html_page("Results of rrbench", "\n".join(parts))
    below = [*note, *_notes(rows)] if layout == "text" and parts else []
    return "\n".join(["\n\n".join(parts), *below])


def _spread(rows: Sequence[ResultRow]) -> list[str]:
    """Say what several seeds are: trainings, or attacks on one network; nothing if each line has one seed."""
    several = [group for group in gather_all(row for row in rows if row.status == "ok") if len(group) > 1]
    if not several:
        return []
    networks = [{row.checkpoint_sha256 for row in group} for group in several]
    is_one = [len(found) == 1 and "" not in found for found in networks]
    over = "seeds of the attack, on one network" if all(is_one) else "seeds, that is over trainings"
    if any(is_one) and not all(is_one):
        over += ", or over seeds of the attack where all rows have one network"
    return [f"\u00b1: standard deviation over {over}. Lines of one seed have 95 % intervals over examples."]


def _title(block: Sequence[ResultRow]) -> str:
    first, seeds = block[0], sorted({row.seed for row in block})
    shown = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"{first.dataset}, {first.network}, preset {first.preset}, {shown}, n={first.n or '?'}"


def rank(row: ResultRow) -> tuple[object, ...]:
    """Sort key: by budget, then the largest joint number first; rows without one last."""
    joint = row.deploy_joint
    return row.norm != "linf", row.norm, Fraction(row.eps or 0), joint is None, -(joint or 0.0), *order(row)


def choose(rows: Sequence[ResultRow], rejectors: str = "", attacks: str = "", budgets: str = "") -> list[ResultRow]:
    """Return the rows of some rejectors, attacks and budgets; empty means all, and clean rows have every budget.

    A word that fits no row is refused: it is misspelt, or was not measured.
    """
    wanted = [parse_budget(budget) for budget in split_list(budgets)]
    for budget, (norm, radius) in zip(split_list(budgets), wanted, strict=True):
        if not any(_has_budget(row, norm, radius) for row in rows):
            raise unknown("budget in these results:", budget, {budget_text(row) for row in rows if row.norm})
    check_rejectors(split_list(rejectors), rows)
    for name in split_list(attacks):
        if not any(is_of(row, name) for row in rows):
            raise unknown("attack in these results:", name, {row.attack for row in rows})
    chosen = [
        row
        for row in rows
        if (not rejectors or any(goes_by(row, name) for name in split_list(rejectors)))
        and (not attacks or is_of(row, attacks))
        and (not wanted or not row.norm or any(_has_budget(row, *each) for each in wanted))
    ]
    if not chosen:
        raise UseError("no row has all of these rejectors, attacks and budgets")
    return chosen


def _has_budget(row: ResultRow, norm: str, radius: Fraction | None) -> bool:
    return row.norm == norm and (Fraction(row.eps) if row.eps else None) == radius


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


def measurements(block: Sequence[ResultRow], is_ranked: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a block; lines that look alike get a column that tells them apart.

    Unless they are ranked, the lines are those of `gather_all`, in its order.
    """
    groups = gather_all(block)
    if is_ranked:
        groups.sort(key=lambda group: rank(replace(group[0], deploy_joint=mean_of(group, "deploy_joint"))))
    names = [(row.trained_as, row.rejector, attack_text(row), budget_text(row)) for row, *_ in groups]
    precisions = [row.precision for row, *_ in groups]
    counts, marks = [len(group) for group in groups], row_marks(block)
    is_alike = len({*zip(names, precisions, strict=True)}) < len(names)
    more: dict[str, list[str]] = {}
    if len(set(precisions)) > 1:
        more["precision"] = precisions
    if len(set(counts)) > 1:
        more["seeds"] = [str(count) for count in counts]
    if is_alike:
        more["of"] = [marks[group[0]] or f"seed {group[0].seed}" for group in groups]
    header = ["trained as", "rejector", "attack", "budget", *more]
    header += [LABELS[name] for name in MAIN]
    return header, [
        [
            *names[index],
            *(column[index] for column in more.values()),
            *((_with_interval if name in ("acc_tpr95", "deploy_joint") else summed_up)(group, name) for name in MAIN),
        ]
        for index, group in enumerate(groups)
    ]


def _with_interval(group: Sequence[ResultRow], column: str) -> str:
    return f"{summed_up(group, column)} {bounds_text(group, column)}".rstrip()


def bounds_text(group: Sequence[ResultRow], column: str) -> str:
    """Print a column's interval over examples; empty if it has none, or if several seeds show their spread instead."""
    low, high = (summed_up(group, f"{column}_{end}") for end in ("low", "high"))
    return "" if len(group) > 1 or low == high == "-" else f"[{low}, {high}]"


def summed_up(group: Sequence[ResultRow], column: str) -> str:
    """Print a column of rows that differ in their seeds: the number, or mean and standard deviation where defined."""
    if len(group) == 1:
        return number(group[0], column)
    values = [value for row in group if (value := getattr(row, column)) is not None]
    return spread_text(values, 2 if column in PERCENTAGES else 3)


def spread_text(values: Sequence[float], places: int, sign: str = "") -> str:
    """Print the mean and the standard deviation of a sample; one value has no deviation."""
    if not values:
        return "-"
    mean = f"{fmean(values):{sign}.{places}f}"
    return f"{mean} \u00b1 {stdev(values):.{places}f}" if len(values) > 1 else mean


def mean_of(group: Sequence[ResultRow], column: str) -> float | None:
    """Return a column's mean over seeds where it is defined."""
    values = [value for row in group if (value := getattr(row, column)) is not None]
    return fmean(values) if values else None


def _failures(block: Sequence[ResultRow]) -> tuple[list[str], list[list[str]]]:
    with_seed = len({row.seed for row in block}) > 1
    header = ["trained as", "rejector", "attack", "budget", *(["seed"] * with_seed), "error"]
    return header, [
        [row.trained_as, row.rejector, row.attack, budget_text(row), *([str(row.seed)] * with_seed), row.error]
        for row in block
    ]


def pivot_table(
    rows: Sequence[ResultRow],
    by: str,
    metric: str,
    layout: str = "text",
    field: Callable[[Sequence[ResultRow]], str] | None = None,
) -> str:
    """Show one metric: a line for each checkpoint, rejector and attack, a column for each value of `by`.

    Seeds are summed up: mean and standard deviation. Other presets, precisions and numbers of inputs get their own
    lines. So do rows that only have the same names, but another network, rejector or revision: the column `of` tells
    them apart.
    `field` prints the rows of one place, a row for each seed, if the metric alone is not enough.
    """
    for name, known in ((by, (*COLUMNS, "budget")), (metric, COLUMNS)):
        if name not in known:
            raise unknown("column", name, known)
    keys, marks = _differing_keys(rows, by, layout), row_marks(rows)
    has_marks = any(marks.values())
    columns: dict[str, None] = {}
    lines: dict[tuple[str, ...], dict[str, list[ResultRow]]] = {}
    for row in sorted(rows, key=order):
        names = (*(_pivot_name(row, key, by, layout) for key in keys), *([marks[row]] * has_marks))
        column = _pivot_name(row, by, by, layout)
        columns[column] = None
        lines.setdefault(names, {}).setdefault(column, []).append(row)
    header, show = [*keys, *(["of"] * has_marks), *columns], field or (lambda group: summed_up(group, metric))
    cells = [[*names, *(_place(line.get(column, []), show) for column in columns)] for names, line in lines.items()]
    title = LABELS.get(metric, metric)
    if layout == "html":
        return html_page(title, render(header, cells, layout, title))
    if layout == "text":
        return _folded(header, cells, len(header) - len(columns), title)
    return render(header, cells, layout, title)


def _differing_keys(rows: Sequence[ResultRow], by: str, layout: str) -> list[str]:
    """Choose what names a pivot's lines: the rejector, and all in which the rows differ."""
    done = [row for row in rows if row.status == "ok"] or rows  # a failed row does not know its number of inputs
    chosen = []
    for key in ("dataset", "network", "preset", "precision", "n", "trained_as", "rejector", "attack"):
        texts = {_pivot_name(row, key, by, layout) for row in (done if key == "n" else rows)}
        if key != by and (key == "rejector" or len(texts) > 1):
            chosen.append(key)
    return chosen


def _pivot_name(row: ResultRow, key: str, by: str, layout: str) -> str:
    """Name a row in one column of a pivot; an attack comes without its budget if each budget has a column."""
    shown = row.attack if (key, by) == ("attack", "budget") else _shown(row, key)
    return f"{shown} (blind)" if key == "attack" and layout != "csv" and is_blind(row) else shown


def _place(rows: Sequence[ResultRow], show: Callable[[Sequence[ResultRow]], str]) -> str:
    """Print the rows of one place of a pivot; rows that share a seed stand side by side."""
    done = gather_all(row for row in rows if row.status == "ok")
    failed = sum(row.status != "ok" for row in rows)
    words = [*map(show, done), *(["failed" if failed == 1 else f"{failed} failed"] if failed else [])]
    return "; ".join(words) or "missing"


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
