"""Tells whether a row is the wanted one, setting by setting. Imports no torch: plugins are read as source text.

Labels are not enough: they print only what differs from a preset, and `--config` may change the preset itself.
"""

from collections.abc import Container, Iterable, Mapping
from copy import copy
from dataclasses import fields
from fractions import Fraction
from functools import cache
from typing import Any, Self

from rrbench.errors import UseError
from rrbench.files.disk import parse_json
from rrbench.names import parse, show
from rrbench.numbers import read_fraction
from rrbench.paper.reduced import EFFORT, Less, Reduction
from rrbench.paper.wanted import Wanted
from rrbench.plugins.catalogue import plugin_name, plugins
from rrbench.plugins.config import load_preset
from rrbench.rows.currency import is_current
from rrbench.rows.row import ResultRow, order, stated

Settings = Mapping[str, str]


class Rows:
    """Finds the rows that fill a published cell, failed ones included."""

    def __init__(self, rows: Iterable[ResultRow]) -> None:
        self._groups: dict[tuple[object, ...], list[ResultRow]] = {}
        self._sizes: dict[str, int] = {}
        for row in rows:
            self._groups.setdefault(_key(row), []).append(row)
            if not _every(row):
                self._sizes[row.dataset] = max(self._sizes.get(row.dataset, 0), row.n or 0)

    def of_seeds(self, seeds: Container[int]) -> Self:
        """Return these rows without those of other seeds."""
        found = copy(self)
        found._groups = {key: [row for row in group if row.seed in seeds] for key, group in self._groups.items()}
        return found

    def find(self, wanted: Wanted) -> list[ResultRow]:
        """Return the rows that match exactly, over all test images; failed rows have no `n`.

        Rows of the installed code are preferred; if none was measured, superseded rows, all of one revision.
        """
        size = self._size(wanted)
        return _preferred(
            [
                row
                for row in self._groups.get(_key(wanted), [])
                if (row.n == size or row.status != "ok") and not _every(row) and shortfall(row, wanted) == ()
            ]
        )

    def reduced(self, wanted: Wanted) -> dict[Reduction, list[ResultRow]]:
        """Return measured rows on fewer inputs or by a weaker attack, by what they lack; the least reduced first."""
        size, found = self._size(wanted), dict[Reduction, list[ResultRow]]()
        for row in self._groups.get(_key(wanted), []):
            less, every = shortfall(row, wanted), _every(row)
            if row.status != "ok" or row.n is None or less is None or (size and row.n > size):
                continue
            if every or row.n < size or less:
                found.setdefault(Reduction(row.n, size, every, less), []).append(row)
        return {each: _preferred(found[each]) for each in sorted(found, key=lambda each: each.rank)}

    def fills(self, wanted: Wanted, seed: int, every: int | None = None) -> bool:
        """Tell whether nothing has to be measured: a row of the installed code exists.

        Where every so many-th input is asked for, a row that is reduced in this way alone is enough.
        """
        rows = self.find(wanted)
        if every is not None:
            like = (each for reduction, each in self.reduced(wanted).items() if _is_only(reduction, every))
            rows = [*rows, *(row for each in like for row in each)]
        return any(row.seed == seed and row.status == "ok" and is_current(row) for row in rows)

    def _size(self, wanted: Wanted) -> int:
        return wanted.n or self._sizes.get(wanted.dataset, 0)


def _every(row: ResultRow) -> int | None:
    """Return N if a row is of every N-th input alone."""
    every = stated(row).get("every")
    return every if isinstance(every, int) else None


def _is_only(reduction: Reduction, every: int) -> bool:
    return reduction.every == every and not reduction.less


def _preferred(found: list[ResultRow]) -> list[ResultRow]:
    """Return the rows of the installed code; if none was measured, superseded rows, all of one revision."""
    current = [row for row in found if is_current(row)]
    if any(row.status == "ok" for row in current):
        return current
    older = sorted((row for row in found if row.status == "ok" and row not in current), key=order)
    return [row for row in older if row.revisions == older[0].revisions] or current


def _key(row: ResultRow | Wanted) -> tuple[object, ...]:
    radius = Fraction(row.eps) if row.eps else None
    return row.dataset, row.network, row.trained_as, row.norm, radius, row.preset


CHANGES_NO_ANSWER = {("attack", "until")}  # a climb that leaves out what it would repeat ends on the same image


def shortfall(row: ResultRow, wanted: Wanted) -> tuple[Less, ...] | None:
    """Compare names and settings; return what the row's attack has less of, None if the row is of something else.

    A setting that did not exist when the row was made is not a difference. A row without any settings of one kind, or
    with names that cannot be read, does not match.
    """
    labels = {"framework": row.framework, "rejector": row.rejector, "attack": row.attack}
    try:
        settings = _settings(row.settings)
        names = {kind: plugin_name(kind, label) for kind, label in labels.items()}
    except (KeyError, TypeError, ValueError, AttributeError, UseError):
        return None
    less: list[Less] = []
    for kind, label in labels.items():
        name, expected = expected_settings(kind, wanted)
        if names[kind] != name:
            return None
        said = explicit_settings(kind, label)
        for key, value in expected.items():
            if (kind, key) in CHANGES_NO_ANSWER:
                continue
            found = [there[key] for there in (settings[kind], said) if key in there]
            if all(same(each, value) for each in found):
                continue
            lower = _lower(key, found, value, wanted) if kind == "attack" else None
            if lower is None:
                return None
            less.append(lower)
    recipe = settings["recipe"]
    is_same = all(same(recipe[key], value) for key, value in _recipe(wanted).items() if key in recipe)
    return tuple(less) if is_same else None


def _lower(key: str, found: list[str], value: str, wanted: Wanted) -> Less | None:
    """Return how far a row's attack is weaker; None if it is not so, or if it is another attack.

    Steps in a published name tell attacks apart: PGD-100 is a column of its own, and no weaker PGD-1000.
    """
    ours, theirs = _number(found[0]), _number(value)
    is_effort = key in EFFORT and (key != "steps" or key not in explicit_settings("attack", wanted.attack))
    is_all = (key, value) == ("targets", "none")
    if not is_effort or ours is None or not ours > 0 or not (is_all or (theirs is not None and ours < theirs)):
        return None
    return Less(key, ours, theirs) if all(same(each, found[0]) for each in found) else None


@cache
def _recipe(wanted: Wanted) -> Settings:
    """Return the recipe of the wanted checkpoint: a shortened training does not match."""
    recipe = load_preset(wanted.preset).recipe(wanted.home)
    return {field.name: _typed(getattr(recipe, field.name)) for field in fields(recipe)}


@cache
def _settings(text: str) -> dict[str, dict[str, str]]:
    """Read a row's settings as the command line would write them."""
    value = parse_json(text)
    parts = {kind: value[kind] for kind in ("framework", "rejector", "attack")}
    parts["recipe"] = value.get("recipe", {})  # a checkpoint from outside has none
    return {kind: {key: _typed(item) for key, item in part.items()} for kind, part in parts.items()}


def _typed(value: Any) -> str:
    return ":".join(map(show, value)) if isinstance(value, list | tuple) else show(value)


def same(one: str, other: str) -> bool:
    """Compare two settings as typed: 1e-3 equals 0.001, 2/4 equals 1/2."""
    ones, others = one.split(":"), other.split(":")
    return len(ones) == len(others) and all(
        a == b or _number(a) == _number(b) is not None for a, b in zip(ones, others, strict=True)
    )


def _number(text: str) -> Fraction | None:
    try:
        return read_fraction(text)
    except ValueError:
        return None


def _defaults(kind: str, name: str) -> Settings:
    card = plugins(kind).get(name)
    return card.settings if card else {}


@cache
def expected_settings(kind: str, wanted: Wanted) -> tuple[str, Settings]:
    """Return a wanted plugin's name and all settings; later ones win: class, data set's step, preset, the text."""
    text = str(getattr(wanted, kind))
    dataset = parse(wanted.dataset).name if kind == "attack" else wanted.home
    config, name = load_preset(wanted.preset), plugin_name(kind, text)
    settings = dict(_defaults(kind, name))
    step = config.step(dataset, wanted.norm) if kind == "attack" and wanted.norm else None
    if "step" in settings and step is not None:
        settings["step"] = show(step)
    settings |= {key: _typed(value) for key, value in config.settings(kind, name, dataset).items()}
    return name, settings | explicit_settings(kind, text)


@cache
def explicit_settings(kind: str, text: str) -> dict[str, str]:
    """Return the settings that a text itself gives."""
    call, name = parse(text), plugin_name(kind, text)
    settings: dict[str, str] = {}
    if call.name != name:
        steps, _, restarts = call.name.removeprefix(name).partition("x")
        settings |= {"steps": steps, "restarts": restarts or "1"}
    if call.positional is not None:
        settings[next(iter(_defaults(kind, name)), "")] = call.positional
    return settings | dict(call.keywords)
