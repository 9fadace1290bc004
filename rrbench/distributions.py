"""The Python files of an installed distribution, and their hash. Imports no torch and no plugin."""

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

FINDER = "__editable__"  # begins the name of what an editable install writes for Python to find its packages
NO_PART = frozenset({"tests", "test", "docs", "examples", "conftest", "setup"})  # beside a package, and not installed


@cache
def package_hash(name: str) -> str:
    """Hash every Python file of a distribution; empty where there is none of that name, or it lists no such file."""
    try:
        files = sources(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        return ""
    return hash_files(files.items()) if files else ""


def hash_files(files: Iterable[tuple[str, Path]]) -> str:
    """Hash names and contents."""
    digest = hashlib.sha256()
    for name, path in sorted(files):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def sources(package: metadata.Distribution) -> dict[str, Path]:
    """Return the Python files of a distribution by their names below the import root, installed or being edited."""
    listed = [file for file in package.files or () if file.suffix == ".py" and not file.name.startswith(FINDER)]
    found = {file.as_posix(): Path(str(package.locate_file(file))) for file in listed}
    for root in _edited(package):
        found |= {path.relative_to(root).as_posix(): path for path in _modules(root)}
    return {name: path for name, path in found.items() if path.is_file()}


def _edited(package: metadata.Distribution) -> Iterator[Path]:
    """Return the folders that an editable install imports from."""
    address = json.loads(package.read_text("direct_url.json") or "{}")
    if not address.get("dir_info", {}).get("editable"):
        return
    named = (package.read_text("top_level.txt") or "").split()
    for top in dict.fromkeys(named or [entry.module.partition(".")[0] for entry in package.entry_points]):
        spec = importlib.util.find_spec(top)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if places or (spec and spec.origin):
            yield Path(places[0] if places else str(spec.origin if spec else "")).parent


def _modules(root: Path) -> Iterator[Path]:
    """Return the modules of a folder and all that its packages hold."""
    for path in root.iterdir():
        if path.stem in NO_PART or path.name.startswith("."):
            continue
        if path.suffix == ".py":
            yield path
        elif (path / "__init__.py").is_file():
            yield from path.rglob("*.py")
