"""Where data sets are searched for; a missing or unreadable data set is a one-line error."""

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rrbench.errors import UseError, first_line
from rrbench.protocols import DataSource

_CACHE = "~/.cache/rrbench/data"


class Located(DataSource):
    """A data set that can tell where it is and whether it is complete, without being loaded for use."""

    @classmethod
    @abstractmethod
    def where(cls, roots: tuple[Path, ...]) -> str | None:
        """Return the data set's place; None if it is not found."""

    @classmethod
    @abstractmethod
    def inspect(cls, roots: tuple[Path, ...]) -> str:
        """Read the whole data set and describe it in a few words; a wrong file is a UseError."""


def roots(data_dir: Path | None) -> tuple[Path, ...]:
    """Return the folders to search: --data-dir, $RRBENCH_DATA and the cache, as far as they are set."""
    places = (data_dir, os.environ.get("RRBENCH_DATA"), _CACHE)
    return tuple(dict.fromkeys(Path(os.path.expanduser(place)) for place in places if place))


def missing(name: str, roots: tuple[Path, ...], remedy: str) -> UseError:
    """Say where a data set was searched for and how to get it."""
    looked = ", ".join(map(str, roots)) or "no folder"
    return UseError(f"{name} is not in {looked}; {remedy}, or name its folder with --data-dir or RRBENCH_DATA")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error while reading a file into one line that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise UseError(f"{path} is missing") from None
    except IsADirectoryError:
        raise UseError(f"{path} is a folder, and a file belongs there") from None
    except Exception as problem:  # a damaged or hostile file can fail in any way
        raise UseError(f"cannot read {path}: {first_line(problem)}") from None
