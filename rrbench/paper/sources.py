"""Where to find the rows for the paper's tables. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from rrbench.errors import UseError
from rrbench.numbers import counted
from rrbench.rows.published import describe, find_results, published_results, result_files
from rrbench.rows.row import ResultRow, read_rows

WORK_FOLDER = Path("runs")


def default_folders(work_folder: Path = WORK_FOLDER) -> list[Path]:
    """Return the default folders with rows: the published results, then the work folder."""
    published = published_results()
    return [*([published] if published else []), *([work_folder] if work_folder.is_dir() else [])]


def read_folders(folders: Sequence[Path]) -> tuple[list[ResultRow], str]:
    """Read every results file in some folders, or the named files; say in one line what was found where."""
    rows: list[ResultRow] = []
    found = []
    for folder in map(find_results, folders):
        if not folder.exists():
            raise UseError(f"no results at {folder}")
        own = [row for path in result_files(folder) for row in read_rows(path)]
        found.append(f"{describe(folder)} ({counted(len(own), 'row')})")
        rows += own
    # Rows must not count twice if a work folder lies in a results folder, or a folder is named twice.
    return list(dict.fromkeys(rows)), "rows from " + ", ".join(found) if found else "no results folder here"
