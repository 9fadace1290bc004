"""Where to find the rows for the paper's tables. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from rrbench.errors import UseError
from rrbench.rows.row import ResultRow, is_results, read_rows

WORK_FOLDER = Path("runs")


def published_results() -> Path:
    """Return the folder of committed measurements: `results` in the current folder, else in the source checkout."""
    here, checkout = Path("results"), Path(__file__).resolve().parents[2] / "results"
    return here if here.is_dir() or not checkout.is_dir() else checkout


def default_folders(work_folder: Path = WORK_FOLDER) -> list[Path]:
    """Return the default folders with rows: the committed results, then the work folder."""
    return [folder for folder in (published_results(), work_folder) if folder.is_dir()]


def read_folders(folders: Sequence[Path]) -> tuple[list[ResultRow], str]:
    """Read every results file in some folders, or the named files; say in one line what was found where."""
    rows: list[ResultRow] = []
    found = []
    for folder in folders:
        if not folder.exists():
            raise UseError(f"no results at {folder}")
        own = [row for path in _files(folder) for row in read_rows(path)]
        found.append(f"{folder} ({len(own)} rows)")
        rows += own
    # Rows must not count twice if a work folder lies in a results folder, or a folder is named twice.
    return list(dict.fromkeys(rows)), "rows from " + ", ".join(found) if found else "no results folder here"


def _files(folder: Path) -> list[Path]:
    """Return the file itself, a work folder's rows.csv, or every results file below a folder."""
    if folder.is_file():
        return [folder]
    if (folder / "rows.csv").is_file():
        return [folder / "rows.csv"]
    return sorted(path for path in folder.rglob("*.csv") if is_results(path))
