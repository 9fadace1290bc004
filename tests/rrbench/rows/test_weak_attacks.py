import dataclasses
import json
from itertools import permutations
from typing import Any

from rrbench.rows.row import ResultRow
from rrbench.rows.weak_attacks import family, with_weak_notes


def row(attack: str, acc_all: float, *, gradients: float = 10, **changes: Any) -> ResultRow:
    settings = changes.pop("settings", {"steps": 10, "restarts": 1, "keep": "last"})
    values: dict[str, Any] = {
        "dataset": "digits", "network": "small-cnn", "framework": "pgd-at", "trained_as": "pgd-at",
        "rejector": "confidence", "norm": "linf", "eps": "3/20", "seed": 0, "preset": "quick", "n": 360,
    }  # fmt: skip
    whole = json.dumps({"attack": settings, **changes.pop("beside", {})})
    return ResultRow(attack=attack, acc_all=acc_all, gradients=gradients, settings=whole, **values | changes)


def notes(*rows: ResultRow) -> list[str]:
    return [each.note for each in with_weak_notes(rows)]


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


def test_a_letter_at_the_end_of_a_name_is_no_short_form() -> None:
    names = [family(row(attack, 50.0)) for attack in ("fox", "fo", "pgd100x10", "pgd7", "my attack(")]
    assert names == ["fox", "fo", "pgd", "pgd", "my attack("]


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
    corner = row("corner", 70.0, gradients=0, settings={})
    assert notes(pgd(10, 80.0), corner) == ["weak: corner, without any gradient, takes 10.0 points more", ""]


def test_an_ensemble_of_stored_attacks_is_not_an_attack_without_gradients() -> None:
    worst = row("worst-case", 70.0, gradients=0, settings={}, beside={"members": ["pgd10"]})
    assert notes(pgd(10, 80.0), worst) == ["", ""]


def test_clean_rows_and_failed_rows_are_left_alone() -> None:
    clean = row("clean", 99.0, norm="", eps="", settings={})
    failed = pgd(100, 0.0, status="failed", error="it broke")
    assert notes(pgd(10, 80.0), clean, failed) == ["", "", ""]


def test_other_notes_stay_and_doubts_do_not_pile_up() -> None:
    once = with_weak_notes([pgd(10, 80.0, note="oracle: knows the labels"), pgd(100, 70.0)])
    assert once[0].note.startswith("oracle: knows the labels; weak: more steps")
    assert with_weak_notes(once) == once
    assert with_weak_notes(once[:1])[0].note == "oracle: knows the labels"


def test_rows_with_settings_that_tell_nothing_are_compared_with_nobody() -> None:
    odd = [dataclasses.replace(pgd(10, 80.0), settings=text) for text in ("", "{", "null", "[]", '{"attack": 3}')]
    assert notes(*odd, pgd(100, 10.0)) == [""] * 6


# Adaptive attacks, by deploy_robust.


def adaptive(robust: float | None, objective: str = "ce+rcon", **changes: Any) -> ResultRow:
    settings = {"steps": 20, "restarts": 1, "objective": objective}
    return row(f"adaptive({objective})", 80.0, deploy_robust=robust, settings=settings, **changes)


def worst_case(robust: float, **changes: Any) -> ResultRow:
    return row("worst-case", 60.0, deploy_robust=robust, settings={}, beside={"members": ["pgd10"]}, **changes)


def test_an_adaptive_attack_that_a_blind_one_beats_is_doubted() -> None:
    """Measured on digits: 98.0 under an attack that looks at the rejector, and 86.0 under one that does not."""
    assert notes(adaptive(98.0), pgd(20, 80.0, deploy_robust=86.0)) == [
        "weak: pgd20, which does not look at the rejector, leaves deploy_robust 12.0 points lower",
        "",
    ]
    assert notes(adaptive(88.0), pgd(20, 80.0, deploy_robust=86.0)) == ["", ""], "two points are chance"


def test_an_adaptive_attack_that_another_adaptive_one_beats_by_more_than_a_few_points_is_doubted() -> None:
    rows = [adaptive(90.0), adaptive(84.5, "con+rcon"), adaptive(89.5, "ce+rr")]
    assert notes(*rows) == ["weak: adaptive(con+rcon) leaves deploy_robust 5.5 points lower", "", ""]


def test_of_two_attacks_that_show_the_same_the_same_one_is_named_in_any_order() -> None:
    rows = [adaptive(90.0), *(pgd(steps, 50.0, deploy_robust=80.0) for steps in (5, 6, 7))]
    found = {with_weak_notes(some)[some.index(rows[0])].note for some in map(list, permutations(rows))}
    assert found == {"weak: pgd5, which does not look at the rejector, leaves deploy_robust 10.0 points lower"}


def test_nothing_may_be_stronger_than_the_worst_case_by_more_than_chance() -> None:
    assert notes(worst_case(80.0), adaptive(77.5)) == [
        "weak: adaptive(ce+rcon) leaves deploy_robust 2.5 points lower",
        "",
    ]
    assert notes(worst_case(80.0), adaptive(78.5)) == ["", ""]


def test_a_blind_attack_that_an_adaptive_one_beats_is_what_one_expects() -> None:
    assert notes(pgd(20, 80.0, deploy_robust=99.0), adaptive(40.0), worst_case(40.0)) == ["", "", ""]


def test_only_the_same_victim_data_and_budget_are_compared() -> None:
    others = [
        pgd(20, 80.0, deploy_robust=50.0, **change)
        for change in ({"eps": "1/4"}, {"norm": "l2"}, {"rejector": "rr"}, {"seed": 1}, {"data_sha256": "other"})
    ]
    assert notes(adaptive(98.0), *others) == [""] * 6
    assert notes(adaptive(None), pgd(20, 80.0, deploy_robust=50.0)) == ["", ""], "no threshold, no comparison"


def test_an_attack_of_which_nobody_knows_whether_it_looks_is_not_doubted_for_it() -> None:
    stranger = row("an-outsider", 80.0, deploy_robust=98.0, settings={})
    assert notes(stranger, pgd(20, 80.0, deploy_robust=50.0))[0] == ""


def test_of_a_file_that_may_be_a_part_earlier_doubts_are_kept() -> None:
    doubted = adaptive(98.0, note="weak: pgd20 takes more")
    assert with_weak_notes([doubted], is_whole=False) == [doubted]
    found = with_weak_notes([adaptive(98.0), pgd(20, 80.0, deploy_robust=86.0)], is_whole=False)
    assert found[0].note.startswith("weak: pgd20, which")
    assert with_weak_notes(found, is_whole=False) == found


def test_an_attack_that_changes_no_prediction_is_not_weak_because_others_do() -> None:
    def attacked(attack: str) -> ResultRow:
        return row(attack, 80.0, settings={}, deploy_robust=90.0)

    stronger = pgd(100, 60.0, deploy_robust=70.0)
    assert "weak" in notes(attacked("selective-pgd"), stronger)[0]
    free = row("square-reject", 60.0, gradients=0, settings={}, deploy_robust=90.0)
    assert "without any gradient" in notes(attacked("selective-pgd"), free)[0]
    assert notes(attacked("ace"), stronger, free)[0] == ""


def test_images_of_another_network_must_not_do_more_harm_than_the_victim_s_own_gradients() -> None:
    def moved(accuracy: float) -> ResultRow:
        settings = {"source": "trades", "by": "pgd20"}
        beside = {"members": ["pgd20"], "moved_on": "a"}
        return row("transfer(trades,by=pgd20)", accuracy, settings=settings, beside=beside)

    found = notes(pgd(20, 60.0), moved(55.0), moved(40.0))
    assert found[0] == "weak: transfer(trades,by=pgd20), moved on another network, takes 20.0 points more"
    assert found[1:] == ["", ""], "another network may well be a better place to move images on"
    assert notes(pgd(20, 60.0), moved(59.5)) == ["", ""]
