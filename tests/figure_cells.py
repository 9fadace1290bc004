"""The names of all figures, cells behind them and lines in them, for the tests of figures."""

import dataclasses
from typing import Any

from matplotlib.axes import Axes

from rrbench import figures
from rrbench.figures.request import FigureOptions
from rrbench.figures.scored import Scored

NAMES = [*figures.PAPER, *figures.OURS]
DIGITS = FigureOptions(dataset="digits", network="small-cnn", points=50)


def scores_of(cells: list[Scored], trained_as: str, attack: str) -> Scored:
    return next(
        cell
        for cell in cells
        if (cell.row.trained_as, cell.row.attack, cell.row.eps)
        == (trained_as, attack, "3/20" if attack != "clean" else "")
    )


def line(panel: Axes, label: str) -> Any:
    """Return the line with this label."""
    return next(item for item in panel.lines if item.get_label() == label)


def as_cifar(cell: Scored, preset: str, limit: int | None, **more: int) -> Scored:
    """Return the cell as if it had been measured on CIFAR-10."""
    row = dataclasses.replace(cell.row, dataset="cifar10", network="resnet18", eps="8/255", preset=preset)
    record = dataclasses.replace(cell.record, row=row, cell={**cell.record.cell, "limit": limit, **more})
    return dataclasses.replace(cell, record=record)
