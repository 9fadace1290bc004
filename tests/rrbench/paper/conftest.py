"""Made-up rows for the paper's cells, labelled as real ones are."""

import dataclasses
from collections.abc import Callable
from functools import cache

import pytest
import torch

from rrbench.measuring.at_hand import AtHand
from rrbench.measuring.materials import Materials
from rrbench.measuring.row_writer import RowWriter
from rrbench.measuring.store import Store
from rrbench.paper.planning import plan_missing
from rrbench.paper.tabulate import Selection
from rrbench.plugins.registry import build
from rrbench.protocols import DataSource
from rrbench.rows.row import ResultRow
from rrbench.training.train import describe_training

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


@pytest.fixture(scope="session")
def rows_for(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make one row for everything that a table wants."""
    materials = Materials(Store(tmp_path_factory.mktemp("runs")), torch.device("cpu"), "fp32", ())
    writer = RowWriter(materials, AtHand(materials))

    @cache
    def made(paper: str, seed: int, words: tuple[tuple[str, str], ...]) -> tuple[ResultRow, ...]:
        return tuple(make_rows(paper, seed, **dict(words)))

    def make_rows(paper: str, seed: int, **words: str) -> list[ResultRow]:
        plan = plan_missing(Selection(paper, **words), [], (seed,))
        rows = []
        for cell in plan.cells:
            info = build(DataSource, cell.dataset).info
            rows.append(
                dataclasses.replace(
                    writer.begin(cell, describe_training(cell.training)["recipe"]),
                    n=info.test_size,
                )
            )
        return [made_up(index, row) for index, row in enumerate(rows)]

    return lambda paper, seed=0, **words: list(made(paper, seed, tuple(words.items())))
