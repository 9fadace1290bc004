"""The four functions of Python, called wrongly: one line that names the argument and shows a right one."""

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rrbench
from own_network import Linear, inputs
from rrbench import UseError
from rrbench.plugins.arguments import EXAMPLES

WRONG: dict[str, tuple[Callable[..., object], list[object], dict[str, list[Any]]]] = {
    "evaluate": (
        rrbench.evaluate,
        [Linear(), "confidence", "pgd1", inputs(20)],
        {
            "budget": [8 / 255, ("linf", 8 / 255), b"linf:8/255", {"linf": "8/255"}],
            "config": [{}, 5],
            "keep": [5, [5]],
            "limit": ["5", 5.0, True],
            "name": [5],
            "out": [5, None],
            "preset": [3],
            "progress": ["no", 0],
            "seed": ["0", 0.5, True, (0,)],
            "stop_after": [5],
        },
    ),
    "run": (
        rrbench.run,
        ["confidence", "clean"],
        {
            "address": [5],
            "budgets": [8 / 255, [8 / 255]],
            "config": [{}],
            "data_dir": [5],
            "every": ["5"],
            "frameworks": [5],
            "out": [5, None],
            "paper": [2],
            "preset": [3],
            "recipe": [3, "epochs=3"],
            "report": [print],
            "retrain": ["yes"],
            "seeds": [3, "0,1", [0.5], ["0"], [True], None],
            "stop_after": [5],
            "zoo": ["yes", 1],
        },
    ),
    "table": (
        rrbench.table,
        ["table2"],
        {"folders": [5, "runs"], "dataset": [5], "network": [5], "preset": [5]},
    ),
    "load_model": (rrbench.load_model, ["digits", "pgd-at"], {"network": [5], "seed": ["0"]}),
}


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [(each, name, value) for each, (_, _, wrong) in WRONG.items() for name in wrong for value in wrong[name]],
)
def test_a_wrong_type_is_told_with_a_right_one(
    function: str, name: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called, given, _ = WRONG[function]
    with pytest.raises(UseError) as caught:
        called(*given, **{name: value})
    assert str(caught.value) == f"{name}={value!r} is of a wrong type: write it as in {name}={EXAMPLES[name]}"
    assert not any(tmp_path.iterdir())


def test_what_the_line_shows_is_taken(tmp_path: Path) -> None:
    shown = {name: eval(text, {"rrbench": rrbench}) for name, text in EXAMPLES.items()}
    of_own = ("budget", "keep", "limit", "name", "preset", "progress", "seed", "stop_after")
    own = {name: shown[name] for name in of_own}
    mine = rrbench.evaluate(Linear(), "confidence", "pgd1", inputs(20), out=tmp_path / "own", **own)
    assert [(row.trained_as, row.eps, row.seed) for row in mine.itertuples()] == [("mine", "8/255", 0)]
    of_run = ("budgets", "dataset", "every", "frameworks", "network", "preset", "report", "stop_after")
    options = {name: shown[name] for name in of_run}
    assert list(rrbench.run("confidence", "clean", out=tmp_path, **options).trained_as) == ["pgd-at", "trades"]
    assert rrbench.load_model(*(shown[name] for name in ("dataset", "trained_as"))).training is False
    assert len(rrbench.table(str(tmp_path / "own"))) == 2


def test_whole_numbers_of_numpy_and_what_is_read_once_are_taken(tmp_path: Path) -> None:
    zero, one, twenty = (
        typing.cast(Any, kind(value)) for kind, value in ((np.int64, 0), (np.int64, 1), (np.int32, 20))
    )
    once = typing.cast(Any, (seed for seed in [zero]))
    frame = rrbench.run("confidence", "clean", seeds=once, limit=twenty, out=tmp_path)
    assert (frame["seed"].tolist(), frame["n"].tolist()) == ([0], [20])
    own = {"seed": one, "budget": "linf:1/10", "out": tmp_path / "own"}
    mine = rrbench.evaluate(Linear(), "confidence", "pgd1", inputs(20), **own)
    assert set(mine["seed"]) == {1}


@pytest.mark.parametrize("function", WRONG)
def test_an_unknown_or_missing_argument_is_one_line(function: str) -> None:
    called, given, _ = WRONG[function]
    with pytest.raises(UseError, match=r"^unknown option 'presett'; near: "):
        called(*given, presett="quick")
    if function in ("evaluate", "load_model"):
        with pytest.raises(UseError, match=rf"^rrbench\.{function}: missing a required argument: "):
            called(given[0])


def test_load_model_refuses_a_device_that_there_is_not() -> None:
    with pytest.raises(UseError, match=r"^device 'abacus' cannot be used: "):
        rrbench.load_model("digits", "pgd-at", device="abacus")


CHECKED_LATER = {
    *("rejectors", "attacks", "models", "data", "fit_data", "calibration_data"),  # objects of many types
    *("device", "engine", "precision"),  # words: the line says which there are
}


@pytest.mark.parametrize("function", [rrbench.run, rrbench.evaluate, rrbench.table, rrbench.load_model])
def test_every_argument_of_a_public_function_is_checked(function: Callable[..., object]) -> None:
    parameters = set(inspect.signature(function).parameters)
    assert parameters - EXAMPLES.keys() <= CHECKED_LATER, "one that is in neither would not be checked at all"
