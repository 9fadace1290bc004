"""`rrbench.run` and `rrbench.table` against the CSV that they write and read."""

import dataclasses
import io
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rrbench
from rrbench import UseError
from rrbench.rows.row import COLUMNS, from_texts


def test_run_returns_what_its_csv_holds(bench: Any) -> None:
    frame = rrbench.run(
        "confidence,kd", ["pgd2"], config=bench.config, out=bench.out, device="cpu", limit=60, retrain=True
    )
    assert list(frame.columns) == list(COLUMNS)
    text = pd.read_csv(bench.out / "rows.csv", dtype=str, keep_default_na=False)
    records = [{str(name): value for name, value in record.items()} for record in text.to_dict("records")]
    stored = [dataclasses.astuple(from_texts(record)) for record in records]
    returned = [
        tuple(None if isinstance(value, float) and np.isnan(value) else value for value in line)
        for line in frame.astype(object).itertuples(index=False)
    ]
    assert sorted(returned, key=str) == sorted(stored, key=str)
    back = pd.read_csv(io.StringIO(frame.to_csv(index=False)))
    assert list(back.acc_all) == list(frame.acc_all)


def test_run_refuses_what_the_command_refuses(bench: Any) -> None:
    with pytest.raises(UseError, match="near: "):
        rrbench.run("konfidence", out=bench.out)
    with pytest.raises(UseError, match="empty"):
        rrbench.run([], out=bench.out)
    with pytest.raises(UseError, match="exclude"):
        rrbench.run(zoo=True, retrain=True, out=bench.out)


def test_table_reads_back_what_run_returned(bench: Any) -> None:
    bench.measure("confidence", "pgd1")
    frame = rrbench.table(bench.out)
    assert frame.equals(rrbench.table(bench.out / "rows.csv"))
    assert list(frame.columns) == list(COLUMNS)
    assert [(row.rejector, row.attack) for row in frame.itertuples()] == [
        ("confidence", "clean"),
        ("confidence", "pgd1"),
    ]
    with pytest.raises(UseError, match="no results at"):
        rrbench.table(bench.out / "nothing")
