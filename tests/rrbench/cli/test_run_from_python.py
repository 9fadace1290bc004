"""`rrbench.run` and `rrbench.table` against the CSV that they write and read."""

import dataclasses
import inspect
import io
import pydoc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rrbench
from rrbench import UseError
from rrbench.api import RunOptions
from rrbench.cli.run import parse_seeds
from rrbench.cli.run import run as command
from rrbench.rows.row import COLUMNS, row_of_texts


def test_run_returns_what_its_csv_holds(bench: Any) -> None:
    frame = rrbench.run(
        "confidence,kd", ["pgd2"], config=bench.config, out=bench.out, device="cpu", limit=60, retrain=True
    )
    assert list(frame.columns) == list(COLUMNS)
    text = pd.read_csv(bench.out / "rows.csv", dtype=str, keep_default_na=False)
    records = [{str(name): value for name, value in record.items()} for record in text.to_dict("records")]
    stored = [dataclasses.astuple(row_of_texts(record)) for record in records]
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


def test_run_refuses_an_option_that_there_is_not_in_one_line(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "runs", "limt": 3}
    with pytest.raises(UseError, match=r"^unknown option 'limt'; near: limit$"):
        rrbench.run("confidence", **options)
    words: list[Any] = ["confidence", "clean", "digits"]
    with pytest.raises(UseError, match=r"^rrbench.run: too many positional arguments$"):
        rrbench.run(*words)
    assert not any(tmp_path.iterdir())


def test_run_shows_its_options_to_who_asks_for_help() -> None:
    shown = inspect.signature(rrbench.run)
    assert list(shown.parameters) == [field.name for field in dataclasses.fields(RunOptions)]
    assert shown.return_annotation == "pd.DataFrame"  # as a text: the command does not import pandas
    assert "limit: int | None = None" in pydoc.render_doc(rrbench.run)


def test_the_command_has_the_options_of_run_with_their_defaults() -> None:
    typed = {name: parameter.default for name, parameter in inspect.signature(command).parameters.items()}
    for only_typed in ("seed", "dry_run", "workers"):
        del typed[only_typed]
    typed |= {"out": str(typed["out"]), "seeds": parse_seeds(None, typed["seeds"])}
    options = {field.name: field.default for field in dataclasses.fields(RunOptions)}
    for only_python in ("fit_data", "calibration_data", "recipe", "report"):
        del options[only_python]
    assert typed == options


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
