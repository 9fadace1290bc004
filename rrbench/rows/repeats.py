"""Which rows repeat one another with other seeds, and which only have the same names. Imports no torch.

Two networks, two rejectors of one name, an edited plugin: their rows look alike, so a mark tells them apart.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rrbench.rows.row import ResultRow, revisions_of, stated

SHOWN = 8  # digits of a hash

Parts = dict[str, str]  # {a property that may differ between two rows: its text}


class Names(NamedTuple):
    """The names that tables print for a victim and its measurement."""

    dataset: str
    network: str
    trained_as: str
    rejector: str
    preset: str
    n: int | None
    precision: str


def names(row: ResultRow) -> Names:
    """Return a row's names."""
    return Names(row.dataset, row.network, row.trained_as, row.rejector, row.preset, row.n, row.precision)


def victim_marks(rows: Iterable[ResultRow]) -> dict[ResultRow, str]:
    """Return for each row a mark that tells its victim from others with the same names; empty if there is no other."""
    groups: dict[Names, list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(names(row), []).append(row)
    marks: dict[ResultRow, str] = {}
    for group in groups.values():
        marks |= _marks([(row, _victim(row, has_rivals=_has_rivals(group))) for row in group])
    return marks


def marks_in_all_presets(rows: Iterable[ResultRow]) -> dict[ResultRow, str]:
    """Return marks as `victim_marks` does, where a preset and a precision belong to the attack, not to the victim."""
    alike = {row: replace(row, preset="", precision="") for row in rows}
    marks = victim_marks(alike.values())
    return {row: marks[one] for row, one in alike.items()}


def data_marks(rows: Iterable[ResultRow]) -> dict[ResultRow, str]:
    """Return for each row the hash of its test inputs where others of that name and number have another; else ""."""
    hashes: dict[tuple[str, int | None], set[str]] = {}
    rows = list(rows)
    for row in rows:
        hashes.setdefault((row.dataset, row.n), set()).add(row.data_sha256)
    return {row: row.data_sha256[:SHOWN] if len(hashes[row.dataset, row.n] - {""}) > 1 else "" for row in rows}


def row_marks(rows: Iterable[ResultRow]) -> dict[ResultRow, str]:
    """Return for each row a mark that tells it from others with the same names and attack that do not repeat it.

    Rows on other test inputs than the rest are marked, too, whatever their names.
    """
    rows = list(rows)
    victims, data = victim_marks(rows), data_marks(rows)
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((names(row), victims[row], row.attack, row.norm, row.eps), []).append(row)
    attacks: dict[ResultRow, str] = {}
    for group in groups.values():
        attacks |= _marks([(row, _attack(row)) for row in group])
    others = {row: f"data {data[row]}" if data[row] and "data " not in victims[row] else "" for row in rows}
    return {row: ", ".join(filter(None, (others[row], victims[row], attacks[row]))) for row in rows}


def _has_rivals(group: Sequence[ResultRow]) -> bool:
    """Tell whether a group's networks are not just seeds of one training: two share a seed, or are a user's own."""
    networks: dict[int, set[str]] = {}
    for row in group:
        networks.setdefault(row.seed, set()).add(row.checkpoint_sha256)
    return not group[0].trained_as or any(len(found) > 1 for found in networks.values())


def _victim(row: ResultRow, *, has_rivals: bool) -> Parts:
    revisions, settings = revisions_of(row), stated(row)
    parts = {
        kind: str(revisions.get(kind, "")) for kind in ("rejector", "network", "dataset", "framework", "deployment")
    }
    made = {kind: settings.get(kind) for kind in ("rejector", "framework", "recipe") if kind in settings}
    return parts | {
        "checkpoint": row.checkpoint_sha256 if has_rivals else "",
        "settings": json.dumps(made, sort_keys=True),
        "data": row.data_sha256,
    }


def _attack(row: ResultRow) -> Parts:
    revisions, settings = revisions_of(row), stated(row)
    parts = {
        kind: json.dumps(revisions.get(kind)) for kind in ("attack", "engine", "calibration", "members", "packages")
    }
    return parts | {"attack settings": json.dumps([settings.get("attack"), settings.get("members")], sort_keys=True)}


def _marks(found: Sequence[tuple[ResultRow, Parts]]) -> dict[ResultRow, str]:
    """Name, for each row, the parts in which the rows differ."""
    differ = [part for part in found[0][1] if len({parts[part] for _, parts in found}) > 1]
    orders = {part: list(dict.fromkeys(parts[part] for _, parts in found)) for part in differ}

    def say(part: str, text: str) -> str:
        if part in ("settings", "attack settings"):  # too long to print: number them
            return f"{part} {orders[part].index(text) + 1}"
        return f"{part} {text[:SHOWN] if part in ('checkpoint', 'data') else text}"

    return {row: ", ".join(say(part, parts[part]) for part in differ) for row, parts in found}


def gather(rows: Iterable[ResultRow]) -> list[tuple[ResultRow, ...]]:
    """Group rows of one victim, one attack and one code, one row for each seed: the first with that seed."""
    return [groups[0] for groups in _repetitions(rows)]


def gather_all(rows: Iterable[ResultRow]) -> list[tuple[ResultRow, ...]]:
    """Group rows as `gather` does and leave none out: a second row of one seed begins another group."""
    return [group for groups in _repetitions(rows) for group in groups]


def _repetitions(rows: Iterable[ResultRow]) -> list[list[tuple[ResultRow, ...]]]:
    rows = list(rows)
    marks = row_marks(rows)
    found: dict[tuple[object, ...], list[dict[int, ResultRow]]] = {}
    for row in rows:
        groups = found.setdefault((names(row), row.attack, row.norm, row.eps, marks[row]), [])
        group = next((each for each in groups if row.seed not in each), None)
        if group is None:
            groups.append(group := {})
        group[row.seed] = row
    return [[tuple(group.values()) for group in groups] for groups in found.values()]
