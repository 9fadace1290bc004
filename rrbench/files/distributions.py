"""The Python files of a distribution, their hash and its version. Imports no torch and no plugin."""

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

FINDER = "__editable__"  # editable installs write a finder; its name begins so
NO_PART = frozenset({"tests", "test", "docs", "examples", "conftest", "setup"})  # lie beside it, not installed


@cache
def package_hash(name: str) -> str:
    """Hash every Python file of a distribution; empty if it is not installed, or lists no Python file."""
    try:
        files = sources(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        return ""
    return hash_files(files.items()) if files else ""


@cache
def copied_hash(name: str) -> str:
    """Hash every Python file of a package that can be imported without being installed; empty if there is none."""
    is_name = name.isidentifier() and name != "__main__"
    try:
        spec = importlib.util.find_spec(name) if is_name else None
    except ValueError:  # a module that was made without a spec
        spec = None
    if spec is None:
        return ""
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    found = [(path.relative_to(place).as_posix(), path) for place in places for path in place.rglob("*.py")]
    if spec.origin and not places and spec.origin.endswith(".py"):
        found = [(f"{name}.py", Path(spec.origin))]
    files = [each for each in found if each[1].is_file()]  # an editor's lock is a link to nothing
    return hash_files(files) if files else ""


@cache
def version_of(name: str) -> str | None:
    """Return the version of a package, or the hash of one that was only copied here; None if there is none."""
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):  # ValueError: an empty name
        return copied_hash(name) or None


def hash_files(files: Iterable[tuple[str, Path]]) -> str:
    """Hash names and contents."""
    digest = hashlib.sha256()
    for name, path in sorted(files):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def sources(package: metadata.Distribution) -> dict[str, Path]:
    """Return the Python files of a distribution by their names below the import root, in editable installs too."""
    listed = [file for file in package.files or () if file.suffix == ".py" and not file.name.startswith(FINDER)]
    found = {file.as_posix(): Path(str(package.locate_file(file))) for file in listed}
    for place in _edited(package):
        found |= {path.relative_to(place.parent).as_posix(): path for path in (*_modules(place.parent), *_all(place))}
    return {name: path for name, path in found.items() if path.is_file()}


def _edited(package: metadata.Distribution) -> Iterator[Path]:
    """Return the packages and modules that an editable install imports."""
    address = json.loads(package.read_text("direct_url.json") or "{}")
    if not address.get("dir_info", {}).get("editable"):
        return
    named = (package.read_text("top_level.txt") or "").split()
    for top in dict.fromkeys(named or [entry.module.partition(".")[0] for entry in package.entry_points]):
        spec = importlib.util.find_spec(top)
        places = [Path(place) for place in (spec.submodule_search_locations or ()) if spec] if spec else []
        # Other distributions may share the namespace: take only the parts inside this project.
        project = Path(unquote(urlsplit(address.get("url", "")).path))
        yield from [place for place in places if place.is_relative_to(project)] or places[:1]
        if not places and spec and spec.origin:
            yield Path(spec.origin)


def _all(place: Path) -> Iterator[Path]:
    """Return all Python files of a package, even without `__init__.py`; or the single module."""
    yield from place.rglob("*.py") if place.is_dir() else [place]


def _modules(root: Path) -> Iterator[Path]:
    """Return the modules of a folder, and all modules of the packages in it."""
    for path in root.iterdir():
        if path.stem in NO_PART or path.name.startswith("."):
            continue
        if path.suffix == ".py":
            yield path
        elif (path / "__init__.py").is_file():
            yield from path.rglob("*.py")
