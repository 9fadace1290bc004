"""The page: a table of lines for each data set and budget. Only choosing and sorting need a script."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rrbench.board.lines import JOINT, Arena, Line, Reach, find_lines, without_line
from rrbench.board.opened import Source, opened
from rrbench.metrics.columns import LABELS, MEANINGS
from rrbench.numbers import counted
from rrbench.report.document import document
from rrbench.report.html import Safe, TableField, element, joined
from rrbench.report.measurements import failures_table, strip
from rrbench.report.standings import Measured
from rrbench.report.summary import COVERS
from rrbench.rows.paired import NEVER, OWN_ANSWERS, Difference, ScoreFiles, all_but_note, difference_text, scored_rows
from rrbench.rows.row import COLUMNS, ResultRow
from rrbench.rows.sight import attack_text
from rrbench.rows.tables import bounds_text, summed_up
from rrbench.rows.weak_attacks import with_weak_notes

FILES = tuple(
    (f"rrbench.{room}", name)
    for room, name in (("report", "page.css"), ("board", "board.css"), ("report", "page.js"), ("board", "board.js"))
)
QUESTION = "Which rejector holds when the attacker knows it, and is it better than never rejecting?"
RANKS = (
    f"Ranked by {LABELS[JOINT]} under the worst case: for each input the worst of several attacks, some of which know "
    "the rejector. A line without a worst case stands below the ranked ones. It shows what its strongest attack "
    "leaves, and another attack may leave less."
)
EXPLAINED = ("acc_all", "acc_tpr95", "deploy_coverage", "deploy_robust", JOINT)

Scores = dict[tuple[object, ...], ScoreFiles]


class Board(NamedTuple):
    """The whole file, and a line that says what is on it."""

    page: str
    says: str


NAMES = ("rejector", "network")  # columns of words; all others are of numbers
FEW = 5  # attacks that a line names
EMPTY = TableField("-", is_number=True)


def build_page(sources: Sequence[Source]) -> Board:
    """Return the file of all sources' rows; a row that two of them have counts once."""
    unique = {all_but_note(row): row for source in sources for row in source.results.rows}
    # Together the folders may show an attack to be weak that looks strong in its own.
    rows = with_weak_notes(unique.values(), is_whole=False)
    scores: Scores = {}
    for source in sources:
        if source.results.has_cells:
            scores |= scored_rows(source.results.source)
    arenas = find_lines(rows)
    lines = [line for found in arenas.values() for line in found]
    titles = _titles(list(arenas))
    parts = [_choice(arenas, titles)]
    parts += [
        _arena(index, titles[arena], found, rows, scores, sources)
        for index, (arena, found) in enumerate(arenas.items(), start=1)
    ]
    parts.append(_left(rows))
    ranked = sum(line.reach is Reach.WORST for line in lines)
    facts = f"{counted(len(lines), 'line')}, {ranked} attacked to the worst case"
    doubtful = sum(bool(line.doubts()) for line in lines)
    header = element(
        "header",
        element("h1", "rrbench board"),
        element("p", QUESTION, class_="question"),
        element("p", f"{', '.join(source.name for source in sources)}: {facts}.", class_="aside"),
        element("p", RANKS),
    )
    title = f"rrbench board: {', '.join(source.name for source in sources)}"
    page = document(title, header, joined([*parts, _meanings()]), FILES)
    return Board(page, f"{facts}, {doubtful} with marks")


def _titles(arenas: Sequence[Arena]) -> dict[Arena, str]:
    """Name each arena; a hash tells other data of the same name apart."""
    names = {each: f"{each.dataset}, {each.budget}, {counted(each.n or 0, 'input')}" for each in arenas}
    shown = list(names.values())
    return {
        each: f"{name}, data {each.data_sha256[:8]}" if shown.count(name) > 1 else name for each, name in names.items()
    }


def _choice(arenas: dict[Arena, list[Line]], titles: dict[Arena, str]) -> Safe:
    """Write the controls; they are hidden until the script shows them."""
    views = (("", "All lines"), ("network", "One network"), ("rejector", "One rejector"))
    buttons = [
        element("button", text, type="button", data_view=view, aria_pressed="false" if view else "true")
        for view, text in views
    ]
    options = [element("option", "all", value="")]
    options += [element("option", titles[arena], value=f"arena{index}") for index, arena in enumerate(arenas, start=1)]
    fields = [
        element("div", *buttons, class_="views", role="group", aria_label="View"),
        element("label", "Which one ", element("select", id="which")),
        element("label", "Data set and budget ", element("select", *options, id="arena")),
        element("label", "Search ", Safe('<input type="search" id="words" autocomplete="off">')),
        element("label", Safe('<input type="checkbox" id="ranked"> '), "only ranked lines", class_="tick"),
        element("p", id="count", role="status", class_="aside"),
    ]
    return element("form", *fields, id="choice", role="search", aria_label="Choose lines", hidden="")


def _arena(
    index: int,
    title: str,
    lines: Sequence[Line],
    rows: Sequence[ResultRow],
    scores: Scores,
    sources: Sequence[Source],
) -> Safe:
    ends = _ends(lines)
    never = next((line for line in lines if line.rejector == NEVER and line.reach is Reach.WORST), None)
    reference = never.worst.mean(JOINT) if never and never.worst else None
    fields = [
        _fields(line, place, _difference(line, rows, scores), ends, reference)
        for place, line in enumerate(lines, start=1)
    ]
    bodies = [_body(line, own, opened(line, sources)) for line, own in zip(lines, fields, strict=True)]
    head = [
        element(
            "th",
            name,
            scope="col",
            role="columnheader",
            **({} if name in NAMES else {"class_": "number"}),
            **({"aria_sort": "ascending"} if name == "rank" else {}),
        )
        for name in fields[0]
    ]
    ranked = sum(line.reach is Reach.WORST for line in lines)
    facts = f"{counted(len(lines), 'line')}, {ranked or 'none'} ranked"
    written = element(
        "table",
        element("thead", element("tr", *head, role="row"), role="rowgroup"),
        *bodies,
        class_="board",
        role="table",
        aria_label=title,
    )
    # A keyboard can reach a scrolling region only if it can be focused.
    region = element("div", written, class_="scroll", role="region", aria_label=title, tabindex="0")
    content = joined([element("summary", element("h2", title), element("span", facts, class_="aside")), region])
    # What nobody attacked to the worst case is folded away, unless there is nothing else.
    more = {"open": ""} if ranked or index == 1 else {}
    return element("details", content, class_="arena", id=f"arena{index}", **more)


def _ends(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the even numbers between which all drawn intervals lie."""
    found = [bound for line in lines if line.worst for bound in line.worst.interval(JOINT) or ()]
    low, high = min(found, default=0.0), max(found, default=100.0)
    return 2.0 * math.floor(low / 2), max(2.0 * math.ceil(high / 2), 2.0 * math.floor(low / 2) + 2)


def _fields(
    line: Line,
    place: int,
    beside: TableField,
    ends: tuple[float, float],
    reference: float | None,
) -> dict[str, TableField]:
    """Return the fields of a line by their columns' names."""
    trained = " ".join(filter(None, (line.first.trained_as, f"[{line.mark}]" if line.mark else "")))
    network = joined([line.first.network, *([element("span", f" {trained}", class_="bounds")] if trained else [])])
    return {
        "rank": TableField(str(place), place, is_number=True) if line.reach is Reach.WORST else EMPTY,
        "rejector": TableField(line.rejector),
        "network": TableField(network),
        f"{LABELS[JOINT]}, worst case": _joint(line),
        f"{ends[0]:.0f} to {ends[1]:.0f}": _drawn(line, ends, reference),
        f"against {NEVER}": beside,
        f"{LABELS['deploy_robust']}, worst case": _number(line.worst, "deploy_robust"),
        f"{LABELS['acc_tpr95']}, blind": _number(line.blind, "acc_tpr95"),
        f"{LABELS['acc_all']}, clean": _number(line.clean, "acc_all"),
        f"{LABELS['deploy_coverage']}, clean": _number(line.clean, "deploy_coverage"),
    }


def _joint(line: Line) -> TableField:
    if line.worst is not None:
        return _number(line.worst, JOINT)
    if line.hardest is None:
        return EMPTY
    # Without a value to sort by: another attack may leave much less.
    attack = element("span", f" {attack_text(line.hardest.first)}", class_="bounds")
    text = f"at most {summed_up(line.hardest.rows, JOINT)}"
    return TableField(element("span", text, attack, class_="so-far"), is_number=True)


def _drawn(line: Line, ends: tuple[float, float], reference: float | None) -> TableField:
    value, interval = (line.worst.mean(JOINT), line.worst.interval(JOINT)) if line.worst else (None, None)
    if value is None or interval is None:
        return TableField("", is_number=True)
    return TableField(strip(value, interval, ends, reference), value, is_number=True)


def _difference(line: Line, rows: Sequence[ResultRow], scores: Scores) -> TableField:
    found = line.beside_never(rows, scores)
    if not found:
        return EMPTY
    value = sum(each.value for each in found) / len(found)
    text, space, bounds = difference_text(found, JOINT).partition(" [")
    side = "gain" if _is_above(found) else "loss" if _is_below(found) else "level"
    beside = [element("span", space + bounds, class_="bounds")] if bounds else []
    return TableField(joined([element("span", text, class_=side), *beside]), value, is_number=True)


def _is_above(found: Sequence[Difference]) -> bool:
    return len(found) == 1 and found[0].low is not None and found[0].low > 0


def _is_below(found: Sequence[Difference]) -> bool:
    return len(found) == 1 and found[0].high is not None and found[0].high < 0


def _number(found: Measured | None, column: str) -> TableField:
    """Print a column as `rrbench table` does, with its interval if it has one, and sort by its value."""
    if found is None:
        return EMPTY
    bounds = bounds_text(found.rows, column) if f"{column}_low" in COLUMNS else ""
    parts = [summed_up(found.rows, column), *([element("span", f" {bounds}", class_="bounds")] if bounds else [])]
    return TableField(joined(parts), found.mean(column), is_number=True)


def _body(line: Line, fields: Mapping[str, TableField], content: Safe) -> Safe:
    """Write a line: a row of values, and a row that opens to the rest."""
    cells = [_cell(name, field) for name, field in fields.items()]
    said = [
        *([_worst_of(line.members)] if line.members else []),
        *([f"blind: {line.blind.first.attack}"] if line.blind else []),
    ]
    marks = [element("span", text, class_="mark") for text in line.doubts()]
    summary = element("summary", element("span", "; ".join(said) or "more", class_="aside"), *marks)
    goto = [
        element("button", text, type="button", data_view=view, data_which=which, hidden="")
        for view, which, text in (
            ("network", line.network, "This network and its rejectors"),
            ("rejector", line.rejector, "This rejector and its networks"),
        )
    ]
    inside = element("div", element("div", *goto, class_="views"), content, class_="inside")
    more = element("td", element("details", summary, inside), role="cell", colspan=str(len(fields)))
    kind = "control" if line.rejector == NEVER else "ranked" if line.reach is Reach.WORST else "unranked"
    names = {"data_network": line.network, "data_rejector": line.rejector, "data_reach": line.reach.name.lower()}
    rows = [element("tr", *cells, role="row"), element("tr", more, role="row", class_="more")]
    return element("tbody", *rows, role="rowgroup", class_=kind, **names)


def _worst_of(members: Sequence[str]) -> str:
    return f"worst of {', '.join(members) if len(members) <= FEW else f'{len(members)} attacks'}"


def _cell(name: str, field: TableField) -> Safe:
    """Write a field; on a phone its column's name stands beside it."""
    if name == "rejector":
        return element("th", field.content, scope="row", role="rowheader")
    content = element("span", field.content)
    if name in NAMES:
        return element("td", content, role="cell", data_label=name)
    value = "" if field.sort is None else repr(float(field.sort))
    return element("td", content, role="cell", data_label=name, class_="number", data_sort=value)


def _left(rows: Sequence[ResultRow]) -> Safe:
    """Show what is in no line: cells that failed, and attacks without a budget."""
    failed = [row for row in rows if row.status != "ok"]
    left = without_line(rows)
    parts = [element("section", element("h2", "Failed"), failures_table(failed), id="failed")] if failed else []
    text = (
        f"{counted(left, 'row')} of attacks without a budget {'is' if left == 1 else 'are'} on no line: see the report."
    )
    return joined([*parts, *([element("p", text, class_="aside")] if left else [])])


def _meanings() -> Safe:
    said = {LABELS[name]: MEANINGS[name] for name in EXPLAINED}
    said |= {
        f"against {NEVER}": f"{LABELS[JOINT]} minus that of {NEVER} under the same worst case, on the same inputs; "
        f"{OWN_ANSWERS} if there is none beside it on this network: minus its own answers, all accepted",
        "blind": "the attack that most lines met of those that do not look at the rejector: it may flatter",
        "strip": f"draws {LABELS[JOINT]} under the worst case and its interval; the upright line is {NEVER}",
    }
    listed = [joined([element("dt", name), element("dd", text)]) for name, text in said.items()]
    return element(
        "section",
        element("h2", "What the columns mean"),
        element("dl", *listed),
        element("p", COVERS, class_="aside"),
        id="meanings",
    )
