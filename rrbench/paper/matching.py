"""Tells whether a row is the wanted one, setting by setting. Imports no torch: plugins are read as source text.

Labels are not enough: they print only what differs from a preset, and `--config` may change the preset itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from fractions import Fraction
from functools import cache
from typing import Any

from rrbench.errors import UseError
from rrbench.files.disk import parse_json
from rrbench.names import parse, show
from rrbench.numbers import read_fraction
from rrbench.paper.wanted import Wanted
from rrbench.plugins.catalogue import plugin_name, plugins
from rrbench.plugins.config import load_preset
from rrbench.rows.currency import is_current
from rrbench.rows.row import ResultRow, order

Settings = Mapping[str, str]


class Rows:
    """Finds the rows that fill a published cell, failed ones included."""

    def __init__(self, rows: Iterable[ResultRow]) -> None:
        self._groups: dict[tuple[object, ...], list[ResultRow]] = {}
        self._sizes: dict[str, int] = {}
        for row in rows:
            self._groups.setdefault(_key(row), []).append(row)
            self._sizes[row.dataset] = max(self._sizes.get(row.dataset, 0), row.n or 0)

    def find(self, wanted: Wanted) -> list[ResultRow]:
        """Return the rows that match exactly, over all test images; failed rows have no `n`.

        Rows of the installed code are preferred; if none was measured, superseded rows, all of one revision.
        """
        size = wanted.n or self._sizes.get(wanted.dataset)
        found = [
            row
            for row in self._groups.get(_key(wanted), [])
            if (row.n == size or row.status != "ok") and has_settings(row, wanted)
        ]
        current = [row for row in found if is_current(row)]
        if any(row.status == "ok" for row in current):
            return current
        older = sorted((row for row in found if row.status == "ok" and row not in current), key=order)
        return [row for row in older if row.revisions == older[0].revisions] or current

    def fills(self, wanted: Wanted, seed: int) -> bool:
        """Tell whether nothing has to be measured: a row of the installed code exists."""
        return any(row.seed == seed and row.status == "ok" and is_current(row) for row in self.find(wanted))


def _key(row: ResultRow | Wanted) -> tuple[object, ...]:
    radius = Fraction(row.eps) if row.eps else None
    return row.dataset, row.network, row.trained_as, row.norm, radius, row.preset


def has_settings(row: ResultRow, wanted: Wanted) -> bool:
    """Compare names and settings; a setting that did not exist when the row was made is not a difference.

    A row without any settings of one kind, or with names that cannot be read, does not match.
    """
    labels = {"framework": row.framework, "rejector": row.rejector, "attack": row.attack}
    try:
        stated = _settings(row.settings)
        names = {kind: plugin_name(kind, label) for kind, label in labels.items()}
    except (KeyError, TypeError, ValueError, AttributeError, UseError):
        return False
    for kind, label in labels.items():
        name, expected = expected_settings(kind, wanted)
        if names[kind] != name:
            return False
        for there in (stated[kind], explicit_settings(kind, label)):
            if any(key in there and not same(there[key], value) for key, value in expected.items()):
                return False
    recipe = stated["recipe"]
    return all(same(recipe[key], value) for key, value in _recipe(wanted).items() if key in recipe)


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
