"""Where published measurements are: in `results` here, else in the source checkout, else inside the package.

`results/` is their only home. A wheel holds a copy of its rows, made when it is built (`hatch_build.py`), and neither
scores nor weights, which take some hundred megabytes. Imports no torch.
"""

from pathlib import Path

from rrbench.errors import UseError
from rrbench.files.provenance import version
from rrbench.rows.row import is_results

FOLDER = Path("results")
PACKAGED = Path(__file__).resolve().parents[1] / FOLDER
REPOSITORY = "rrbench's source repository"


def published_results() -> Path | None:
    """Return the first place with published rows; None if there is none."""
    return next((home for home in (FOLDER, *_elsewhere()) if result_files(home)), None)


def result_files(folder: Path) -> list[Path]:
    """Return the file itself, a work folder's rows.csv, or every results file below a folder."""
    if folder.is_file():
        return [folder]
    if (folder / "rows.csv").is_file():
        return [folder / "rows.csv"]
    return sorted(path for path in folder.rglob("*.csv") if is_results(path))


def find_results(path: Path) -> Path:
    """Return a path that exists; what is not here, and is named as published results are, is looked for elsewhere."""
    if path.exists() or path.parts[:1] != FOLDER.parts or ".." in path.parts:
        return path
    places = [home.joinpath(*path.parts[1:]) for home in _elsewhere()]
    return next((place for place in places if place.exists()), path)


def describe(path: Path) -> str:
    """Name a place of results for people."""
    name = _packaged_name(path)
    return str(path) if name is None else f"rrbench {version()} itself{f', {name}' if name else ''}"


def remark(asked: Path, found: Path) -> str:
    """Say in one line that other results are used than those at the path that was asked for."""
    if _packaged_name(found) is None:
        return f"{asked} is not here: this is {found}"
    return f"{asked} is not here: these are its rows from {describe(found)}; scores are in {_home(found)}"


def check_scores(folder: Path, *, what: str) -> None:
    """Refuse packaged rows where `what` needs scores, and say where these are."""
    if _packaged_name(folder) is not None:
        raise UseError(f"{what} needs scores, and {describe(folder)} holds rows alone: scores are in {_home(folder)}")


def where_scores_are(folder: Path) -> str:
    """Return a remark on packaged rows, to be put behind a sentence; empty for others."""
    return "" if _packaged_name(folder) is None else f"; they are in {_home(folder)}"


def _elsewhere() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    # Where packages are installed, another package may have put a folder of this name beside ours.
    return [*([root / FOLDER] if (root / "pyproject.toml").is_file() else []), PACKAGED]


def _packaged_name(path: Path) -> str | None:
    """Return the part of a path below the packaged results; None if it is not one of them."""
    place = path.resolve()
    return place.relative_to(PACKAGED).as_posix().strip(".") if place.is_relative_to(PACKAGED) else None


def _home(path: Path) -> str:
    return f"{(FOLDER / (_packaged_name(path) or '')).as_posix()} of {REPOSITORY}"
