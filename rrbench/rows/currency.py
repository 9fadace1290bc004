"""Whether rows were measured by the code that is installed here. Imports no torch and no plugin."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rrbench.errors import UseError
from rrbench.names import parse
from rrbench.plugins.catalogue import plugin_name, plugins
from rrbench.plugins.revisions import Revision, calibration, deployment, engine, installed, version_of
from rrbench.rows.row import ResultRow, revisions_of, stated
from rrbench.rows.sight import looks

KINDS = ("attack", "dataset", "network", "rejector")  # the plugins that decide a row; the framework made its checkpoint


def superseded(row: ResultRow) -> list[str]:
    """Say what was of another revision than here when a row was measured; what is not installed here says nothing."""
    return [
        f"{what} {there}, now {here}"
        for what, there, here in _pairs(row, revisions_of(row))
        if here is not None and there != here
    ]


def _pairs(row: ResultRow, found: Mapping[str, Any]) -> Iterable[tuple[str, object, object]]:
    """Return (what, its revision in the row, its revision here)."""
    for kind in KINDS:
        if kind in found and not _is_own(found[kind]):
            yield f"{kind} {getattr(row, kind)}", found[kind], _here(kind, getattr(row, kind))
    if row.trained_as:
        yield f"framework {row.framework}", found.get("framework", 1), _here("framework", row.framework)
    if "engine" in found:
        yield "engine", found["engine"], engine()
    if "calibration" in found or _was_scaled(row):
        yield "calibration", found.get("calibration", 1), calibration()
    if row.status == "ok":
        yield "deployment", found.get("deployment", 1), deployment()
    for label, revision in zip(stated(row).get("members", ()), found.get("members", ()), strict=False):
        yield f"attack {label}", revision, _here("attack", label)
    for package, version in found.get("packages", {}).items():
        yield package, version, version_of(package)


def _was_scaled(row: ResultRow) -> bool:
    """Tell whether the first calibration, which rows did not state, was behind a row's attack."""
    try:
        card = plugins("rejector").get(parse(row.rejector).name)
    except UseError:
        return False
    return (
        row.status == "ok"
        and card is not None
        and card.attributes.get("is_probability") == "false"
        and bool(looks(row))
    )


def _is_own(revision: object) -> bool:
    """Tell whether a revision is the hash of somebody's own object, which may have the name of a plugin."""
    return isinstance(revision, str) and "." not in revision


def _here(kind: str, text: str) -> Revision | None:
    """Return the installed revision of what a row names; names of one's own models and functions are no plugin's."""
    try:
        parse(text)
    except UseError:
        return None
    return installed(kind, plugin_name(kind, text))


def is_current(row: ResultRow) -> bool:
    """Tell whether a row was measured by the code that is installed here: no other row fills a cell for good."""
    return not superseded(row)


def noted(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return rows for printing: the note of a superseded one says so. Never stored: another version may know better."""
    return [replace(row, note="; ".join(filter(None, (row.note, _note(row))))) for row in rows]


def _note(row: ResultRow) -> str:
    found = superseded(row)
    return f"superseded: {', '.join(found)}" if found else ""
