"""Writes files so that a crash or a full disk never leaves half a file; reads and hashes other people's files."""

import hashlib
import json
import math
import os
import platform
import re
import shutil
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrbench.errors import FileError, UseError, brief
from rrbench.numbers import read_whole

try:
    import fcntl
except ImportError:  # Windows has no such locks: dead and living writers look alike, so nothing is swept
    fcntl = None  # type: ignore[assignment]

BEGUN, WRITING, ENDED = ".begun", ".writing", ".ended"  # endings of a temporary folder's name, in this order
HELD = "held"  # the file in it that its writer locks; the system frees the lock when the writer dies
GRACE = 3600  # seconds after which a writer must have locked and written its file
HERE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # names this machine in what it writes
DEEPEST = 50  # levels of nested brackets; rrbench's own files have a handful

_DOTTED = re.compile(rf"""(?:\.[ \t]*(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*){{{DEEPEST}}}""")

Stamp = tuple[int, int]  # of a file: when it was written, and its size


@dataclass(frozen=True)
class Files:
    """Where a training writes: the chosen epoch, the last epoch, and what a resumed run needs."""

    chosen: Path
    last: Path
    resume: Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside a file to write to; then flush it to the disk and rename it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder, not a file: the writer may put its own temporary files beside its file.
        with temporary_folder(path.parent, path.name) as folder:
            temporary = folder / "new"
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # the writer may have made it readable for its owner only
            os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Give a folder that is removed when its writer is done; if the writer is killed, the next `sweep` removes it.

    The folder's name says how far its writer is, so a folder left by a killed writer can be recognised at any stage.
    """
    begun = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}.", suffix=f".{HERE}{BEGUN}"))
    folder, ended = begun.with_suffix(WRITING), begun.with_suffix(ENDED)
    handle = None
    try:
        handle = _hold(begun)
        os.rename(begun, folder)
        yield folder
    finally:
        try:
            for place in (begun, folder):
                with suppress(OSError):
                    os.rename(place, ended)
            shutil.rmtree(ended, ignore_errors=True)
        finally:
            if handle is not None:
                os.close(handle)


def _hold(folder: Path) -> int | None:
    """Lock a file in a folder; if the file system has no locks, remove the file again."""
    if fcntl is None:
        return None
    handle = os.open(folder / HELD, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(handle)
        if not isinstance(error, OSError):
            raise
        os.unlink(folder / HELD)
        return None
    return handle


def sweep(parent: Path) -> None:
    """Remove the temporary folders that killed writers left; keep those of living writers."""
    for ending, is_left in ((ENDED, Path.is_dir), (WRITING, _is_abandoned), (BEGUN, _is_old)):
        for folder in parent.glob(f".*{ending}"):
            if not folder.is_symlink() and folder.is_dir() and is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_old(folder: Path) -> bool:
    """Tell whether a folder has not changed for `GRACE` seconds: its writer is dead, or long past this stage."""
    try:
        return time.time() - folder.stat().st_mtime > GRACE
    except OSError:  # the folder is gone
        return False


def _is_abandoned(folder: Path) -> bool:
    """Tell whether the writer of a temporary folder is dead."""
    # On some shared disks a machine cannot see the locks of another.
    if fcntl is None or not (_is_old(folder) or folder.name.endswith(f".{HERE}{WRITING}")):
        return False
    try:
        handle = os.open(folder / HELD, os.O_RDWR)
    except FileNotFoundError:  # the file system has no locks, or the folder is gone
        return _is_old(folder)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it exists whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: object) -> None:
    """Write JSON that people can read, with keys in the given order."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def stamp(path: str) -> Stamp:
    """Tell whether a file has changed since it was read."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise UseError(f"cannot read {path}: {error.strerror or error}") from None
    return found.st_mtime_ns, found.st_size


def read_json(path: Path) -> object:
    """Read JSON; the error for a broken file names it in one line."""
    try:
        return parse_json(path.read_text(encoding="utf-8"), is_finite=True)
    except (OSError, ValueError) as error:
        raise UseError(f"cannot read {path}: {error}") from None


def parse_json(text: str, *, is_finite: bool = False) -> Any:
    """Read JSON that anybody may have written; what cannot be read or computed with is a ValueError.

    A checkpoint's header may hold NaN, which JSON does not know; a file that `write_json` wrote does not.
    """
    constant = _finite if is_finite else float
    try:
        return _not_deep(json.loads(text, parse_int=read_whole, parse_float=_finite, parse_constant=constant))
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} deep") from None


def _finite(text: str) -> float:
    """Read a number; one that no float holds, such as 1e400, could not be written again."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{brief(text)} is no finite number")
    return number


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML that anybody may have written; text that cannot be read is a ValueError."""
    if _DOTTED.search(text):  # tomllib's time grows with the square of a dotted key's length
        raise ValueError(f"nested more than {DEEPEST} deep")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} deep") from None
    _not_deep(values)
    return values


def _not_deep(value: object) -> object:
    """Return a value if it is not nested too deep for recursive code."""
    level = [value]
    for _ in range(DEEPEST):
        if not level:
            break
        level = [
            item
            for part in level
            if isinstance(part, dict | list)
            for item in (part.values() if isinstance(part, dict) else part)
        ]
    if level:
        raise ValueError(f"nested more than {DEEPEST} deep")
    return value


def to_path(given: object) -> Path:
    """Return the file or folder that somebody names in Python, by a text or a path."""
    if not isinstance(given, str | os.PathLike):
        raise UseError(f"a file is named by a text or a Path, not by {brief(given)}")
    return Path(given)


def is_plain_name(name: str) -> bool:
    """Tell whether a name that anybody may have written names a file in the current folder, and nothing outside it."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", ":"} and name.isprintable()


def sha256(path: Path) -> str:
    """Hash a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
