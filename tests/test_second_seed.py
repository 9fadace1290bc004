"""What results/README.md says of PGD-AT and PGD-AT+RR with a second seed is what the rows say."""

import math
import re
from typing import NamedTuple

import pytest

from findings_rows import gains_apart, text
from published import ROOT, rows, scores
from rrbench.rows.paired import Difference, differences, paired_difference
from rrbench.rows.row import ResultRow

FOLDERS = ("cifar10", "cifar10-seeds")  # by seed
PAGE = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
SECTION = " ".join(PAGE.partition("### A second seed")[2].partition("\n### ")[0].split())
ATTACKS = ("clean", "pgd10", "pgd100x10", "gama-fw")


def row(seed: int, rejector: str, attack: str, preset: str = "paper") -> ResultRow:
    trained_as = "pgd-at+rr" if rejector == "rr" else "pgd-at"
    (found,) = [
        each
        for each in rows(FOLDERS[seed])
        if (each.trained_as, each.rejector, each.attack, each.preset) == (trained_as, rejector, attack, preset)
        and each.eps in ("", "8/255")
        and each.norm != "l2"
    ]
    assert found.seed == seed
    return found


class Interval(NamedTuple):
    value: float
    low: float
    high: float


def known(found: Difference | None) -> Interval:
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return Interval(found.value, found.low, found.high)


def lead(seed: int, attack: str, metric: str) -> Interval:
    """Return how far R-Con is ahead of confidence."""
    preset = "strong" if attack == "worst-case" else "paper"
    pair = row(seed, "rr", attack, preset), row(seed, "confidence", attack, preset)
    return known(paired_difference(*pair, metric, scores(FOLDERS[seed])))


def gain(seed: int, rejector: str, attack: str, preset: str = "paper") -> Interval:
    here = row(seed, rejector, attack, preset)
    (found,) = differences([here], rows(FOLDERS[seed]), "never-reject", "deploy_joint", scores(FOLDERS[seed])) or ()  # type: ignore[misc]
    return known(found)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_two_trainings_agree_which_attack_favours_r_con(seed: int) -> None:
    assert lead(seed, "pgd100x10", "deploy_joint").low > 0
    for attack in ("gama-fw", "worst-case"):
        assert lead(seed, attack, "deploy_joint").value < 0
        assert lead(seed, "clean", "auc").high < 0 < lead(seed, attack, "auc").low


def test_at_tpr95_the_question_is_open() -> None:
    leads = {attack: [lead(seed, attack, "acc_tpr95") for seed in (0, 1)] for attack in ATTACKS}
    for attack in ("pgd10", "pgd100x10"):
        level, ahead = leads[attack]
        assert level.low < 0 < level.high
        assert ahead.low > 0
    for one, two in leads.values():
        halves = [(each.high - each.low) / 2 for each in (one, two)]
        assert abs(one.value - two.value) < math.hypot(*halves)
    moved = [abs(one.value - two.value) for one, two in leads.values()]
    assert f"moves by {min(moved):.2f} to {max(moved):.2f} points" in SECTION


def test_the_gains_over_never_rejecting_are_those_of_the_rows() -> None:
    (rr, plain), before = (
        [gain(seed, name, "worst-case", "strong") for name in ("rr", "confidence")] for seed in (1, 0)
    )
    shown, shown_plain = (f"{each.value:+.2f} [{each.low:+.2f}, {each.high:+.2f}]" for each in (rr, plain))
    assert f"it gains {shown} by the joint number with seed 1, and confidence {shown_plain} on its own" in SECTION
    assert f"With seed 0 these are {before[0].value:+.2f} and {before[1].value:+.2f}." in SECTION
    assert f"The gain of {rr.value:+.2f} rests on one of them" in SECTION
    assert f"RR gains {shown} at the worst case then, and confidence {shown_plain} (" in text("results/FINDINGS.md")
    ours, theirs = ([gain(seed, name, "gama-fw").value for seed in (0, 1)] for name in ("rr", "confidence"))
    assert f"R-Con gains {ours[0]:.2f} and {ours[1]:.2f} with seeds 0 and 1, " in SECTION
    assert f"confidence {theirs[0]:.2f} and {theirs[1]:.2f}." in SECTION


def test_the_gains_of_r_con_less_those_of_confidence_are_those_of_the_rows() -> None:
    apart = []
    for seed in (0, 1):
        rr, plain = (row(seed, name, "worst-case", "strong") for name in ("rr", "confidence"))
        apart.append(gains_apart(rr, plain, scores(FOLDERS[seed])))
    assert f"less confidence's is {apart[0]} with seed 0 and {apart[1]} with seed 1" in SECTION
    value, low, high = (-float(part) for part in re.findall(r"[-+][\d.]+", apart[1]))
    joint = -lead(1, "worst-case", "deploy_joint").value
    said = f"its gain is {value:.2f} below confidence's ({high:.2f} to {low:.2f}), its joint {joint:.2f}."
    assert f"With a second training of both {said}" in text("README.md")


def test_kd_is_lower_still_with_the_second_seed() -> None:
    aucs = [[row(seed, "kd", attack).auc or 0.0 for attack in ("clean", "pgd10")] for seed in (1, 0)]
    said = (
        "KD's AUC is {:.3f} on clean inputs and {:.3f} under PGD-10, "
        "lower still than the {:.3f} and {:.3f} of seed 0. "
        "Two trainings differ by {:.3f} and {:.3f}"
    )
    apart = [zero - one for one, zero in zip(*aucs, strict=True)]
    assert said.format(*aucs[0], *aucs[1], *apart) in " ".join(PAGE.split())
