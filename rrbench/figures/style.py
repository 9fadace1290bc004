"""The look of all figures: readable in grey, for the colour-blind, and at the width of a page."""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.files.disk import write_bytes

SUFFIXES = (".pdf", ".svg", ".png")
# Okabe and Ito's colours, which people with any colour vision can tell apart; without yellow, too pale on paper.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY, DARK_GREY = "#A0A0A0", "#505050"
BROWN = "#7A4A1E"  # not theirs: a dark eighth colour
RIGHT, WRONG = BLUE, ORANGE  # one dark and one light: they differ in grey too
CYCLE = (BLUE, ORANGE, GREEN, RED, PINK, SKY, BLACK, BROWN)
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*", "<", ">", "h")

# As mathematicians write them. Letters, not formulas: names may hold any character, so formulas are not parsed.
NORMS = {"linf": "\u2113\u221e", "l2": "\u2113\u2082"}
LOG2_TAU, XI, ETA = "log\u2082 \u03c4", "\u03be", "\u03b7"

SETTINGS: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "legend.fontsize": 7.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    # Whatever a user's own settings say: `finish` lays out, and nothing after it.
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "savefig.bbox": "standard",
    "text.parse_math": False,  # names may hold any character
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "rrbench",  # equal figures give equal files
    "pdf.fonttype": 42,
}


class Look(NamedTuple):
    """How one curve differs from the others, in colour and without it."""

    color: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str


def look(index: int) -> Look:
    """Return the look of curve number `index`; no two of the first 440 are equal."""
    return Look(CYCLE[index % len(CYCLE)], LINES[index % len(LINES)], MARKERS[index % len(MARKERS)])


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in this look."""
    with matplotlib.rc_context(SETTINGS):
        yield


def panels(rows: int, columns: int, width: float = 2.6, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes in reading order; width and height are of one panel, in inches."""
    figure = Figure(figsize=(max(width * columns, 3.3), height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(np.ravel(axes))


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """Put one legend for all panels below them; a label that several panels share is listed once.

    It has at most so many columns, and fewer where they would be wider than the figure.
    """
    entries = {label: handle for each in axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    columns = max(1, min(columns, len(entries)))
    while True:
        legend = figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
        columns -= 1
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):  # in a crowded panel the points are small and pale
            handle.set_sizes([20])
            handle.set_alpha(1)


def typeset(budget: str) -> str:
    """Print a budget with its norm as mathematicians write it."""
    norm, colon, radius = budget.partition(":")
    return f"{NORMS.get(norm, norm)}{' ' * bool(colon)}{radius}"


def finish(figure: Figure, text: str) -> None:
    """Write above the panels what was drawn, and fix the layout: a second layout would move things."""
    width = figure.get_size_inches()[0]
    # At 7 points about seventeen letters take an inch.
    figure.suptitle(textwrap.fill(text, int(17 * width)), fontsize=7, color="#555555")
    _lay_out(figure)
    folded = [_fold_labels(panel) for panel in figure.axes]
    if any(folded):
        _lay_out(figure)
    figure.set_layout_engine(None)  # for "none" matplotlib would draw the figure once more before it writes it


def _lay_out(figure: Figure) -> None:
    """Place the panels, as drawing the figure would; drawing takes as long again."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def _fold_labels(panel: Axes) -> bool:
    """Break a label that is longer than its axis into lines until it fits; tell whether one was."""
    inside, is_folded = panel.get_window_extent(), False
    for label, room, side in ((panel.yaxis.label, inside.height, "height"), (panel.xaxis.label, inside.width, "width")):
        text = label.get_text()
        for lines in range(2, len(text.split()) + 1):
            if getattr(label.get_window_extent(), side) <= room:
                break
            # Words do not fill lines evenly.
            label.set_text("\n".join(textwrap.wrap(text, len(text) // lines + 3)))
            is_folded = True
    return is_folded


def check_suffix(path: Path) -> None:
    """Refuse a file name whose ending is not a known format."""
    if path.suffix.lower() not in SUFFIXES:
        raise UseError(f"cannot draw {path}: end the name in {', '.join(SUFFIXES)}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix; without a date, so that equal figures are equal files."""
    check_suffix(path)
    kind = path.suffix.lower().removeprefix(".")
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format=kind, dpi=200, metadata=dates[kind])
    write_bytes(path, buffer.getvalue())
