"""The paper's lines and columns, and the best cell of each group. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from rrbench.paper.cells import PaperCell, index, toml
from rrbench.paper.judge import Judged
from rrbench.paper.wanted import is_published, radius, shown

Key = tuple[str, ...]
TITLES = {"at": "AT", "rejector": "Rejector", "attack": "Inputs", "arch": "Network", "dataset": "Data set"}


@dataclass(frozen=True)
class Grid:
    """A laid-out table; a place without a cell is blank."""

    name: str
    title: str
    titles: Key  # headings of the columns that name a line
    lines: tuple[Key, ...]
    columns: tuple[Key, ...]
    places: dict[tuple[int, int], Judged]
    best: frozenset[PaperCell]  # measured winners

    def at(self, line: int, column: int) -> Judged | None:
        """Return the cell at a place."""
        return self.places.get((line, column))

    @property
    def judged(self) -> list[Judged]:
        """All cells, line by line."""
        return [self.places[place] for place in sorted(self.places)]


def lay_out(name: str, judged: Sequence[Judged]) -> Grid:
    """Place every cell once, lines and columns in the published order."""
    entry = toml("tables.toml")[name]
    line_fields, column_fields = entry["lines"], entry["columns"]
    lines: dict[Key, int] = {}
    columns: dict[Key, int] = {}
    places: dict[tuple[int, int], Judged] = {}
    for each in judged:
        line = lines.setdefault(_key(each.cell, line_fields), len(lines))
        column = columns.setdefault(_key(each.cell, column_fields), len(columns))
        if (line, column) in places:
            raise ValueError(f"{name} has two cells for {each.cell}")
        places[line, column] = each
    one_of = {_key(each.cell, fields): each.cell for each in judged for fields in (line_fields, column_fields)}
    names = [_names(one_of[key], line_fields) for key in lines]
    # The numbers in the text need too many words for one column each.
    is_sentence = not column_fields
    return Grid(
        name=name,
        title=title(name) + _place(judged),
        titles=("Number",) if is_sentence else tuple(TITLES[field] for field in line_fields),
        lines=tuple((" ".join(filter(None, words)),) if is_sentence else words for words in names),
        columns=tuple(_names(one_of[key], column_fields) for key in columns),
        places=places,
        best=winners(name, judged),
    )


def title(name: str) -> str:
    """Return a table's name in print, its LaTeX label, and what it shows."""
    found = next((entry for entry in index() if entry.printed == name), None)
    if found is None:
        return "Numbers in the paper's text"
    return f"{name.replace('table', 'Table ')} as printed (LaTeX label {found.label}): {found.what}"


def _place(judged: Sequence[Judged]) -> str:
    """Say which data set and network a table is for, if no cell is the paper's."""
    if any(is_published(each.cell) for each in judged):
        return ""
    words = dict.fromkeys(word for each in judged for word in (each.cell.dataset, each.cell.arch))
    return f"; here for {', '.join(words)}"


def winners(name: str, judged: Sequence[Judged]) -> frozenset[PaperCell]:
    """Return the best measured cells, wherever two or more compete."""
    fields = toml("tables.toml")[name]["winner"]
    groups: dict[Key, list[Judged]] = {}
    for each in judged if fields else ():
        if each.measured.value is not None:
            # A weaker attack must not win against the whole one.
            groups.setdefault((*_key(each.cell, fields), each.measured.reduced), []).append(each)
    best: set[PaperCell] = set()
    for group in groups.values():
        top = max(each.measured.value for each in group if each.measured.value is not None)
        best |= {each.cell for each in group if each.measured.value == top and len(group) > 1}
    return frozenset(best)


def _key(cell: PaperCell, fields: Sequence[str]) -> Key:
    return tuple(cell.part(field) for field in fields)


def _names(cell: PaperCell, fields: Sequence[str]) -> Key:
    """Return the printed words of a line or a column."""
    return tuple(_name(cell, field) for field in fields)


def _name(cell: PaperCell, field: str) -> str:
    if field != "budget":
        return shown(field, cell.part(field))
    return f"{cell.norm} {radius(cell)}" if cell.eps else ""
