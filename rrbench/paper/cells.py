"""The published cells, by printed number or LaTeX label. Imports neither torch nor pandas."""

import csv
import dataclasses
import io
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, cast

from rrbench.errors import UseError
from rrbench.names import unknown

TEXT = "text"
ALL = "all"
LABEL = "label:"
FIELDS = ("table", "dataset", "arch", "at", "rejector", "attack", "norm", "eps", "metric", "value", "bold")


@dataclass(frozen=True)
class PaperCell:
    """One published number in the published files' words; `eps` counts 1/255; `value` is empty if relabelled."""

    table: str
    dataset: str
    arch: str
    at: str
    rejector: str
    attack: str
    norm: str
    eps: str
    metric: str
    value: str
    bold: bool

    @property
    def published(self) -> float | None:
        """The published number; None if the paper has none."""
        return None if self.value in ("", "nan") else float(self.value)

    @property
    def family(self) -> str:
        """The rejector without its settings."""
        return self.rejector.partition("(")[0]

    @property
    def budget(self) -> str:
        """Norm and radius as one word: `linf:8`."""
        return f"{self.norm}:{self.eps}" if self.eps else self.norm

    def part(self, name: str) -> str:
        """Return one of the cell's words, also `budget` and `family`."""
        return str(getattr(self, name))

    def fits(self, where: Mapping[str, list[str]]) -> bool:
        """Tell whether the cell matches a pattern in every column of `where`."""
        return all(any(fnmatchcase(self.part(key), pattern) for pattern in where[key]) for key in where)


class IndexLine(NamedTuple):
    """A line of index.csv."""

    printed: str
    kind: str
    label: str
    what: str


def data(name: str) -> str:
    """Return the text of a data file of this package."""
    return (resources.files("rrbench") / "paper" / name).read_text(encoding="utf-8")


@cache
def toml(name: str) -> Mapping[str, Any]:
    """Read a TOML file of this package."""
    return tomllib.loads(data(name))


def _records(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data(f"published/{name}.csv"))))


@cache
def index() -> tuple[IndexLine, ...]:
    """Return the paper's tables and figures in print order."""
    return tuple(
        IndexLine(record["printed"], record["kind"], record["latex_label"], record["what"])
        for record in _records("index")
    )


def table_names() -> list[str]:
    """Return the names of whole tables: table1 to table13, and the numbers of the text."""
    return [*(entry.printed for entry in index() if entry.kind == "table"), TEXT]


def is_paper_name(text: str) -> bool:
    """Tell whether a text names one of the paper's tables."""
    return text in (*table_names(), ALL) or text.startswith(LABEL)


def resolve(text: str) -> list[str]:
    """Return the tables that a `--paper` word names."""
    if text == ALL:
        return table_names()
    if text in table_names():
        return [text]
    if text.startswith(LABEL):
        labels = {entry.label: entry for entry in index()}
        found = labels.get(text.removeprefix(LABEL))
        if found is None:
            raise unknown("label of the paper", text.removeprefix(LABEL), labels)
        text = found.printed
    if text in {entry.printed for entry in index() if entry.kind == "figure"}:
        raise UseError(f"{text} is a figure: rrbench figure --paper {text}")
    if text in table_names():
        return [text]
    raise unknown("table of the paper", text, [*table_names(), ALL])


@cache
def cells_of(table: str) -> tuple[PaperCell, ...]:
    """Return a table's cells in the published order."""
    name = TEXT if table == TEXT else f"table{int(table.removeprefix('table')):02d}"
    return tuple(PaperCell(**cast(Any, {**record, "bold": record["bold"] == "1"})) for record in _records(name))


def relabelled(cells: tuple[PaperCell, ...], dataset: str | None, network: str | None) -> tuple[PaperCell, ...]:
    """Return the same table for another data set or network; cells that change lose their published values.

    Under a data set that stands in for the paper's own they keep them.
    """
    known = toml("names.toml")["dataset"]
    moved: dict[PaperCell, None] = {}
    for cell in cells:
        new = dataclasses.replace(cell, dataset=dataset or cell.dataset, arch=network or cell.arch)
        is_like = new.dataset in (cell.dataset, *known.get(cell.dataset, {}).get("stand_ins", ()))
        is_comparable = is_like and new.arch == cell.arch
        moved[new if is_comparable else dataclasses.replace(new, value="", bold=False)] = None
    # Two data sets side by side become one: the paper's own cell replaces the empty copy.
    kept: dict[PaperCell, PaperCell] = {}
    for cell in moved:
        key = dataclasses.replace(cell, value="", bold=False)
        if key not in kept or cell.value:
            kept[key] = cell
    return tuple(kept.values())
