"""Figures drawn with matplotlib from score files only; one file for each figure, numbers apart from drawing."""

from collections.abc import Callable
from pathlib import Path
from shlex import quote

from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.figures.accuracy_budget import draw_accuracy_budget
from rrbench.figures.adaptive import figure4
from rrbench.figures.calibration import figure8
from rrbench.figures.features import figure7
from rrbench.figures.request import FigureOptions, PaperRequest, paper_request
from rrbench.figures.risk_coverage import draw_risk_coverage
from rrbench.figures.scored import read_scored
from rrbench.figures.separation import figure1, figure3, figure6
from rrbench.figures.temperature import figure5
from rrbench.names import split_list, unknown
from rrbench.paper.cells import index
from rrbench.rows.row import goes_by

# The printed figures. The two that the paper does not have are drawn from a whole folder, not from named cells.
PAPER: dict[str, Callable[[PaperRequest], Figure]] = {
    "figure1": figure1,
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
    "figure6": figure6,
    "figure7": figure7,
    "figure8": figure8,
}
OURS = ("risk-coverage", "accuracy-budget")
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
    """Draw a figure from the cells of a work folder."""
    cells = read_scored(folder)
    if name in PAPER:
        return PAPER[name](paper_request(name, folder, cells, options))
    if options.budget:
        raise UseError(f"{name} shows every budget: --budget does not go with it")
    for rejector in split_list(options.rejectors or ""):
        if not any(goes_by(cell.row, rejector) for cell in cells):
            known = {
                name for cell in cells for name in (cell.row.rejector, f"{cell.row.rejector}@{cell.row.framework}")
            }
            raise unknown("rejector among the results:", rejector, known)
    norms = {cell.row.norm for cell in cells if cell.row.norm}
    if options.norm is not None and options.norm not in norms:
        raise unknown("norm among the results:", options.norm, norms)
    admitted = [cell for cell in cells if options.admits(cell.row)]
    if not admitted:
        raise UseError(f"no such rows for {name} in {folder}; rrbench run --out {quote(str(folder))} measures some")
    if name == "risk-coverage":
        return draw_risk_coverage(admitted, options.attack)
    return draw_accuracy_budget([cell.row for cell in admitted], options.attack)
