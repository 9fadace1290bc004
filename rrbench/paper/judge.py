"""Compares a measured cell with its published value, within the tolerances and footnotes on file. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rrbench.numbers import counted
from rrbench.paper.cells import PaperCell, toml
from rrbench.paper.fill import Filled
from rrbench.paper.wanted import is_published

Verdict = Literal["within", "above", "below", "undefined", "missing", ""]
PERCENTAGES = ("acc_all", "acc_tpr95")
ROUNDING = 1e-9


@dataclass(frozen=True)
class Footnote:
    """What a reader must know to compare a cell."""

    id: str
    text: str
    evidence: str
    excuses: tuple[Verdict, ...]  # verdicts that it gives a reason for
    everywhere: bool  # stated once for the whole table, not at each cell


@dataclass(frozen=True)
class Judged:
    """A published cell with its measurement, verdict and footnotes."""

    cell: PaperCell
    measured: Filled
    verdict: Verdict
    footnotes: tuple[Footnote, ...]

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        ours, theirs = self.measured.value, self.cell.published
        return None if ours is None or theirs is None else ours - theirs

    @property
    def is_out(self) -> bool:
        """Out of tolerance."""
        return self.verdict in ("above", "below")

    @property
    def is_excused(self) -> bool:
        """Out of tolerance, for a reason on file."""
        return self.is_out and any(self.verdict in note.excuses for note in self.footnotes)


def judge(cells: Sequence[tuple[PaperCell, Filled]]) -> list[Judged]:
    """Give every cell of a table its verdict and its footnotes."""
    return [
        Judged(cell, measured, _verdict(cell, measured, cells), footnotes(cell, measured.stand_in))
        for cell, measured in cells
    ]


def footnotes(cell: PaperCell, stand_in: str = "") -> tuple[Footnote, ...]:
    """Return the footnotes of a published cell, and of the data set that stands in for its own.

    A relabelled cell has nothing to compare with.
    """
    if not is_published(cell):
        return ()
    cell = replace(cell, dataset=stand_in or cell.dataset)
    return tuple(
        Footnote(entry["id"], entry["text"], entry["evidence"], tuple(entry["excuses"]), entry.get("everywhere", False))
        for entry in toml("footnotes.toml")["footnote"]
        if cell.fits(entry["where"])
    )


def tolerance(cell: PaperCell) -> tuple[float, bool]:
    """Return how far a cell may be from its published value, and whether only the order among rejectors counts."""
    entry = next(entry for entry in toml("tolerances.toml")["tolerance"] if cell.fits(entry["where"]))
    is_order = bool(entry.get("order", False))
    if cell.metric in PERCENTAGES and "points" in entry:
        return float(entry["points"]), is_order
    if cell.metric == "auc" and "auc" in entry:
        return float(entry["auc"]), is_order
    return float(entry["relative"]) * abs(cell.published or 0.0), is_order


def _verdict(cell: PaperCell, measured: Filled, cells: Sequence[tuple[PaperCell, Filled]]) -> Verdict:
    if measured.value is None:
        return "undefined" if measured.is_undefined else "missing"
    if cell.published is None:
        return ""
    allowed, is_order = tolerance(cell)
    if is_order:
        return _order_verdict(cell, measured.value, allowed, cells)
    difference = measured.value - cell.published
    if abs(difference) <= allowed + ROUNDING:
        return "within"
    return "above" if difference > 0 else "below"


def _order_verdict(cell: PaperCell, value: float, apart: float, cells: Sequence[tuple[PaperCell, Filled]]) -> Verdict:
    """Compare a cell with similar cells in its column, if the paper puts them clearly apart."""
    for other, measured in cells:
        if measured.value is None or other.published is None or not _is_beside(cell, other):
            continue
        assert cell.published is not None
        published = cell.published - other.published
        if published > apart and value < measured.value:
            return "below"
        if published < -apart and value > measured.value:
            return "above"
    return "within"


def _is_beside(cell: PaperCell, other: PaperCell) -> bool:
    shared = ("table", "dataset", "arch", "at", "attack", "norm", "eps", "metric")
    return tolerance(other)[1] and all(cell.part(key) == other.part(key) for key in shared)


def summary(name: str, judged: Sequence[Judged]) -> str:
    """Count the verdicts in one line."""
    counts = {word: sum(each.verdict == word for each in judged) for word in ("within", "above", "below", "missing")}
    excused = sum(each.is_excused for each in judged)
    alone = sum(each.verdict == "" for each in judged)
    undefined = sum(each.verdict == "undefined" for each in judged)
    text = f"{name}: {counted(len(judged), 'cell')}: " + ", ".join(f"{count} {word}" for word, count in counts.items())
    text += f", {undefined} undefined" if undefined else ""
    text += f"; {excused} of those out of tolerance have a footnote that excuses them" if excused else ""
    return text + (f"; {alone} measured without a published value" if alone else "")


def is_failing(judged: Sequence[Judged]) -> bool:
    """Tell whether a measured cell is out of tolerance without an excuse."""
    return any(each.is_out and not each.is_excused for each in judged)
