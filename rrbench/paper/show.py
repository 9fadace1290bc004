"""A laid-out table as text, Markdown, LaTeX, CSV or HTML. Imports neither torch nor pandas."""

import csv
import io
import string
import textwrap
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from rrbench.paper.cells import FIELDS
from rrbench.paper.judge import MEANING, Footnote, Judged, tolerances_line
from rrbench.paper.layout import Grid
from rrbench.paper.reduced import LEGEND as REDUCED_LEGEND
from rrbench.paper.reduced import REDUCED
from rrbench.paper.wanted import digits, is_published, wanted
from rrbench.rows.markup import escape_html, escape_latex, html_page, html_table, latex_table, stacked_latex
from rrbench.rows.tables import WIDTH, check_layout, render

MEASURED_FIELDS = ("measured", "published", "difference", "low", "high", "verdict", "note")
LEGEND = (
    "ours, the paper's, the difference, and a 95 % interval of ours: over examples, or over trainings where there are "
    "several. * is the best of those that compete. missing: not measured."
)


class PrintedCell(NamedTuple):
    """The printed parts of one cell."""

    ours: str
    paper: str
    difference: str
    extra: str  # the interval, or with --check the verdict; of a reduced cell this word, and both
    marks: str  # of the footnotes
    is_best: bool
    is_best_published: bool


def show(grids: Sequence[Grid], layout: str, *, sources: str, with_verdicts: bool = False) -> str:
    """Print tables in one of the formats; `sources` says where the rows came from."""
    check_layout(layout)
    if layout == "csv":
        return to_csv([each for grid in grids for each in grid.judged])
    parts = {"text": _text, "markdown": _markdown, "latex": _latex, "html": _html}[layout]
    shown = [parts(grid, sources, with_verdicts) for grid in grids]
    if layout == "html":
        return html_page(grids[0].title if len(grids) == 1 else "The paper's tables", "\n".join(shown))
    return "\n\n".join(shown)


def to_csv(judged: Sequence[Judged]) -> str:
    """Write one line for each cell: the published file's columns, then the measurement."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*FIELDS, *MEASURED_FIELDS])
    for each in judged:
        record = record_of(each)
        writer.writerow(["" if record[key] is None else record[key] for key in (*FIELDS, *MEASURED_FIELDS)])
    return text.getvalue().rstrip("\n")


def record_of(each: Judged) -> dict[str, str | int | float | None]:
    """Return a cell's line of the CSV; `eps` counts 1/255 for every data set."""
    cell, measured = each.cell, each.measured
    own = {key: cell.part(key) for key in FIELDS}
    if cell.eps and not is_published(cell) and (found := wanted(cell, "paper")):
        own["eps"] = f"{float(Fraction(found[0].eps) * 255):g}"
    older = f"superseded: {measured.superseded}" if measured.superseded else ""
    notes = [measured.note, older, *(f"footnote {note.id}" for note in each.footnotes if not note.everywhere)]
    return {
        **own,
        "bold": int(cell.bold),
        "measured": measured.value,
        "published": cell.published,
        "difference": each.difference,
        "low": measured.low,
        "high": measured.high,
        "verdict": each.named,
        "note": "; ".join(filter(None, notes)),
    }


def _field(grid: Grid, each: Judged, marks: dict[str, str], with_verdicts: bool) -> PrintedCell:
    places, measured = digits(each.cell), each.measured
    keys = [*(note.id for note in each.footnotes), measured.note]
    low, high = measured.low, measured.high
    is_percent = places == 2
    bound = f"{{:.{1 if is_percent else places}f}}"
    interval = "" if low is None or high is None else f"{bound.format(low)}..{bound.format(high)}"
    words = [each.named] if with_verdicts else [REDUCED] if measured.reduced else []
    # The interval of a reduced cell is always said: fewer inputs widen it, and its verdict does not.
    words += [interval] if not with_verdicts or measured.reduced else []
    return PrintedCell(
        ours=each.verdict if measured.value is None else f"{measured.value:.{places}f}",
        paper="overflow" if each.cell.value == "nan" else each.cell.value,
        difference="" if each.difference is None else f"{each.difference:+.{places}f}",
        extra=" ".join(filter(None, words)),
        marks=",".join(filter(None, (marks.get(key, "") for key in keys))),
        is_best=each.cell in grid.best,
        is_best_published=each.cell.bold,
    )


def _marks(grid: Grid) -> dict[str, str]:
    """Give a letter to every footnote, and to every remark that not all cells share, in order of appearance."""
    ids = dict.fromkeys(note.id for each in grid.judged for note in each.footnotes if not note.everywhere)
    own = dict.fromkeys(each.measured.note for each in grid.judged if each.measured.note)
    shared = [text for text in own if all(each.measured.note == text for each in grid.judged)]
    marked = [*ids, *(text for text in own if text not in shared)]
    letters = [*string.ascii_lowercase, *map(str, range(1, len(marked) + 1))]
    return dict(zip(marked, letters, strict=False))


def _notes(grid: Grid, with_verdicts: bool) -> list[str]:
    """Return the lines below a table: footnotes and remarks; with verdicts what they mean, and what explains them."""
    found: dict[str, Footnote] = {note.id: note for each in grid.judged for note in each.footnotes}
    marks = _marks(grid)
    texts = {id_: f"{note.text}." + f" Evidence: {note.evidence}." * with_verdicts for id_, note in found.items()}
    texts |= {each.measured.note: each.measured.note for each in grid.judged if each.measured.note}
    powers = {id_: f" ({note.power})" for id_, note in found.items() if with_verdicts and note.power}
    marked = [f"{mark}{powers.get(key, '')}: {texts[key]}" for key, mark in marks.items()]
    shared = [text for key, text in texts.items() if key not in marks]
    verdicts = [MEANING, tolerances_line(grid.judged)] if with_verdicts else []
    reduced = [REDUCED_LEGEND] if any(each.measured.reduced for each in grid.judged) else []
    return [
        *filter(None, [LEGEND, *reduced, *verdicts]),
        *marked,
        *shared,
        *filter(None, [superseded_line(grid.judged)]),
    ]


def superseded_line(judged: Sequence[Judged]) -> str:
    """Count the cells that were measured by other code than the installed one."""
    found = [each.measured.superseded for each in judged if each.measured.superseded]
    changes = "; ".join(dict.fromkeys(found))
    cells, them = ("cell is", "it") if len(found) == 1 else ("cells are", "them")
    return f"{len(found)} {cells} superseded ({changes}): rrbench run --paper measures {them} again." if found else ""


def _text(grid: Grid, sources: str, with_verdicts: bool) -> str:
    """Put as many of the paper's columns side by side as fit in a line of text; the rest goes below."""
    marks = _marks(grid)
    blocks = [_block(grid, index, marks, with_verdicts) for index in range(len(grid.columns))]
    names = [list(grid.titles), *map(list, grid.lines)]
    left = render(names[0], names[1:], "text").splitlines()
    left = [" " * len(left[1]), *left]
    # A user's long name is cut rather than a number.
    width = min(max(map(len, left)), WIDTH - 2 - max(len(block[0]) for block in blocks))
    left = [_cut(line, width) for line in left]
    rows: list[list[list[str]]] = [[]]
    for block in blocks:
        used = width + sum(len(each[0]) + 2 for each in rows[-1])
        if rows[-1] and used + 2 + len(block[0]) > WIDTH:
            rows.append([])
        rows[-1].append(block)
    parts = [
        "\n".join("  ".join(line).rstrip() for line in zip(_padded(left, width), *row, strict=True)) for row in rows
    ]
    notes = [line for note in [*_notes(grid, with_verdicts), sources] for line in textwrap.wrap(note, WIDTH)]
    return "\n".join([*textwrap.wrap(grid.title, WIDTH), "\n\n".join(parts), *notes])


def _cut(line: str, width: int) -> str:
    """Take letters out of the middle: lines often differ in their last word alone."""
    tail = (width - 1) // 2
    return line if len(line) <= width else f"{line[: width - 1 - tail]}~{line[-tail:]}"


def _padded(lines: Sequence[str], width: int) -> list[str]:
    return [line.ljust(width) for line in lines]


def _block(grid: Grid, column: int, marks: dict[str, str], with_verdicts: bool) -> list[str]:
    """Return one of the paper's columns as lines of equal width: title, header, rule, then the cells."""
    fields = [
        None if (each := grid.at(line, column)) is None else _field(grid, each, marks, with_verdicts)
        for line in range(len(grid.lines))
    ]
    header = ["ours", "paper", "diff", "verdict" if with_verdicts else "interval", "note"]
    cells = [["", "", "", "", ""] if field is None else _starred(field) for field in fields]
    used = [index for index in range(5) if index == 0 or any(line[index] for line in cells)]
    table = [[line[index] for index in used] for line in [header, *cells]]
    widths = [max(len(line[index]) for line in table) for index in range(len(used))]
    lines = [" ".join(field.rjust(width) for field, width in zip(line, widths, strict=True)) for line in table]
    name = " ".join(filter(None, grid.columns[column])) or "value"
    width = max(len(lines[0]), len(name))
    return _padded([name, lines[0].rjust(width), "-" * width, *(line.rjust(width) for line in lines[1:])], width)


def _starred(field: PrintedCell) -> list[str]:
    ours = field.ours + ("*" if field.is_best else " ")
    paper = field.paper + ("*" if field.is_best_published else " ") if field.paper else ""
    return [ours, paper, field.difference, field.extra, field.marks]


def _table(grid: Grid, with_verdicts: bool) -> tuple[list[str], list[list[PrintedCell | str]]]:
    """Return the header and the fields of the whole table, line by line."""
    marks = _marks(grid)
    header = [*grid.titles, *(" ".join(filter(None, words)) or "value" for words in grid.columns)]
    body: list[list[PrintedCell | str]] = []
    for index, words in enumerate(grid.lines):
        fields: list[PrintedCell | str] = []
        for column in range(len(grid.columns)):
            each = grid.at(index, column)
            fields.append("" if each is None else _field(grid, each, marks, with_verdicts))
        body.append([*words, *fields])
    return header, body


def _markdown(grid: Grid, sources: str, with_verdicts: bool) -> str:
    def one(field: PrintedCell | str) -> str:
        if isinstance(field, str):
            return field
        ours = f"**{field.ours}**" if field.is_best else field.ours
        paper = f"**{field.paper}**" if field.is_best_published else field.paper
        more = " ".join(filter(None, [f"({field.difference})" if field.difference else "", field.extra]))
        return " ".join(
            filter(None, [ours, f"/ {paper}" if paper else "", more, f"^{field.marks}^" * bool(field.marks)])
        )

    header, body = _table(grid, with_verdicts)
    table = render(header, [[one(field) for field in line] for line in body], "markdown", grid.title)
    notes = [note.replace("*", "\\*") for note in [*_bold_notes(grid, with_verdicts), sources]]
    return "\n\n".join([table, *notes])


def _bold_notes(grid: Grid, with_verdicts: bool) -> list[str]:
    first, *rest = _notes(grid, with_verdicts)
    return [first.replace("* is", "Bold is"), *rest]


def _latex(grid: Grid, sources: str, with_verdicts: bool) -> str:
    def one(field: PrintedCell | str) -> str:
        if isinstance(field, str):
            return escape_latex(field)
        ours = rf"\textbf{{{field.ours}}}" if field.is_best else field.ours
        paper = rf"\textbf{{{field.paper}}}" if field.is_best_published else field.paper
        mark = rf"$^{{\mathrm{{{field.marks}}}}}$" if field.marks else ""
        difference = f"${field.difference}$" if field.difference else ""
        second = " ".join(filter(None, [paper, difference]))
        extra = field.extra.replace("..", "--")
        return stacked_latex([line for line in (ours + mark, second, extra) if line])

    _, body = _table(grid, with_verdicts)
    heads = [*map(escape_latex, grid.titles)]
    heads += [stacked_latex([escape_latex(word) for word in words if word] or ["value"]) for words in grid.columns]
    notes = _bold_notes(grid, with_verdicts)
    return latex_table(
        heads,
        [[one(field) for field in line] for line in body],
        names=len(grid.titles),
        caption=escape_latex(grid.title),
        notes=[escape_latex(note) for note in [*notes, sources]],
        label=f"tab:rrbench-{grid.name}",
    )


def _html(grid: Grid, sources: str, with_verdicts: bool) -> str:
    def one(field: PrintedCell | str) -> str:
        if isinstance(field, str):
            return escape_html(field)
        ours = f"<b>{field.ours}</b>" if field.is_best else field.ours
        paper = f"<b>{field.paper}</b>" if field.is_best_published else field.paper
        mark = f"<sup>{field.marks}</sup>" if field.marks else ""
        more = " ".join(filter(None, [paper, field.difference, field.extra]))
        return f"{ours}{mark}" + (f"<br><small>{more}</small>" if more else "")

    header, body = _table(grid, with_verdicts)
    notes = _bold_notes(grid, with_verdicts)
    return html_table(
        [*map(escape_html, header)],
        [[one(field) for field in line] for line in body],
        names=len(grid.titles),
        caption=escape_html(grid.title),
        notes=[escape_html(note) for note in [*notes, sources]],
    )
