import dataclasses
import json
from typing import Any

from rrbench.doubts import with_doubts
from rrbench.rows import ResultRow


def row(attack: str, acc_all: float, *, gradients: float = 10, **changes: Any) -> ResultRow:
    settings = changes.pop("settings", {"steps": 10, "restarts": 1, "keep": "last"})
    values: dict[str, Any] = {
        "dataset": "digits", "network": "small-cnn", "framework": "pgd-at", "trained_as": "pgd-at",
        "rejector": "confidence", "norm": "linf", "eps": "3/20", "seed": 0, "preset": "quick", "n": 360,
    }  # fmt: skip
    whole = json.dumps({"attack": settings, **changes.pop("beside", {})})
    return ResultRow(attack=attack, acc_all=acc_all, gradients=gradients, settings=whole, **values | changes)


def notes(*rows: ResultRow) -> list[str]:
    return [each.note for each in with_doubts(rows)]


def pgd(steps: int, acc_all: float, restarts: int = 1, **changes: Any) -> ResultRow:
    settings = {"steps": steps, "restarts": restarts, "keep": "last"}
    return row(f"pgd{steps}" + (f"x{restarts}" if restarts > 1 else ""), acc_all, settings=settings, **changes)


def test_fewer_steps_are_doubted_when_more_take_much_more() -> None:
    assert notes(pgd(10, 80.0), pgd(100, 70.5)) == [
        "weak: more steps or restarts still help: pgd100 takes 9.5 points more",
        "",
    ]


def test_so_are_fewer_restarts() -> None:
    assert "pgd10x5 takes 6.0" in notes(pgd(10, 80.0), pgd(10, 74.0, restarts=5))[0]


def test_a_small_gain_is_no_reason_for_doubt() -> None:
    assert notes(pgd(10, 80.0), pgd(100, 75.0)) == ["", ""]


def test_other_settings_other_budgets_and_other_rejectors_are_not_compared() -> None:
    other_setting = row("pgd100", 10.0, settings={"steps": 100, "restarts": 1, "keep": "best"})
    other_name = row("gama100", 10.0, settings={"steps": 100, "restarts": 1, "keep": "last"})
    rows = [pgd(10, 80.0), other_setting, other_name, pgd(100, 10.0, eps="1/2"), pgd(100, 10.0, rejector="rr")]
    assert notes(*rows) == [""] * 5


def test_an_attack_that_takes_less_than_one_within_a_smaller_radius_is_doubted() -> None:
    """Measured on CIFAR-10: ten steps of 2/255 cannot reach the border of 24/255."""
    found = notes(pgd(10, 24.4, eps="8/85"), pgd(100, 16.9, restarts=10, eps="16/255"), pgd(10, 32.7, eps="12/255"))
    assert found == ["weak: pgd100x10 takes 7.5 points more within 16/255", "", ""]
    # A weaker attack on the smaller ball, other settings and chance prove nothing.
    assert notes(pgd(100, 24.4, eps="8/85"), pgd(10, 16.9, eps="16/255"))[0] == ""
    assert notes(pgd(10, 24.4, eps="8/85"), pgd(10, 23.5, eps="16/255"))[0] == ""


def test_an_attack_without_gradients_that_wins_is_named() -> None:
    blind = row("corner", 70.0, gradients=0, settings={})
    assert notes(pgd(10, 80.0), blind) == ["weak: corner, without any gradient, takes 10.0 points more", ""]


def test_an_ensemble_of_stored_attacks_is_not_an_attack_without_gradients() -> None:
    worst = row("worst-case", 70.0, gradients=0, settings={}, beside={"members": ["pgd10"]})
    assert notes(pgd(10, 80.0), worst) == ["", ""]


def test_clean_rows_and_failed_rows_are_left_alone() -> None:
    clean = row("clean", 99.0, norm="", eps="", settings={})
    failed = pgd(100, 0.0, status="failed", error="it broke")
    assert notes(pgd(10, 80.0), clean, failed) == ["", "", ""]


def test_other_notes_stay_and_doubts_do_not_pile_up() -> None:
    once = with_doubts([pgd(10, 80.0, note="oracle: knows the labels"), pgd(100, 70.0)])
    assert once[0].note.startswith("oracle: knows the labels; weak: more steps")
    assert with_doubts(once) == once
    assert with_doubts(once[:1])[0].note == "oracle: knows the labels"


def test_rows_with_settings_that_tell_nothing_are_compared_with_nobody() -> None:
    odd = [dataclasses.replace(pgd(10, 80.0), settings=text) for text in ("", "{", "null", "[]", '{"attack": 3}')]
    assert notes(*odd, pgd(100, 10.0)) == [""] * 6
