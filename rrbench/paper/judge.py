"""Compares a measured cell with its published value: within its tolerance, or out and explained, or not. No torch.

Only the difference decides what is within. A footnote says why a cell is out; it never moves a cell within.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any, Literal

from rrbench.numbers import counted
from rrbench.paper.cells import PaperCell, toml
from rrbench.paper.fill import Filled
from rrbench.paper.reduced import REDUCED
from rrbench.paper.wanted import is_published

Verdict = Literal["within", "explained", "unexplained", "undefined", "missing", ""]
Side = Literal["above", "below"]
Cells = Sequence[tuple[PaperCell, Filled]]
PERCENTAGES = ("acc_all", "acc_tpr95")
ROUNDING = 1e-9
MEANING = (
    "within: as near to the paper as the tolerance. explained: further off, and a footnote says why. "
    "unexplained: further off, and no footnote says why."
)
CHOICE = "The tolerances are our choice, the paper gives none"


@dataclass(frozen=True)
class Footnote:
    """What a reader must know to compare a cell."""

    id: str
    text: str
    evidence: str
    explains: tuple[Side, ...]  # on which side of the paper's value it explains a cell
    order: bool  # it does so only while the cells of its `where` have the paper's order
    everywhere: bool  # stated once for the whole table, not at each cell
    preset: str  # it explains only what rows of this preset measured; empty: of any
    where: Mapping[str, list[str]]

    @property
    def power(self) -> str:
        """Say in a few words which cells it explains; empty if none."""
        if not self.explains:
            return ""
        sides = f"explains what is {' or '.join(self.explains)}"
        return f"{sides}, where the order is the paper's" if self.order else sides


@dataclass(frozen=True)
class Judged:
    """A published cell with its measurement, verdict and footnotes."""

    cell: PaperCell
    measured: Filled
    verdict: Verdict
    footnotes: tuple[Footnote, ...]

    @property
    def named(self) -> str:
        """The verdict as it is printed: that of a reduced cell says so."""
        return f"{REDUCED} {self.verdict}".rstrip() if self.measured.reduced else self.verdict

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        ours, theirs = self.measured.value, self.cell.published
        return None if ours is None or theirs is None else ours - theirs


def judge(cells: Cells) -> list[Judged]:
    """Give every cell of a table its verdict and its footnotes."""
    found = []
    for cell, measured in cells:
        notes = footnotes(cell, measured.stand_in)
        found.append(Judged(cell, measured, _verdict(cell, measured, notes, cells), notes))
    return found


def footnotes(cell: PaperCell, stand_in: str = "") -> tuple[Footnote, ...]:
    """Return the footnotes of a published cell, and of the data set that stands in for its own.

    A relabelled cell has nothing to compare with.
    """
    if not is_published(cell):
        return ()
    cell = replace(cell, dataset=stand_in or cell.dataset)
    return tuple(note for note in _all_footnotes() if cell.fits(note.where))


@cache
def _all_footnotes() -> tuple[Footnote, ...]:
    return tuple(
        Footnote(
            id=entry["id"],
            text=entry["text"],
            evidence=entry["evidence"],
            explains=tuple(entry["explains"]),
            order=entry.get("order", False),
            everywhere=entry.get("everywhere", False),
            preset=entry.get("preset", ""),
            where=entry["where"],
        )
        for entry in toml("footnotes.toml")["footnote"]
    )


def tolerance(cell: PaperCell) -> float:
    """Return how far a cell may be from its published value."""
    entry = _tolerance_entry(cell)
    if cell.metric in PERCENTAGES and "points" in entry:
        return float(entry["points"])
    if cell.metric == "auc" and "auc" in entry:
        return float(entry["auc"])
    return float(entry["relative"]) * abs(cell.published or 0.0)


def _tolerance_entry(cell: PaperCell) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        entry for entry in toml("tolerances.toml")["tolerance"] if cell.fits(entry["where"])
    )
    return found


def tolerances_line(judged: Sequence[Judged]) -> str:
    """State the tolerances of a table's cells, their reasons, and that they are our choice."""
    used = [_tolerance_entry(each.cell) for each in judged if each.cell.published is not None]
    texts = [
        f"{_bounds(entry)} for {entry['of']} ({entry['reason']})"
        for entry in toml("tolerances.toml")["tolerance"]
        if entry in used
    ]
    return f"{CHOICE}: {'; '.join(texts)}." if texts else ""


def _bounds(entry: Mapping[str, Any]) -> str:
    if "relative" in entry:
        return f"{100 * entry['relative']:g} %"
    return f"{entry['points']:g} points and {entry['auc']:g} of AUC"


def _verdict(cell: PaperCell, measured: Filled, notes: Sequence[Footnote], cells: Cells) -> Verdict:
    if measured.value is None:
        return "undefined" if measured.is_undefined else "missing"
    if cell.published is None:
        return ""
    difference = measured.value - cell.published
    if abs(difference) <= tolerance(cell) + ROUNDING:
        return "within"
    side: Side = "above" if difference > 0 else "below"
    explaining = [note for note in notes if side in note.explains and note.preset in ("", measured.preset)]
    if any(not note.order or _has_order(cell, measured, note, cells) for note in explaining):
        return "explained"
    return "unexplained"


def _has_order(cell: PaperCell, own: Filled, note: Footnote, cells: Cells) -> bool:
    """Tell whether all cells beside this one are in the paper's order, where the paper puts two clearly apart.

    An order that tests nothing of this cell is none. A reduced cell and a full one test nothing.
    """
    beside = [
        (other, other.published, measured.value)
        for other, measured in cells
        if measured.value is not None
        and other.published is not None
        and measured.reduced == own.reduced
        and _is_beside(cell, other, note)
    ]
    tested: set[PaperCell] = set()
    for (one, theirs, ours), (other, their_other, our_other) in combinations(beside, 2):
        if abs(theirs - their_other) > tolerance(cell):
            if (theirs - their_other) * (ours - our_other) < 0:
                return False
            tested |= {one, other}
    return cell in tested


def _is_beside(cell: PaperCell, other: PaperCell, note: Footnote) -> bool:
    shared = ("table", "dataset", "arch", "at", "attack", "norm", "eps", "metric")
    return other.fits(note.where) and all(cell.part(key) == other.part(key) for key in shared)


def summary(name: str, judged: Sequence[Judged]) -> str:
    """Count the verdicts in one line, those of reduced cells apart."""
    reduced = [each for each in judged if each.measured.reduced]
    full = [each for each in judged if not each.measured.reduced]
    text = f"{name}: {counted(len(judged), 'cell')}: {_counts(full, ('within', 'explained', 'unexplained', 'missing'))}"
    apart = _counts(reduced, ("within", "explained", "unexplained"))
    return text + (f"; {len(reduced)} reduced: {apart}" if reduced else "")


def _counts(judged: Sequence[Judged], words: Sequence[Verdict]) -> str:
    counts = {word: sum(each.verdict == word for each in judged) for word in (*words, "undefined", "")}
    text = ", ".join(f"{counts[word]} {word}" for word in words)
    text += f", {counts['undefined']} undefined" if counts["undefined"] else ""
    return text + (f"; {counts['']} measured without a published value" if counts[""] else "")


def is_failing(judged: Sequence[Judged]) -> bool:
    """Tell whether a measured cell is out of tolerance and no footnote explains it."""
    return any(each.verdict == "unexplained" for each in judged)
