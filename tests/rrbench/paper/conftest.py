"""Made-up rows for the paper's cells, labelled by the runner as real ones are."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rrbench.paper.planning import plan_missing
from rrbench.paper.tabulate import Selection
from rrbench.protocols import DataSource
from rrbench.registry import build
from rrbench.rows import ResultRow
from rrbench.runner import Runner
from rrbench.store import Store

Make = Callable[..., list[ResultRow]]


def made_up(index: int, row: ResultRow) -> ResultRow:
    """Give the index-th row metrics that no other row has."""
    share = index / 1000
    return dataclasses.replace(
        row,
        acc_all=40 + share,
        acc_tpr95=50 + share,
        acc_tpr95_low=49 + share,
        acc_tpr95_high=51 + share,
        auc=0.5 + share / 10,
        auc_low=0.4 + share / 10,
        auc_high=0.6 + share / 10,
        distance=10 + share if row.norm and not row.eps else None,
        checkpoint_sha256=f"{row.trained_as}-{row.seed}",
        precision="fp32",
    )


@pytest.fixture
def rows_for(tmp_path: Path) -> Iterator[Make]:
    """Make one row for everything that a table wants."""
    runner = Runner(Store(tmp_path), torch.device("cpu"), "fp32", ())

    def make(paper: str, seed: int = 0, **words: str) -> list[ResultRow]:
        plan = plan_missing(Selection(paper, **words), [], (seed,))
        rows = []
        for cell in plan.cells:
            info = build(DataSource, cell.dataset).info
            size = (
                5 * info.test_size
                if str(cell.dataset).startswith("cifar10-c") and ("severity" not in str(cell.dataset))
                else info.test_size
            )
            rows.append(dataclasses.replace(runner._row(cell), n=size))
        return [made_up(index, row) for index, row in enumerate(rows)]

    yield make
