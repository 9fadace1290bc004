"""Writing so that a crash or a full disk never leaves half a file, and hashing what was written."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rrbench.errors import UseError


@dataclass(frozen=True)
class Files:
    """Where a training writes: the chosen epoch, the last epoch, and what a resumed run needs."""

    chosen: Path
    last: Path
    resume: Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary place beside a file to write it; then flush it to the disk and rename it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder: who writes may put temporary files of its own beside its file.
        with tempfile.TemporaryDirectory(
            dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True
        ) as folder:
            temporary = Path(folder) / "new"
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # whoever writes may have made a file that only its owner may read
            os.replace(temporary, path)
    except OSError as error:
        raise UseError(f"cannot write {path}: {error.strerror or error}") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write so that the file is there whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: object) -> None:
    """Write JSON that people can read, keys in the order given."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> object:
    """Read JSON; a broken file is named in one line."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UseError(f"cannot read {path}: {error}") from None


def sha256(path: Path) -> str:
    """Hash a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UseError(f"cannot read {path}: {error.strerror or error}") from None
