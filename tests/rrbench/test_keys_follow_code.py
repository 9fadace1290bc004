"""Whoever edits a plugin and runs it again must not be shown the numbers of the old code."""

from pathlib import Path

import pytest

from rrbench import registry
from rrbench.cells import Cell
from rrbench.config import load_preset
from rrbench.plan import Request, make_plan


def cell(attack: str) -> Cell:
    request = Request(rejectors=["outside-gap"], attacks=[attack], datasets=["digits"])
    return make_plan(request, load_preset("quick")).cells[-1]


def keys(attack: str, monkeypatch: pytest.MonkeyPatch, edited: str | None) -> tuple[str, str, str, str]:
    with monkeypatch.context() as context:
        plain = registry.code.__wrapped__

        def code(kind: str, name: str) -> str:
            return "edited" if name == edited else plain(kind, name)

        context.setattr("rrbench.cells.code", code)
        planned = cell(attack)
        return planned.training.key, planned.attack_key("c", "fp32"), planned.victim_key("c"), planned.key("c", "fp32")


def test_an_edited_rejector_is_fitted_and_scored_anew_and_a_blind_attack_on_it_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = (keys("pgd10", monkeypatch, edited) for edited in (None, "outside-gap"))
    assert before[:2] == after[:2]
    assert before[2] != after[2]
    assert before[3] != after[3]


def test_an_edited_rejector_is_attacked_anew_by_what_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (keys("adaptive(ce+rcon)", monkeypatch, edited) for edited in (None, "outside-gap"))
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_an_edited_attack_is_run_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (keys("pgd10", monkeypatch, edited) for edited in (None, "pgd"))
    assert before[1] != after[1]


def test_the_hash_is_of_the_file_that_defines_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "idea.py").write_text("first")
    monkeypatch.setattr("inspect.getsourcefile", lambda plugin: str(tmp_path / "idea.py"))
    first = registry.code.__wrapped__("rejector", "outside-gap")
    (tmp_path / "idea.py").write_text("second")
    assert registry.code.__wrapped__("rejector", "outside-gap") != first
