"""What the documents say of three trainings of PGD-AT and of PGD-AT+RR is what the rows say."""

import re
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pytest

from findings_rows import gains_apart, own_gain, text
from published import ROOT, rows, scores
from rrbench.metrics.intervals import mean_interval
from rrbench.rows.paired import all_but_note
from rrbench.rows.row import ResultRow

FOLDERS = ("cifar10", "cifar10-seeds", "cifar10-seeds")  # by seed
SEEDS = range(len(FOLDERS))
PAGE = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
PART = PAGE.partition("### Three trainings")[2].partition("\n### ")[0]
SECTION = " ".join(PART.split())
ATTACKS = {
    "clean": "clean",
    "PGD-10, 8/255": "pgd10",
    "PGD-100x10, 8/255": "pgd100x10",
    "GAMA-FW, 8/255": "gama-fw",
    "worst case, 8/255": "worst-case",
}  # as the table calls them
METRICS = ("acc_tpr95", "auc", "deploy_robust", "deploy_joint")


def row(seed: int, rejector: str, attack: str) -> ResultRow:
    trained_as = "pgd-at+rr" if rejector == "rr" else "pgd-at"
    preset = "strong" if attack == "worst-case" else "paper"
    wanted = (seed, trained_as, rejector, attack, preset)
    (found,) = [
        each
        for each in rows(FOLDERS[seed])
        if (each.seed, each.trained_as, each.rejector, each.attack, each.preset) == wanted
        and each.eps in ("", "8/255")
        and each.norm != "l2"
    ]
    return found


class Interval(NamedTuple):
    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def field(value: Interval, metric: str) -> str:
    places = 3 if metric == "auc" else 2
    return f"{value.value:+.{places}f} [{value.low:+.{places}f}, {value.high:+.{places}f}]"


def line(head: str) -> list[str]:
    (found,) = [each for each in PART.splitlines() if each.startswith(f"| {head} |")]
    return [part.strip() for part in found.strip("|").split("|")][1:]


def leads(attack: str, metric: str) -> list[Interval]:
    """Return R-Con's lead over confidence with each seed, as the table has it; test_paired_tables.py checks that."""
    shown = next(name for name, known in ATTACKS.items() if known == attack)
    fields = [line(f"{shown}, seed {seed}")[METRICS.index(metric)] for seed in SEEDS]
    return [Interval(*map(float, re.findall(r"[-+][\d.]+", each))) for each in fields]


def mean_lead(attack: str, metric: str) -> Interval:
    """Return the mean lead over trainings, with Student's interval."""
    values = [
        getattr(row(seed, "rr", attack), metric) - getattr(row(seed, "confidence", attack), metric) for seed in SEEDS
    ]
    return Interval(fmean(values), *mean_interval(values))


def _joint_draws(of: ResultRow) -> Any:
    """Return the joint number in each draw of examples; all rows draw the same ones."""
    file = scores(FOLDERS[of.seed])[all_but_note(of)]
    return file.drawn(file.scores(), "deploy_joint", file)


def gain(seed: int, rejector: str, attack: str) -> float:
    return own_gain(row(seed, rejector, attack))


def gains(rejector: str, attack: str) -> str:
    first, *others = [f"{gain(seed, rejector, attack):+.2f}" for seed in SEEDS]
    return f"{first}, {' and '.join(others)}"


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_mean_of_the_table_is_that_of_the_rows_with_students_interval(attack: str) -> None:
    found = [field(mean_lead(ATTACKS[attack], metric), metric) for metric in METRICS]
    assert line(f"{attack}, mean of three") == found


def test_all_trainings_agree_which_attack_favours_r_con() -> None:
    ahead = leads("pgd100x10", "deploy_joint")
    assert min(each.value for each in ahead) > 0
    assert [each.excludes_zero for each in ahead] == [True, True, False]
    assert "under PGD-100x10 with all three, beyond chance over images with two of them" in SECTION
    for attack in ("gama-fw", "worst-case"):
        assert max(each.value for each in leads(attack, "deploy_joint")) < 0
        assert min(each.low for each in leads(attack, "auc")) > 0
    assert max(each.high for each in leads("clean", "auc")) < 0


def test_the_joint_number_at_the_worst_case_is_lower_with_every_training() -> None:
    behind = mean_lead("worst-case", "deploy_joint")
    value, low, high = (f"{-each:.2f}" for each in (behind.value, behind.high, behind.low))
    assert f"R-Con is {value} points of joint behind confidence** ({low} to {high} over trainings)" in SECTION
    assert [each.excludes_zero for each in leads("worst-case", "deploy_joint")] == [False, False, True]
    assert "two of the three intervals over examples reach 0" in SECTION
    least, *_, most = sorted(-each.value for each in leads("worst-case", "deploy_joint"))
    pairs = [[_joint_draws(row(seed, name, "worst-case")) for name in ("rr", "confidence")] for seed in SEEDS]
    over_images = [
        f"{-each:.2f}" for each in np.percentile(sum(ours - theirs for ours, theirs in pairs) / len(pairs), (97.5, 2.5))
    ]
    assert f"Over examples the mean of the three has {over_images[0]} to {over_images[1]}." in SECTION
    said = (
        f"by {least:.2f} to {most:.2f} points, {value} in the mean ({low} to {high} over trainings, "
        f"{over_images[0]} to {over_images[1]} over images)"
    )
    assert said in text("README.md")
    assert said in text("results/FINDINGS.md")


def test_at_tpr95_the_question_is_open() -> None:
    for attack in ("pgd10", "pgd100x10"):
        assert [each.excludes_zero for each in leads(attack, "acc_tpr95")] == [False, True, False]
    assert [each.excludes_zero for each in leads("clean", "acc_tpr95")] == [False, False, True]
    assert not any(mean_lead(attack, "acc_tpr95").excludes_zero for attack in ATTACKS.values() if attack != "gama-fw")
    found = [[each.value for each in leads(attack, "acc_tpr95")] for attack in ATTACKS.values()]
    moved = max(max(values) - min(values) for values in found)
    assert f"the difference moves by up to {moved:.2f} points" in SECTION


def test_the_gains_over_never_rejecting_are_those_of_the_rows() -> None:
    rr, plain = gains("rr", "worst-case"), gains("confidence", "worst-case")
    assert f"R-Con gains {rr} points at the worst case, confidence {plain}." in SECTION
    assert f"RR gains {rr} at the worst case with seeds 0, 1 and 2, confidence {plain}" in text("results/FINDINGS.md")
    blind = [gains(name, "gama-fw") for name in ("rr", "confidence")]
    assert f"Under GAMA-FW R-Con gains {blind[0]} over never rejecting, confidence {blind[1]}." in SECTION


def test_the_gains_of_r_con_less_those_of_confidence_are_those_of_the_rows() -> None:
    apart = [
        gains_apart(row(seed, "rr", "worst-case"), row(seed, "confidence", "worst-case"), scores(FOLDERS[seed]))
        for seed in SEEDS
    ]
    assert f"R-Con's gain less confidence's is {apart[0]}, {apart[1]} and {apart[2]}." in SECTION
    for each in apart:
        _, low, high = (float(part) for part in re.findall(r"[-+][\d.]+", each))
        assert low < 0 < high


def test_kds_auc_is_the_rows() -> None:
    for attack in ("clean", "pgd10"):
        first, *others = [f"{row(seed, 'kd', attack).auc:.3f}" for seed in SEEDS]
        assert f"{first}, {' and '.join(others)}" in " ".join(PAGE.split())


def test_the_first_lines_of_the_readme_have_the_means_of_three_trainings() -> None:
    confidence, rr = (fmean(gain(seed, name, "worst-case") for seed in SEEDS) for name in ("confidence", "rr"))
    starts = [[row(seed, name, "worst-case").acc_all or 0 for seed in SEEDS] for name in ("confidence", "rr")]
    lower = fmean(starts[0]) - fmean(starts[1])
    for said in (
        f"plain confidence then gains {confidence:.2f} points of joint over never rejecting.",
        f"RR gains {rr:.2f} on its own network, and that network starts {lower:.2f} lower.",
    ):
        assert said in text("README.md"), said


def test_how_far_trainings_are_apart_at_tpr95() -> None:
    apart = []
    for name in ("rr", "confidence"):
        values = [[row(seed, name, attack).acc_tpr95 or 0 for seed in SEEDS] for attack in ("clean", "pgd10")]
        apart += [max(each) - min(each) for each in values]
    rr, plain = (
        "PGD-AT+RR differs by up to {:.2f} points on clean inputs and {:.2f} under PGD-10",
        "PGD-AT by {:.2f} and {:.2f}",
    )
    assert f"{rr}, of {plain}.".format(*apart) in " ".join(PAGE.split())
