"""Finds what rows measured for each published cell. Imports no torch.

With one training: the row's own interval, 95 % over examples (Wilson's for plain accuracy; none for distances).
With several: their mean, with Student's 95 % interval over trainings. The cells of a table use the same seeds.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rrbench.metrics.intervals import mean_interval, share_interval
from rrbench.paper.cells import PaperCell
from rrbench.paper.matching import Rows
from rrbench.paper.wanted import Wanted, column, is_published, never, presets_for, stand_ins, wanted
from rrbench.rows.currency import superseded
from rrbench.rows.row import ResultRow, order

PRECISIONS = ("fp32", "tf32", "bf16")  # if two rows differ only in precision, the more exact one counts
WITH_INTERVAL = ("acc_tpr95", "auc")
UNDEFINED = "undefined: measured, and there is no value (no TPR-95 or AUC where no answer is right)"


@dataclass(frozen=True)
class Filled:
    """What rows measured for a cell; `value` is None if there is no row or no value, and `note` says why."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    trainings: int = 0
    seeds: frozenset[int] = frozenset()  # of these trainings
    preset: str = ""
    note: str = ""
    is_undefined: bool = False  # measured, but the metric has no value: all answers right, or none
    superseded: str = ""  # revisions that differ between the row and this installation
    stand_in: str = ""  # the data set of the rows, if it is not the cell's own
    reduced: str = ""  # in which way the rows are on fewer inputs or by a weaker attack; empty if they are not


def fill(cell: PaperCell, rows: Rows, preset: str | None = None) -> Filled:
    """Measure a cell from the rows of one preset: the given one, else the first preset that has all rows.

    Reduced rows fill it only if no preset and no stand-in has full ones.
    """
    reason = never(cell)
    if reason:
        return Filled(note=reason)
    notes: list[str] = []
    tried: dict[tuple[Wanted, ...], tuple[PaperCell, str, str]] = {}  # two stand-ins may differ in one corruption only
    for stand_in in ("", *stand_ins(cell.dataset)):
        like = replace(cell, dataset=stand_in or cell.dataset)
        for name in [preset] if preset else presets_for(cell):
            if (needed := wanted(like, name)) in tried:
                continue
            tried[needed] = like, name, stand_in
            measured = _from(like, name, [rows.find(each) for each in needed])
            if measured.value is not None or measured.is_undefined:
                return replace(measured, stand_in=stand_in)
            notes += [f"{stand_in}: {measured.note}" if stand_in else measured.note] if measured.note else []
    for needed, (like, name, stand_in) in tried.items():
        less = _from_reduced(like, name, needed, rows)
        if less is not None:
            remarks = [less.reduced, less.note, *(f"in full: {note}" for note in notes)]
            return replace(less, stand_in=stand_in, note="; ".join(filter(None, remarks)))
    return Filled(note="; ".join(notes))


def fill_all(cells: Sequence[PaperCell], rows: Rows, preset: str | None = None) -> list[tuple[PaperCell, Filled]]:
    """Measure the cells of a table, all with the same seeds: those that every measured cell has.

    Else a mean of two trainings would stand beside one training of another line, and chance would rank them. If no seed
    is common, the one that most cells have counts, and a cell without it says which seed it is of.
    """
    found = [(cell, fill(cell, rows, preset)) for cell in cells]
    own = [measured.seeds for _, measured in found if measured.seeds]
    if not own:
        return found
    common = own[0].intersection(*own)
    if not common:
        counts = Counter(seed for seeds in own for seed in seeds)
        common = frozenset({max(sorted(counts), key=lambda seed: counts[seed])})
    shared = rows.of_seeds(common)
    return [(cell, _of_seeds(common, cell, measured, shared, preset)) for cell, measured in found]


def _of_seeds(common: frozenset[int], cell: PaperCell, measured: Filled, rows: Rows, preset: str | None) -> Filled:
    """Measure a cell again if it has more seeds than the table; say so, and what has others."""
    more = measured.seeds - common
    if not more:
        return measured
    if more == measured.seeds:
        return _noted(measured, f"of {_named(more)}, unlike the table")
    verb = "is" if len(more) == 1 else "are"
    return _noted(fill(cell, rows, preset), f"{_named(more)} {verb} measured too, but not for every line")


def _named(seeds: Collection[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"


def _noted(measured: Filled, remark: str) -> Filled:
    return replace(measured, note="; ".join(filter(None, [measured.note, remark])))


def _from_reduced(cell: PaperCell, preset: str, needed: Sequence[Wanted], rows: Rows) -> Filled | None:
    """Measure a cell from the least reduced rows that all its parts have; else parts may also have full rows."""
    full = [[row for row in rows.find(each) if row.status == "ok"] for each in needed]
    reduced = [rows.reduced(each) for each in needed]
    for reduction in sorted({each for part in reduced for each in part}, key=lambda each: each.rank):
        alike = [part.get(reduction, []) for part in reduced]
        mixed = [_with_trainings_of(less, whole) for whole, less in zip(full, alike, strict=True)]
        for parts, remark in ((alike, ""), (mixed, ", some parts in full")):
            measured = _from(cell, preset, parts)
            if measured.value is not None or measured.is_undefined:
                return replace(measured, reduced=f"{reduction.text}{remark}")
    return None


def _with_trainings_of(less: Sequence[ResultRow], whole: Sequence[ResultRow]) -> list[ResultRow]:
    """Return full rows, and reduced ones of the trainings that have no full row."""
    have = {_training(row) for row in whole}
    return [*whole, *(row for row in less if _training(row) not in have)]


def _from(cell: PaperCell, preset: str, parts: list[list[ResultRow]]) -> Filled:
    by_training = [_trainings(part, column(cell)) for part in parts]
    shared = [key for key in by_training[0] if all(key in part for part in by_training)]
    done = [{_training(row) for row in part if row.status == "ok"} for part in parts]
    undefined = set.intersection(*done).difference(shared)
    older = ", ".join(dict.fromkeys(text for part in parts for row in part for text in superseded(row)))
    if not shared and undefined:
        seeds = frozenset(seed for seed, _ in undefined)
        return Filled(seeds=seeds, preset=preset, note=UNDEFINED, is_undefined=True, superseded=older)
    if not shared:
        return Filled(note=_absence(parts, by_training))
    first: dict[int, tuple[int, str]] = {}
    for seed, sha256 in shared:
        first.setdefault(seed, (seed, sha256))
    rivals, shared = len(shared) - len(first), list(first.values())
    each = [_mean([_value(part[key], column(cell)) for part in by_training]) for key in shared]
    is_usual = is_published(cell) and preset == "paper"
    notes = [] if is_usual else [f"preset {preset}"]
    notes += [f"{len(each)} trainings"] if len(each) > 1 else []
    notes += [f"undefined in {len(undefined)} more"] if undefined else []
    # Two networks of one seed are no two draws: one was made by other code or on another machine.
    notes += [f"not counted, since of the same seed: {rivals} more"] if rivals else []
    spread = max(_spread(part, column(cell)) for part in parts)
    notes += [f"rows of one training differ by up to {spread:.3g}, the first counts"] if spread else []
    value, low, high = each[0]
    if len(each) > 1:
        values = [value for value, _, _ in each]
        value, (low, high) = statistics.fmean(values), mean_interval(values)
    seeds = frozenset(seed for seed, _ in (*shared, *undefined))
    return Filled(value, low, high, len(each), seeds, preset, "; ".join(notes), superseded=older)


def _trainings(rows: Sequence[ResultRow], name: str) -> dict[tuple[int, str], ResultRow]:
    """Return one row for each training in which the metric is defined."""
    found: dict[tuple[int, str], ResultRow] = {}
    for row in sorted(rows, key=lambda row: (_exactness(row), *order(row))):
        if row.status == "ok" and getattr(row, name) is not None:
            found.setdefault(_training(row), row)
    return dict(sorted(found.items()))


def _training(row: ResultRow) -> tuple[int, str]:
    return row.seed, row.checkpoint_sha256


def _spread(rows: Sequence[ResultRow], name: str) -> float:
    """Return the largest difference between equally exact rows of one training."""
    values: dict[tuple[int, str, int], list[float]] = {}
    for row in rows:
        if row.status == "ok" and getattr(row, name) is not None:
            values.setdefault((row.seed, row.checkpoint_sha256, _exactness(row)), []).append(getattr(row, name))
    return max((max(each) - min(each) for each in values.values()), default=0.0)


def _exactness(row: ResultRow) -> int:
    return PRECISIONS.index(row.precision) if row.precision in PRECISIONS else len(PRECISIONS)


def _absence(parts: list[list[ResultRow]], by_training: list[dict[tuple[int, str], ResultRow]]) -> str:
    failed = next((row for part in parts for row in part if row.status != "ok"), None)
    there = sum(bool(part) for part in by_training)
    if there:
        return f"{there} of {len(parts)} parts measured"
    if failed is not None:
        return f"failed: {failed.error}"
    return ""


def _value(row: ResultRow, name: str) -> tuple[float, float | None, float | None]:
    value = float(getattr(row, name))
    if name in WITH_INTERVAL:
        return value, getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
    if name == "acc_all" and row.n:
        low, high = share_interval(value / 100 * row.n, row.n)
        return value, 100 * low, 100 * high
    return value, None, None


def _mean(
    values: Sequence[tuple[float, float | None, float | None]],
) -> tuple[float, float | None, float | None]:
    """Average parts and the ends of their intervals, as if their errors were equal: they share their images."""
    lows = [low for _, low, _ in values if low is not None]
    highs = [high for _, _, high in values if high is not None]
    is_whole = len(lows) == len(highs) == len(values)
    value = statistics.fmean(value for value, _, _ in values)
    return value, statistics.fmean(lows) if is_whole else None, statistics.fmean(highs) if is_whole else None
