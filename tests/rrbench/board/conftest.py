"""Rows made up for the board: victims whose ranks are plain to see."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rrbench.board import write_board
from rrbench.plugins.revisions import deployment
from rrbench.rows.row import ResultRow, to_csv

MEMBERS = ["pgd100", "selective-pgd"]
MakeRow = Callable[..., ResultRow]


def made_row(rejector: str, attack: str, joint: float | None, **more: Any) -> ResultRow:
    """Return a row of `pgd-at` on digits, by a worst case of two attacks where the attack is `worst-case`."""
    eps = more.pop("eps", "" if attack == "clean" else "3/20")
    names = {
        "dataset": "digits", "network": "small-cnn", "framework": "pgd-at", "trained_as": "pgd-at",
        "rejector": rejector, "attack": attack, "norm": "linf" if eps else "", "eps": eps, "seed": 0,
        "preset": "strong", "n": 400,
    }  # fmt: skip
    low, high = (None, None) if joint is None else (joint - 2, min(joint + 2, 100.0))
    given = {
        "acc_all": 80.0, "acc_tpr95": 85.0, "acc_tpr95_low": 84.0, "acc_tpr95_high": 86.0, "auc": 0.9, "deploy_n": 400,
        "deploy_coverage": 90.0, "deploy_robust": joint, "deploy_joint": joint, "deploy_joint_low": low,
        "deploy_joint_high": high, "commit": "0123456789ab", "data_sha256": "d" * 64, "checkpoint_sha256": "c" * 64,
        "precision": "fp32", "revisions": json.dumps({"deployment": deployment()}),
        "settings": json.dumps({"members": MEMBERS} if attack == "worst-case" else {}),
    }  # fmt: skip
    return ResultRow(**(names | given | more))


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    return made_row


@pytest.fixture(scope="session")
def made_rows() -> list[ResultRow]:
    """Two networks: four rejectors on one, two on the other; two of these six were not attacked to the worst case."""
    other = {"trained_as": "pgd-at+rr", "checkpoint_sha256": "e" * 64}
    found: list[ResultRow] = []
    for rejector, worst, blind, more in (
        ("confidence", 60.0, 71.0, {}),
        ("never-reject", 55.0, 70.0, {}),
        ("energy", 50.0, 73.0, {}),
        ("kd", None, 99.0, {}),
        ("rr", 57.0, 74.0, other),
        ("confidence", None, 98.0, other),
    ):
        found += [
            made_row(rejector, "clean", 90.0, acc_all=99.0 - len(found), deploy_coverage=93.0, **more),
            made_row(
                rejector, "pgd100", blind, acc_tpr95=blind - 1, acc_tpr95_low=blind - 3, acc_tpr95_high=blind, **more
            ),
        ]
        found += [made_row(rejector, "worst-case", worst, **more)] if worst else []
    return found


@pytest.fixture(scope="session")
def write_rows(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write rows as results files, one for each list, and the board of them."""

    def write(*lists: list[ResultRow]) -> Path:
        folder = tmp_path_factory.mktemp("board")
        places = [(f"folder{index}", folder / f"rows{index}.csv") for index in range(len(lists))]
        for (_, path), rows in zip(places, lists, strict=True):
            path.write_text(to_csv(rows))
        write_board(places, folder / "board.html")
        return folder / "board.html"

    return write


@pytest.fixture(scope="session")
def made_board(made_rows: list[ResultRow], write_rows: Callable[..., Path]) -> Path:
    """Their board, from a results file."""
    return write_rows(made_rows)
