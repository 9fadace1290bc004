"""The published rows, for tests that hold documents against them."""

from functools import cache
from pathlib import Path

from rrbench.rows.paired import ScoreFiles, scored_rows
from rrbench.rows.record import CellRecord, read_cells
from rrbench.rows.row import ResultRow, read_rows

ROOT = Path(__file__).resolve().parent.parent
CIFAR10 = ROOT / "results" / "cifar10"
# Rejectors as the READMEs print them, and as rows call them.
PRINTED = {
    "R-Con": "rr", "confidence": "confidence", "EBD": "ebd", "SNet": "snet", "GMM": "gmm", "LID": "lid", "GDA*": "gda*",
    "GDA": "gda", "KD": "kd", "T-Con, an oracle": "t-con",
}  # fmt: skip


Files = dict[tuple[object, ...], ScoreFiles]  # of the rows of a folder


@cache
def rows(folder: str = "cifar10") -> tuple[ResultRow, ...]:
    return tuple(read_rows(ROOT / "results" / folder / "rows.csv"))


@cache
def scores(folder: str = "cifar10") -> Files:
    """Return the score files of all rows of a folder once; the draws of a row stay with them."""
    return scored_rows(ROOT / "results" / folder)


@cache
def cells_in(folder: Path) -> tuple[tuple[CellRecord, str], ...]:
    """Return the published cells of a folder, each with the hash of its row, for tests that change none."""
    return tuple(read_cells(folder))


def victims_at(attack: str, eps: str = "8/255") -> dict[tuple[str, str], ResultRow]:
    """Return the rows of preset `strong` under one attack, by victim; `eps` is empty for clean ones."""
    strong = [row for row in rows() if (row.preset, row.attack, row.eps) == ("strong", attack, eps)]
    return {(row.trained_as, row.rejector): row for row in strong}


def worst_line(row: ResultRow) -> list[str]:
    """Return the numbers that the READMEs print of a worst-case row."""
    joint = f"{row.deploy_joint:.2f} [{row.deploy_joint_low:.2f}, {row.deploy_joint_high:.2f}]"
    return [f"{row.acc_tpr95:.2f}", f"{row.deploy_robust:.2f}", joint]
