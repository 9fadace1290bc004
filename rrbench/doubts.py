"""Signs, seen between rows, that an attack was too weak for its number to be believed. Imports no torch."""

import dataclasses
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from rrbench.names import radius_text
from rrbench.rows import ResultRow, stated

MARK = "weak: "
MUCH = 5.0  # points of accuracy that more steps or restarts may take away before fewer look too few
ANY = 1.0  # points by which an attack without gradients, or within a smaller radius, may win by chance


def with_doubts(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return the rows, their notes naming attacks of the same budget that show them to be weak."""
    rows = list(rows)
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        if row.status == "ok" and row.eps and row.acc_all is not None:
            groups.setdefault(_setting(row), []).append(row)
    return [_noted(row, _doubts(row, groups.get(_setting(row), []))) for row in rows]


def _setting(row: ResultRow) -> tuple[object, ...]:
    """Return all that two rows must share for their attacks to be comparable."""
    return (
        row.dataset,
        row.network,
        row.trained_as,
        row.rejector,
        row.norm,
        row.seed,
        row.preset,
        row.n,
        row.precision,
        row.checkpoint_sha256,
    )


def _noted(row: ResultRow, doubts: list[str]) -> ResultRow:
    parts = [part for part in row.note.split("; ") if part and not part.startswith(MARK)]
    return dataclasses.replace(row, note="; ".join([*parts, *(MARK + doubt for doubt in doubts)]))


def _doubts(row: ResultRow, group: list[ResultRow]) -> list[str]:
    if row not in group or row.acc_all is None:
        return []
    found = []
    beside = [other for other in group if Fraction(other.eps) == Fraction(row.eps)]
    # What lies in a small ball lies in a large one.
    inside = [
        other
        for other in group
        if Fraction(other.eps) < Fraction(row.eps) and _is_longer(other, row, or_same=True) and _gain(row, other) > ANY
    ]
    if inside:
        best = max(inside, key=lambda other: _gain(row, other))
        found.append(f"{best.attack} takes {_gain(row, best):.1f} points more within {radius_text(Fraction(best.eps))}")
    longer = [other for other in beside if _is_longer(other, row) and _gain(row, other) > MUCH]
    if longer:
        best = max(longer, key=lambda other: _gain(row, other))
        found.append(f"more steps or restarts still help: {best.attack} takes {_gain(row, best):.1f} points more")
    blind = [other for other in beside if row.gradients and _is_blind(other) and _gain(row, other) > ANY]
    if blind:
        best = max(blind, key=lambda other: _gain(row, other))
        found.append(f"{best.attack}, without any gradient, takes {_gain(row, best):.1f} points more")
    return found


def _gain(row: ResultRow, other: ResultRow) -> float:
    return (row.acc_all or 0.0) - (other.acc_all or 0.0)


def _is_longer(other: ResultRow, row: ResultRow, *, or_same: bool = False) -> bool:
    """Tell whether two attacks differ in nothing but more steps or restarts."""
    here, there = (_effort(each) for each in (row, other))
    if not {"steps", "restarts"} <= here.keys() or here.keys() != there.keys():
        return False
    same = all(here[key] == there[key] for key in here if key not in ("steps", "restarts"))
    is_more = here["steps"] <= there["steps"] and here["restarts"] <= there["restarts"]
    return same and is_more and (or_same or here != there) and family(row) == family(other)


def family(row: ResultRow) -> str:
    """Return the attack's name without its settings: pgd of pgd100x10."""
    return row.attack.partition("(")[0].rstrip("0123456789x")


def _is_blind(row: ResultRow) -> bool:
    """Tell whether an attack asked for no gradient; an ensemble's were asked for by its members."""
    return row.gradients == 0 and "members" not in stated(row)


def _effort(row: ResultRow) -> dict[str, Any]:
    attack = stated(row).get("attack")
    return attack if isinstance(attack, dict) else {}
