"""Which behaviour is installed here, by number or hash. Imports no torch and no plugin.

rrbench's own plugins and the attack engine declare a number. An outside plugin's whole distribution is hashed: if its
author edits it and runs it again, old numbers must not come back. A package that computes an attack has its version.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from rrbench.files.distributions import hash_files, package_hash, version_of
from rrbench.plugins.catalogue import constant, plugins

Revision = int | str
OURS = "rrbench"


def outside_revision(package: str, number: int, own_file: Iterable[Path] = ()) -> Revision:
    """Return the hash of an outside distribution, or of the plugin's file if it has none, with the declared number.

    The number counts too: a plugin that inherits from one of rrbench changes with it.
    """
    code = package_hash(package) if package else ""
    return f"{code or hash_files((path.name, path) for path in own_file)}.{number}"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages; empty if a package is not there."""
    return {name: version_of(name) or "" for name in packages}


def installed(kind: str, name: str) -> Revision | None:
    """Return the revision of an installed plugin; None if it is not installed or its source cannot be read."""
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
    """Return the revision of the scale that adaptive attacks use for a certainty that is no probability."""
    return int(constant("rrbench.measuring.calibration", "REVISION"))


def deployment() -> int:
    """Return the revision of how deployed thresholds are fixed."""
    return int(constant("rrbench.metrics.deployment", "REVISION"))


def revisions_beside_plugins(
    *, is_moving: bool, is_scaled: bool, members: Collection[Revision], packages: Collection[str]
) -> dict[str, object]:
    """Return which behaviour decides a row beside that of its own plugins.

    `is_moving`: the attack moves images. `is_scaled`: it sees the certainty on a scale. `members`: the attacks that it
    is made of. `packages`: those that compute it.
    """
    found: dict[str, object] = {}
    if is_moving:  # without any budget nothing is moved, and no engine runs
        found["engine"] = engine()
    if is_scaled:
        found["calibration"] = calibration()
    found["deployment"] = deployment()
    if members:
        found["members"] = list(members)
    return found | ({"packages": versions(packages)} if packages else {})


def write(revisions: Mapping[str, object]) -> str:
    """Write revisions as the text in a row."""
    return json.dumps(revisions, sort_keys=True)
