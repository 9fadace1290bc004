"""`rrbench table --paper`: fills, judges and lays out the named tables. Imports neither torch nor pandas."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rrbench.errors import UseError
from rrbench.names import unknown
from rrbench.paper.cells import PaperCell, cells_of, relabelled, resolve
from rrbench.paper.fill import fill_all
from rrbench.paper.judge import Judged, is_failing, judge, summary
from rrbench.paper.layout import Grid, lay_out
from rrbench.paper.matching import Rows
from rrbench.paper.show import show
from rrbench.paper.sources import default_folders, read_folders
from rrbench.paper.wanted import PUBLISHED_PRESETS, is_published
from rrbench.plugins.catalogue import plugin_name, plugins
from rrbench.plugins.config import check_preset
from rrbench.rows.row import ResultRow


@dataclass(frozen=True)
class Selection:
    """Which of the paper's tables, for which data set and network; None means the paper's own."""

    paper: str
    dataset: str | None = None
    network: str | None = None
    preset: str | None = None

    def cells(self) -> dict[str, tuple[PaperCell, ...]]:
        """Return the cells of each selected table."""
        found = {name: relabelled(cells_of(name), self.dataset, self.network) for name in resolve(self.paper)}
        if self.preset is not None:
            check_preset(self.preset)
        own = any(is_published(cell) for cells in found.values() for cell in cells)
        if self.preset is not None and self.preset not in PUBLISHED_PRESETS and own:
            raise UseError(
                f"preset {self.preset} never fills the paper's cells: give {' or '.join(PUBLISHED_PRESETS)}, "
                "or another --dataset"
            )
        return found


@dataclass(frozen=True)
class PaperTables:
    """Tables with all that was found for them."""

    grids: tuple[Grid, ...]
    rows: tuple[ResultRow, ...]
    sources: str  # where rows were looked for, in one line

    @property
    def judged(self) -> list[Judged]:
        """All cells in order."""
        return [each for grid in self.grids for each in grid.judged]

    def show(self, layout: str, *, with_verdicts: bool = False) -> str:
        """Print the tables."""
        return show(self.grids, layout, sources=self.sources, with_verdicts=with_verdicts)

    def summary(self) -> str:
        """Count the verdicts, one line for each table; the last line is of all, if there are several."""
        lines = [summary(grid.name, grid.judged) for grid in self.grids]
        return "\n".join([*lines, summary("all", self.judged)] if len(lines) > 1 else lines)

    def is_failing(self) -> bool:
        """Tell whether a measured cell is out of tolerance and no footnote explains it."""
        return any(is_failing(grid.judged) for grid in self.grids)


def paper_tables(selection: Selection, folders: Sequence[Path] | None = None) -> PaperTables:
    """Fill the tables from the rows in `folders`; by default from the published results and `runs`."""
    cells = selection.cells()
    rows, sources = read_folders(default_folders() if folders is None else folders)
    _check_places(selection, rows)
    return tables_from(cells, rows, sources, selection.preset)


def _check_places(selection: Selection, rows: Sequence[ResultRow]) -> None:
    """Refuse a data set or a network that is not installed and that no row has: it is misspelt."""
    for kind, name in (("dataset", selection.dataset), ("network", selection.network)):
        known = plugins(kind).keys() | {str(getattr(row, kind)) for row in rows}
        if name is not None and name not in known and plugin_name(kind, name) not in known:
            raise unknown(kind, name, known)


def tables_from(
    cells: dict[str, tuple[PaperCell, ...]], rows: Sequence[ResultRow], sources: str, preset: str | None = None
) -> PaperTables:
    """Fill tables from rows."""
    found = Rows(rows)
    grids = []
    for name, own in cells.items():
        judged = judge(fill_all(own, found, preset))
        grids.append(lay_out(name, judged))
    return PaperTables(tuple(grids), tuple(rows), sources)
