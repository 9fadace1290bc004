"""Finds, by comparing rows, attacks that were too weak to be believed. Imports no torch."""

import dataclasses
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from rrbench.errors import UseError
from rrbench.names import radius_text
from rrbench.plugins.catalogue import plugin_name
from rrbench.rows.notes import WEAK, joined, notes_of
from rrbench.rows.row import ResultRow, order, stated
from rrbench.rows.sight import is_blind, keeps_answers, looks

MUCH = 5.0  # points of accuracy: if more steps or restarts take away more, the attack had too few
ANY = 1.0  # points that an attack without gradients, or with a smaller radius, may win by chance
# For deploy_robust, measured on the 360 inputs of digits: another random start moved it by up to 1.7 points, and the
# adaptive objectives with the same cost differed by up to 4.2.
LUCK, KIN = 2.0, 5.0


def with_weak_notes(rows: Iterable[ResultRow], *, is_whole: bool = True) -> list[ResultRow]:
    """Return the rows; notes name attacks with the same budget that show a row's attack to be weak.

    If `rows` may be only a part of the measured rows (not `is_whole`), earlier notes of this kind are kept.
    """
    rows = list(rows)
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        if row.status == "ok" and row.eps and row.acc_all is not None:
            groups.setdefault(_setting(row), []).append(row)
    for group in groups.values():
        group.sort(key=order)  # if two attacks show the same, always name the same one
    return [_noted(row, _weaknesses(row, groups.get(_setting(row), [])), is_whole=is_whole) for row in rows]


def _setting(row: ResultRow) -> tuple[object, ...]:
    """Return what two rows must share so that their attacks can be compared."""
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
        row.data_sha256,
    )


def _noted(row: ResultRow, weaknesses: list[str], *, is_whole: bool) -> ResultRow:
    others = [note for note in notes_of(row) if not (is_whole and note.startswith(WEAK))]
    return dataclasses.replace(row, note=joined([*others, *(WEAK + weakness for weakness in weaknesses)]))


def _weaknesses(row: ResultRow, group: list[ResultRow]) -> list[str]:
    """Say which attacks do more harm than a row's attack, though they should not."""
    if row not in group or row.acc_all is None or keeps_answers(row):
        return []
    same_budget = [other for other in group if Fraction(other.eps) == Fraction(row.eps)]
    # A smaller ball lies inside the larger one, so the attack in the larger ball should do at least as well.
    smaller = [other for other in group if Fraction(other.eps) < Fraction(row.eps)]
    inside = [other for other in smaller if _is_longer(other, row, or_same=True)]
    longer = [other for other in same_budget if _is_longer(other, row)]
    free = [other for other in same_budget if row.gradients and _is_gradient_free(other)]
    elsewhere = [other for other in same_budget if row.gradients and not _is_transfer(row) and _is_transfer(other)]
    rules = (
        (inside, ANY, "{attack} takes {points:.1f} points more within {radius}"),
        (longer, MUCH, "more steps or restarts still help: {attack} takes {points:.1f} points more"),
        (free, ANY, "{attack}, without any gradient, takes {points:.1f} points more"),
        (elsewhere, ANY, "{attack}, moved on another network, takes {points:.1f} points more"),
    )
    found = []
    for others, allowed, text in rules:
        best = max(others, key=lambda other: _gain(row, other), default=row)
        if (points := _gain(row, best)) > allowed:
            found.append(text.format(attack=best.attack, points=points, radius=radius_text(Fraction(best.eps))))
    return [*found, *_beaten(row, same_budget)]


def _beaten(row: ResultRow, same_budget: list[ResultRow]) -> list[str]:
    """Say which attack lowers deploy_robust more than an adaptive attack or the worst case does."""
    if not looks(row):
        return []
    is_worst = "members" in stated(row)
    lead = {
        other.attack: _lead(row, other)
        for other in same_budget
        if _lead(row, other) > (LUCK if is_worst or is_blind(other) else KIN)
    }
    if not lead:
        return []
    best = max(lead, key=lambda attack: lead[attack])
    blind = any(other.attack == best and is_blind(other) for other in same_budget)
    which = ", which does not look at the rejector," if blind else ""
    return [f"{best}{which} leaves deploy_robust {lead[best]:.1f} points lower"]


def _lead(row: ResultRow, other: ResultRow) -> float:
    """Return by how many points another attack leaves deploy_robust lower; 0 if a threshold is unknown."""
    if row.deploy_robust is None or other.deploy_robust is None:
        return 0.0
    return row.deploy_robust - other.deploy_robust


def _gain(row: ResultRow, other: ResultRow) -> float:
    """Return by how many points another attack leaves accuracy lower."""
    return (row.acc_all or 0.0) - (other.acc_all or 0.0)


def _is_longer(other: ResultRow, row: ResultRow, *, or_same: bool = False) -> bool:
    """Tell whether two attacks differ only in that `other` has more steps or restarts."""
    here, there = (_effort(each) for each in (row, other))
    if not {"steps", "restarts"} <= here.keys() or here.keys() != there.keys():
        return False
    same = all(here[key] == there[key] for key in here if key not in ("steps", "restarts"))
    is_more = here["steps"] <= there["steps"] and here["restarts"] <= there["restarts"]
    return same and is_more and (or_same or here != there) and family(row) == family(other)


def family(row: ResultRow) -> str:
    """Return the attack's name without its settings: `pgd` for `pgd100x10`."""
    try:
        return plugin_name("attack", row.attack)
    except UseError:  # a user's own attack may have a name that cannot be parsed
        return row.attack


def _is_gradient_free(row: ResultRow) -> bool:
    """Tell whether an attack used no gradient; an ensemble does not count, as its members use them."""
    return row.gradients == 0 and "members" not in stated(row)


def _is_transfer(row: ResultRow) -> bool:
    """Tell whether images were moved on another network; the victim's own gradients should do more harm."""
    return "moved_on" in stated(row)


def _effort(row: ResultRow) -> dict[str, Any]:
    attack = stated(row).get("attack")
    return attack if isinstance(attack, dict) else {}
