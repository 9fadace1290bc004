"""The names of all figures, and cells behind them, for the tests of figures."""

from rrbench import figures
from rrbench.figures.scored import Scored

NAMES = [*figures.PAPER, *figures.OURS]


def scores_of(cells: list[Scored], trained_as: str, attack: str) -> Scored:
    return next(
        cell
        for cell in cells
        if (cell.row.trained_as, cell.row.attack, cell.row.eps)
        == (trained_as, attack, "3/20" if attack != "clean" else "")
    )
