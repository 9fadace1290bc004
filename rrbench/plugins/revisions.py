"""Which behaviour a number comes from, and whether it is the one installed here. Imports no torch and no plugin.

Our plugins and the attacks' engine declare a number. Of an outsider's plugin the whole distribution is hashed: whoever
edits an idea and runs it again must not see old numbers. A package that computes an attack counts with its version.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rrbench.errors import UseError
from rrbench.names import parse
from rrbench.plugins.catalogue import constant, plugin_name, plugins
from rrbench.plugins.distributions import hash_files, package_hash
from rrbench.rows.row import ResultRow, revisions_of, stated
from rrbench.rows.sight import looks

Revision = int | str
OURS = "rrbench"
KINDS = ("attack", "dataset", "network", "rejector")  # the plugins that decide a row; the framework made its checkpoint


def outside_revision(package: str, number: int, own_file: Iterable[Path] = ()) -> Revision:
    """Return the hash of an outsider's distribution, or of its file where it has none, and the number that it declares.

    The number counts too: a plugin that inherits from one of ours changes with it.
    """
    code = package_hash(package) if package else ""
    return f"{code or hash_files((path.name, path) for path in own_file)}.{number}"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages; empty for one that is not installed."""
    return {name: _version(name) or "" for name in packages}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def installed(kind: str, name: str) -> Revision | None:
    """Return the revision of a plugin that is installed here; None where none is, or its source cannot be read."""
    card = plugins(kind).get(name)
    number = card.attributes.get("revision", "") if card else ""
    if card is None or not number.isdigit():
        return None
    if card.package == OURS:
        return int(number)
    return outside_revision(card.package, int(number)) if package_hash(card.package) else None


def engine() -> int:
    """Return the revision of the attacks' engine."""
    return int(constant("rrbench.ascent", "REVISION"))


def calibration() -> int:
    """Return the revision of the scale on which adaptive attacks see a certainty that is no probability."""
    return int(constant("rrbench.measuring.calibration", "REVISION"))


def deployment() -> int:
    """Return the revision of the way in which deployed thresholds are fixed."""
    return int(constant("rrbench.metrics.deployment", "REVISION"))


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
        yield package, version, _version(package)


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


def write(revisions: Mapping[str, object]) -> str:
    """Write revisions as a row holds them."""
    return json.dumps(revisions, sort_keys=True)
