"""Figures drawn with matplotlib from score files, one from rows alone; a file for each, numbers apart from drawing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.figures.accuracy_budget import draw_accuracy_budget
from rrbench.figures.adaptive import figure4
from rrbench.figures.calibration import figure8
from rrbench.figures.features import figure7
from rrbench.figures.joint_kept import draw_joint_kept
from rrbench.figures.request import FigureOptions, PaperRequest, paper_request
from rrbench.figures.risk_coverage import draw_risk_coverage
from rrbench.figures.scored import Scored, read_scored
from rrbench.figures.separation import figure1, figure3, figure6
from rrbench.figures.temperature import figure5
from rrbench.names import split_list, unknown
from rrbench.paper.cells import index
from rrbench.plugins.config import check_preset
from rrbench.rows.row import check_rejectors, read_rows

# The printed figures. Those that the paper does not have are drawn from a whole folder, not from named cells.
PAPER: dict[str, Callable[[PaperRequest], Figure]] = {
    "figure1": figure1,
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
    "figure6": figure6,
    "figure7": figure7,
    "figure8": figure8,
}
OF_SCORES: dict[str, Callable[[Sequence[Scored], str | None], Figure]] = {
    "risk-coverage": draw_risk_coverage,
    "joint-kept": draw_joint_kept,
}
OURS = (*OF_SCORES, "accuracy-budget")
DIAGRAM = "figure2"


def named(text: str) -> str:
    """Return the figure that `figure4`, `label:fig24` or `risk-coverage` names."""
    kind, colon, label = text.partition(":")
    if colon and kind == "label":
        # The paper's LaTeX labels do not follow its numbers: fig2 is printed as Figure 8.
        labels = {entry.label: entry.printed for entry in index() if entry.kind == "figure"}
        if label not in labels:
            raise unknown("figure label", label, labels)
        text = labels[label]
    if text == DIAGRAM:
        raise UseError("figure2 is a diagram of the RR loss, drawn from no data; label:fig2 is the printed figure8")
    if text not in (*PAPER, *OURS):
        raise unknown("figure", text, (*PAPER, *OURS))
    return text


def draw(name: str, folder: Path, options: FigureOptions) -> Figure:
    """Draw a figure from the cells of a work folder, or from rows alone where it needs no scores."""
    if options.preset is not None:
        check_preset(options.preset)
    if name in PAPER:
        return PAPER[name](paper_request(name, folder, read_scored(folder), options))
    if options.budget and name not in OF_SCORES:
        raise UseError(f"{name} shows every budget: --budget does not go with it")
    if name in OF_SCORES or not is_rows_alone(folder):
        cells = read_scored(folder)
        rows = [cell.row for cell in cells]
    else:
        cells, rows = [], [row for row in read_rows(folder) if row.status == "ok"]
    check_rejectors(split_list(options.rejectors or ""), rows)
    norms = {row.norm for row in rows if row.norm}
    if options.norm is not None and options.norm not in norms:
        raise unknown("norm in these results:", options.norm, norms)
    if not any(map(options.admits, rows)):
        raise UseError(f"no such rows for {name} in {folder}; rrbench run --out {quote(str(folder))} measures some")
    if name in OF_SCORES:
        return OF_SCORES[name]([cell for cell in cells if options.admits(cell.row)], options.attack)
    return draw_accuracy_budget(list(filter(options.admits, rows)), options.attack)


def is_rows_alone(path: Path) -> bool:
    """Tell whether a results CSV is given, or a folder with rows.csv and without cells."""
    return path.is_file() or ((path / "rows.csv").is_file() and not (path / "cells").is_dir())
