"""Whether rows were measured by the code that is installed here. Imports no torch and no plugin."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rrbench.errors import UseError
from rrbench.files.distributions import version_of
from rrbench.names import parse
from rrbench.plugins.catalogue import plugin_name, plugins
from rrbench.plugins.revisions import Revision, calibration, deployment, engine, installed
from rrbench.rows.notes import SUPERSEDED, joined, notes_of
from rrbench.rows.row import ResultRow, members_of, revisions_of
from rrbench.rows.sight import looks

KINDS = ("attack", "dataset", "network", "rejector")  # plugins that decide a row; its framework is looked at apart


def superseded(row: ResultRow) -> list[str]:
    """Say which revisions in a row differ from those installed here; what is not installed here is skipped."""
    return [
        f"{what} {there}, now {here}"
        for what, there, here in _pairs(row, revisions_of(row))
        if here is not None and there != here
    ]


def _pairs(row: ResultRow, found: Mapping[str, Any]) -> Iterable[tuple[str, object, object]]:
    """Return (name, revision in the row, revision here) for all that decides a row."""
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
    revisions, packages = found.get("members"), found.get("packages")
    for label, revision in zip(members_of(row), revisions if isinstance(revisions, list) else (), strict=False):
        yield f"attack {label}", revision, _here("attack", label)
    for package, version in packages.items() if isinstance(packages, dict) else ():
        yield package, version, version_of(package)


def _was_scaled(row: ResultRow) -> bool:
    """Tell whether the attack used the first calibration, which rows did not record."""
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
    """Tell whether a revision is the hash of a user's own object; such an object may have a plugin's name."""
    return isinstance(revision, str) and "." not in revision


def _here(kind: str, text: str) -> Revision | None:
    """Return the installed revision of what a row names; None for a name of a user's own model or function."""
    try:
        parse(text)
    except UseError:
        return None
    return installed(kind, plugin_name(kind, text))


def is_current(row: ResultRow) -> bool:
    """Tell whether the installed code measured a row; only such a row fills a table's cell for good."""
    return not superseded(row)


def noted(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return rows for printing, with a note on superseded ones. Never stored: another version may judge otherwise."""
    return [replace(row, note=joined([*notes_of(row), _note(row)])) for row in rows]


def _note(row: ResultRow) -> str:
    found = superseded(row)
    return f"{SUPERSEDED}{', '.join(found)}" if found else ""
