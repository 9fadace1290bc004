"""A small digits run from which every figure can be drawn."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rrbench import api
from rrbench.figures.scored import Scored, read_scored


@pytest.fixture(scope="session")
def folder(trained: Path, tiny: Path, make_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """A finished work folder; not to be changed."""

    def measure(out: Path) -> None:
        shutil.copytree(trained / "checkpoints", out / "checkpoints")
        options: dict[str, Any] = {"config": tiny, "out": out, "device": "cpu", "limit": 60, "retrain": True}
        for rejectors, attacks, more in (
            ("confidence,rr,ebd", "pgd10,pgd3", {"budgets": "linf:1/20,linf:3/20"}),
            ("rr", "adaptive(eta=0,steps=2),adaptive(eta=1,steps=2)", {}),
            ("confidence", "clean", {"frameworks": "standard,pgd-at", "keep": "features"}),
        ):
            rows = api.execute(api.prepare(api.RunOptions(rejectors, attacks, **(options | more))), ["a test"])
            assert {row.status for row in rows} == {"ok"}

    return make_once("figures", measure)


@pytest.fixture(scope="module")
def cells(folder: Path) -> list[Scored]:
    return read_scored(folder)
