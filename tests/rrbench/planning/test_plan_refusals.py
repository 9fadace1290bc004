"""Requests that do not fit: a pair or attack is left out with a line, or the request is refused before any work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_parts import QUICK, attacks, pairs, plan
from rrbench.errors import UseError
from rrbench.plugins.config import load_file


def test_every_pair_of_a_preset_s_own_list_must_name_a_framework() -> None:
    values = {**QUICK.values, "run": {**QUICK.values["run"], "all_pairs": ["rr"]}}
    with pytest.raises(UseError, match="'rr' should be rejector@framework"):
        plan(["all"], frameworks=["all"], config=replace(QUICK, values=values))


def test_pairs_that_do_not_fit_are_dropped_with_a_line() -> None:
    planned = plan(["rr", "carl", "ccat", "snet"], frameworks=["pgd-at", "carl", "trades"])
    assert pairs(planned) == [("rr", "pgd-at"), ("rr", "trades"), ("carl", "carl"), ("snet", "pgd-at")]
    assert sorted(planned.dropped) == sorted(
        [
            "carl trains its own rejector, carl; rr is left out",
            "carl does not run on pgd-at: it needs carl",
            "carl does not run on trades: it needs carl",
            "ccat does not run on pgd-at: it needs ccat",
            "ccat does not run on carl: it needs ccat",
            "ccat does not run on trades: it needs ccat",
            "snet does not run on carl: it needs pgd-at or standard",
            "snet does not run on trades: it needs pgd-at or standard",
        ]
    )


def test_an_attack_without_a_form_for_the_norm_is_dropped_with_a_line() -> None:
    planned = plan(attacks=["outside-corner", "pgd10"], budgets=["l2:1/2"])
    assert attacks(planned) == ["clean", "pgd10"]
    assert planned.dropped == ("outside-corner has no l2 form",)
    assert attacks(plan(attacks=["outside-corner"], budgets=["l2:1/2", "linf:1/10"])) == ["clean", "outside-corner"]


def test_nothing_left_is_an_error_that_says_why() -> None:
    with pytest.raises(UseError, match=r"^nothing to run: carl does not run on pgd-at: it needs carl$"):
        plan(["carl"], frameworks=["pgd-at"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rejectors": ["rrr"]}, "unknown rejector 'rrr'; near: rr"),
        ({"attacks": ["pdg10"]}, "unknown attack 'pdg10'"),
        ({"attacks": ["pgdd"]}, "unknown attack 'pgdd'; near: pgd"),
        ({"attacks": []}, "no attack given"),
        ({"frameworks": ["trade"]}, "unknown framework 'trade'; near: trades"),
        ({"datasets": ["digit"]}, "unknown dataset 'digit'; near: digits"),
        ({"datasets": ["cifar10-c"]}, "needs 'corruption'"),
        ({"datasets": ["cifar10-c(fogg)"]}, "fog"),
        ({"network": "resnet"}, "unknown network 'resnet'; near: resnet18"),
        ({"budgets": ["linf:x"]}, "cannot read the radius"),
        ({"rejectors": ["rr(tua=1)"]}, "unknown setting of rejector 'rr' 'tua'; near: tau"),
        ({"rejectors": ["rr(tau=warm)"]}, "expected a number"),
        ({"frameworks": ["pgd-at(stepz=3)"]}, "unknown setting of framework 'pgd-at' 'stepz'"),
        ({"frameworks": ["atro(cost=0.7)"], "rejectors": ["atro"]}, "cost 0.7 must lie between 0 and 1/2"),
        ({"seeds": ()}, "no seed given"),
        ({"seeds": (0, -1)}, "a seed is a whole number from 0 on, not -1"),
        ({"limit": 0}, "--limit must be at least 1, not 0"),
        ({"every": 0}, "--every must be at least 1, not 0"),
        ({"every": -10}, "--every must be at least 1, not -10"),
        ({"every": 361}, "--every 361 is more than the 360 test inputs of digits"),
        ({"every": "few"}, "--every cannot be 'few'"),
        ({"limit": 5, "every": 5}, "give --limit or --every, not both"),
        ({"recipe": {"epochs": 0}}, "at least 1 epoch"),
    ],
)
def test_wrong_words_are_refused_before_any_work(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UseError) as caught:
        plan(**wrong)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_section_for_nothing_that_is_installed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[rejector.lidd]\nk = 3\n")
    with pytest.raises(UseError, match=r"unknown rejector 'lidd'; near: .*lid"):
        plan(config=load_file(tmp_path / "mine.toml", "quick"))
