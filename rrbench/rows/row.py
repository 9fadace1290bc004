"""ResultRow: one measured cell, flat. Field order is the CSV's column order. Imports no torch."""

import csv
import dataclasses
import io
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rrbench.errors import UseError, brief
from rrbench.files.decoding import from_json, from_texts
from rrbench.files.disk import parse_json, to_path, write_bytes
from rrbench.metrics.columns import Metrics, fraction
from rrbench.names import unknown
from rrbench.numbers import read_fraction, read_whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CellNames:
    """Which cell a row is of."""

    dataset: str
    network: str
    framework: str
    trained_as: str
    rejector: str
    attack: str
    norm: str
    eps: str  # an exact fraction
    seed: int
    preset: str
    n: int | None


@dataclass(frozen=True)
class ResultRow(Metrics, CellNames):
    """All that is said of one cell: its names, its metrics, then the rest; None is an empty field of the CSV."""

    distance: float | None = None
    distance_success: float | None = None
    success: float | None = fraction()

    status: str = "ok"
    error: str = ""
    note: str = ""
    settings: str = "{}"  # JSON of every field of rejector, attack and framework
    seconds: float | None = None
    gradients: float | None = None  # of the defended classifier, per image; a rejector's look is part of it
    device: str = ""
    precision: str = ""

    checkpoint_sha256: str = ""
    data_sha256: str = ""
    version: str = ""
    commit: str = ""
    forwards: float | None = None  # passes, counted likewise, including those with gradients
    revisions: str = "{}"  # JSON: the revisions of plugins, engine and packages that made the row


COLUMNS = tuple(field.name for field in dataclasses.fields(ResultRow))
# Columns that results of older versions may lack: they are read as empty.
LATER = frozenset(f"deploy_{name}" for name in ("robust_low", "robust_high", "joint", "joint_low", "joint_high"))
PERCENTAGES, FRACTIONS = (
    frozenset(field.name for field in dataclasses.fields(ResultRow) if field.metadata.get("most") == most)
    for most in (100, 1)
)
_ROUNDING = 1e-9
# The largest value of each column that may hold a number; None where there is none.
_NUMBERS = {field.name: field.metadata.get("most") for field in dataclasses.fields(ResultRow) if field.type is not str}


def stated(row: ResultRow) -> dict[str, Any]:
    """Return a row's settings, not to be changed; empty if they cannot be read, as may be in other people's files."""
    return _object(row.settings)


@lru_cache(maxsize=4096)  # comparing rows asks for the same ones again and again
def _object(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def revisions_of(row: ResultRow) -> dict[str, Any]:
    """Return the revisions that made a row; empty if they cannot be read, as may be in other people's files."""
    return _object(row.revisions)


def members_of(row: ResultRow) -> tuple[str, ...]:
    """Return the attacks whose worst a row's attack took; empty if it is no ensemble."""
    found = stated(row).get("members")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def full_name(row: ResultRow) -> str:
    """Return `rejector@framework`; a user's own network has no framework, but a name."""
    return f"{row.rejector}@{row.framework or row.trained_as}"


def goes_by(row: ResultRow, name: str) -> bool:
    """Tell whether a row belongs to the rejector `name`, or has that full name."""
    rejector, _, where = name.partition("@")
    return row.rejector == rejector and (not where or full_name(row) == name)


def check_rejectors(names: Iterable[str], rows: Iterable[ResultRow]) -> None:
    """Refuse a rejector that no row belongs to."""
    rows = list(rows)
    for name in names:
        if not any(goes_by(row, name) for row in rows):
            known = {each for row in rows for each in (row.rejector, full_name(row))}
            raise unknown("rejector in these results:", name, known)


def order(row: ResultRow) -> tuple[object, ...]:
    """Sort key of rows.csv, independent of the order of work: clean before attacks, small budgets first."""
    return (
        row.dataset,
        row.network,
        row.framework,
        row.trained_as,
        row.rejector,
        row.seed,
        row.attack != "clean",
        row.attack,
        row.norm,
        Fraction(row.eps or 0),
        row.preset,
        row.n or 0,
        row.precision,
        row.checkpoint_sha256,
    )


def to_csv(rows: Iterable[ResultRow]) -> str:
    """Write rows as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(["" if value is None else value for value in dataclasses.astuple(row)])
    return text.getvalue()


def to_frame(rows: Iterable[ResultRow]) -> "pd.DataFrame":
    """Return rows as a DataFrame with the CSV's columns."""
    import pandas as pd  # takes half a second, and most commands do not need it

    return pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(COLUMNS))


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write rows.csv atomically, in its fixed order."""
    write_bytes(path, to_csv(sorted(rows, key=order)).encode())


def read_rows(path: str | PathLike[str]) -> list[ResultRow]:
    """Read a results CSV, or the rows.csv of a folder; other columns are ignored."""
    path = to_path(path)
    path = path / "rows.csv" if path.is_dir() else path
    try:
        # utf-8-sig: Excel may put a byte-order mark at the start.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = sorted(set(COLUMNS) - set(reader.fieldnames or ()))
            if not LATER.issuperset(missing):
                raise UseError(f"{path} is no results file of rrbench: it lacks {', '.join(missing[:3])}")
            if missing:
                older = f"{path} is of an older version of rrbench, without {', '.join(missing)}: they are empty"
                warnings.warn(older, stacklevel=2)
            return [row_of_texts({**dict.fromkeys(missing, ""), **record}) for record in reader]
    except FileNotFoundError:
        raise UseError(f"no results at {path}") from None
    except (OSError, ValueError, ZeroDivisionError, csv.Error) as error:
        raise UseError(f"cannot read {path}: {error}") from None


def is_results(path: Path) -> bool:
    """Tell whether a CSV has the columns of rows."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return set(COLUMNS) - LATER <= set(next(csv.reader(file), ()))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def row_of_texts(texts: Mapping[str, str | None]) -> ResultRow:
    """Make a row from a CSV record; a record that was cut off is an error."""
    row = from_texts(ResultRow, texts, "a row")
    check_numbers(row)
    return row


def row_of_json(values: object) -> ResultRow:
    """Make a row from the values in a cell file; a value of another type than its column is an error."""
    row = from_json(ResultRow, values, "a row")
    check_numbers(row)
    return row


def check_numbers(row: ResultRow) -> None:
    """Refuse a number that no measurement gives: NaN, a share out of range, a negative radius, no inputs."""
    if read_fraction(row.eps or 0) < 0:
        raise ValueError(f"eps of {row.rejector} under {row.attack} is {row.eps}")
    for name, most in _NUMBERS.items():
        value = getattr(row, name)
        if not isinstance(value, int | float):
            continue
        if isinstance(value, int):
            read_whole(value)
        is_share = most is None or -_ROUNDING <= value <= most + _ROUNDING
        if math.isnan(value) or not is_share or (name == "n" and value < 1) or (name == "deploy_n" and value < 0):
            raise ValueError(f"{name} of {row.rejector} under {row.attack} is {brief(value)}")
