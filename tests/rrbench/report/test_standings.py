"""`rrbench report`: how it ranks what it finds in rows, and how it describes it."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from reported_rows import row, text_of
from rrbench.plugins.config import MetricSettings
from rrbench.report.standings import find_standings, main_budget
from rrbench.report.summary import are_blind, details, untried, verdict
from rrbench.rows.paired import ScoreFiles, all_but_note
from stored_scores import save_scores, scores_of


def test_the_strongest_attack_is_the_one_that_leaves_the_least() -> None:
    rows = [row("a", "clean", 99), row("a", "pgd10", 95), row("a", "pgd100", 90), row("a", "cw-l2", 1, eps="")]
    (standing,) = find_standings(rows)
    assert (standing.strongest.first.attack, standing.value, standing.attacks) == ("pgd100", 90, 2)
    assert standing.clean is not None
    assert standing.clean.mean("deploy_robust") == 99


def test_seeds_are_averaged_before_attacks_are_compared() -> None:
    rows = [
        row("a", "pgd10", 80),
        row("a", "pgd10", 96, seed=1),
        row("a", "pgd100", 86),
        row("a", "pgd100", 88, seed=1),
    ]
    (standing,) = find_standings(rows)
    assert (standing.strongest.first.attack, standing.value) == ("pgd100", 87)
    expected = binomtest(348, 400).proportion_ci(0.95, method="wilson")
    assert standing.interval == pytest.approx((100 * expected.low, 100 * expected.high))
    assert "Mean of 2 seeds, from 86.0 to 88.0." in details(standing)


def test_an_ensemble_does_not_hide_the_strongest_single_attack() -> None:
    ensemble = row("a", "worst-case", 85, settings='{"members": ["pgd10"]}')
    (standing,) = find_standings([row("a", "pgd10", 88), row("a", "pgd100", 92), ensemble])
    assert standing.strongest.first.attack == "worst-case"
    assert standing.single.first.attack == "pgd10"
    assert "the strongest single one: pgd10 (blind), 88.0 %" in text_of(details(standing))


def test_without_a_deployed_threshold_accuracy_at_tpr95_counts() -> None:
    bounds = {"acc_tpr95_low": 70.0, "acc_tpr95_high": 90.0, "deploy_robust": None, "deploy_n": None}
    rows = [row("a", "pgd10", 0, acc_tpr95=85.0, **bounds), row("a", "pgd100", 0, acc_tpr95=80.0, **bounds)]
    (standing,) = find_standings(rows)
    assert (standing.metric, standing.value, standing.interval) == ("acc_tpr95", 80, (70, 90))


def test_the_summary_speaks_of_the_budget_most_was_tried_at_and_of_equals_the_largest() -> None:
    sweep = [row("a", "pgd10", 90, eps=eps) for eps in ("1/10", "3/20", "1/2")]
    assert main_budget(find_standings(sweep)) == "linf:1/2"
    assert main_budget(find_standings([*sweep, row("a", "pgd100", 90, eps="3/20")])) == "linf:3/20"
    assert main_budget(find_standings([*sweep, row("b", "pgd10", 90, eps="1/10")])) == "linf:1/10"


def test_the_summary_names_best_and_worst_and_says_whether_the_inputs_tell_them_apart() -> None:
    apart = "".join(verdict(find_standings([row("a", "pgd10", 95), row("b", "pgd10", 60)]), {}))
    assert "a (pgd-at) holds best: 95.0 % [92.4, 96.7] of 400 inputs are not answered wrong" in text_of(apart)
    assert "b (pgd-at) is the weakest: 60.0 % [55.1, 64.7]" in text_of(apart)
    assert "tell the best one apart from all others" in apart
    near = "".join(verdict(find_standings([row("a", "pgd10", 95), row("b", "pgd10", 94), row("c", "pgd10", 60)]), {}))
    assert "do not settle the order of a (pgd-at) and b (pgd-at)." in text_of(near)


def test_many_rivals_are_counted_rather_than_named() -> None:
    said = text_of("".join(verdict(find_standings([row(name, "pgd10", 90) for name in "abcdefg"]), {})))
    assert said.endswith("the order of a (pgd-at) and b (pgd-at), c (pgd-at), d (pgd-at) and 3 more. ")


def test_pairing_on_the_same_inputs_settles_what_intervals_alone_do_not(tmp_path: Path) -> None:
    """One is wrong on 40 of 400 inputs, the other on these and 20 more: intervals overlap, no pair speaks for it."""
    standings, scores = [], {}
    for rejector, wrong in (("a", 40), ("b", 60)):
        each = row(rejector, "pgd10", 100 - wrong / 4)
        prediction = np.arange(400) < wrong
        made = scores_of(prediction.astype(int), np.zeros(400, int), np.ones(400), threshold=0.5)
        files = save_scores(tmp_path, rejector, made)
        scores[all_but_note(each)] = ScoreFiles(tmp_path, tuple(files.items()), MetricSettings("quantile", 500))
        standings += find_standings([each])
    best, other = standings
    assert other.interval[1] > best.interval[0]
    assert "do not settle" in "".join(verdict(standings, {}))
    said = text_of("".join(verdict(standings, scores)))
    assert "tell the best one apart" in said
    low, high = map(float, re.findall(r"is 5.0 points \[([\d.]+), ([\d.]+)\]", said)[0])
    spread = 1.96 * 100 * (0.05 * 0.95 / 400) ** 0.5  # 20 of 400 inputs differ
    assert (low, high) == pytest.approx((5 - spread, 5 + spread), abs=0.5)


def test_an_oracle_is_named_and_never_the_best_defence() -> None:
    oracle = row("t-con", "pgd10", 100, note="oracle: knows the labels")
    standings = find_standings([oracle, row("a", "pgd10", 90), row("b", "pgd10", 80)])
    assert "a (pgd-at) holds best" in text_of("".join(verdict(standings, {})))
    assert "a bound, no defence" in next(details(each) for each in standings if each.is_oracle)


def test_doubts_and_cheap_robustness_are_said_beside_the_number() -> None:
    note = "weak: more steps or restarts still help: pgd100 takes 7.0 points more"
    rows = [row("a", "clean", 99, deploy_coverage=40.0), row("a", "pgd10", 95, note=note)]
    said = text_of(details(find_standings(rows)[0]))
    assert "It answers 40.0 % of the clean inputs and 90.0 % of the attacked ones" in said
    assert "So few clean answers make robustness cheap." in said
    assert "Doubtful: more steps or restarts still help" in said


def test_a_rejector_of_another_network_is_not_called_worse_than_never_rejecting() -> None:
    """Its network may be weaker, and its rejector may help all the same."""
    other = dataclasses.replace(row("b", "pgd10", 50), trained_as="carl")
    rows = [row("a", "pgd10", 60), row("c", "pgd10", 54), other, row("never-reject", "pgd10", 55)]
    said = text_of("".join(verdict(find_standings(rows), {})))
    assert "Never rejecting has 55.0 % [50.1, 59.8] on pgd-at: 1 of 2 is below it there." in said
    own = dataclasses.replace(row("never-reject", "pgd10", 45), trained_as="carl")
    both = text_of("".join(verdict(find_standings([*rows, own]), {})))
    assert "on pgd-at: 1 of 2 is below it there. Never rejecting has 45.0 % [40.2, 49.9] on carl: none is below" in both
    alone = text_of("".join(verdict(find_standings([row("never-reject", "pgd10", 55), other]), {})))
    assert "Never rejecting has" not in alone


def test_only_attacks_that_all_ranked_rejectors_met_decide_ranks() -> None:
    worst = {"settings": '{"members": ["pgd10"]}'}
    rows = [
        *(row(name, "worst-case", robust, **worst) for name, robust in (("a", 60), ("b", 50), ("never-reject", 55))),
        *(row(name, "pgd10", 70) for name in ("a", "b", "never-reject", "c", "d")),
        row("c", "pgd100", 69),
        row("a", "adaptive(ce+rr)", 40),
    ]
    standings = find_standings(rows)
    ranked = [(each.rejector, each.value, each.shared) for each in standings if each.is_ranked]
    both = ("pgd10", "worst-case")
    assert ranked == [("a", 60, both), ("never-reject", 55, both), ("b", 50, both)]
    assert [(each.rejector, each.value) for each in standings[3:]] == [("d", 70), ("c", 69)]
    assert standings[0].harder is not None
    assert "Not for its rank, as not all met it: adaptive(ce+rr) leaves 40.0 %." in text_of(details(standings[0]))
    said = text_of("".join(verdict(standings, {})))
    assert said.startswith("At linf:3/20, each under the strongest of the 2 attacks that all 3 met, a (pgd-at) holds")
    assert "Never rejecting has 55.0 % [50.1, 59.8]: 1 of 2 is below it." in said
    assert said.endswith("Not ranked, as they did not meet all these attacks: d (pgd-at), c (pgd-at).")
    assert text_of(untried(standings)) == (
        "Tried adaptive(ce+rr) only on a (pgd-at); pgd100 only on c (pgd-at); worst-case not on d (pgd-at), c (pgd-at)."
    )


def test_where_no_attack_was_tried_on_two_rejectors_none_is_ranked() -> None:
    standings = find_standings([row("a", "pgd10", 90), row("b", "pgd100", 80)])
    assert not any(each.is_ranked for each in standings)
    assert text_of("".join(verdict(standings, {}))).startswith(
        "No attack was tried on two rejectors, so none is ranked."
    )


def test_a_dear_attack_decides_and_a_cheap_one_that_more_met_does_not() -> None:
    rows = [row(name, "pgd10", 70, gradients=10.0) for name in "abcd"]
    rows += [row(name, "pgd100x10", 60, gradients=1000.0) for name in "ab"]
    assert [each.rejector for each in find_standings(rows) if each.is_ranked] == ["a", "b"]
    assert [each.rejector for each in find_standings(rows[:5]) if each.is_ranked] == ["a", "b", "c", "d"], "one is few"


def test_attacks_that_never_look_at_the_rejector_are_called_blind() -> None:
    assert are_blind([row("a", "pgd100x10", 90), row("a", "clean", 99)])
    assert not are_blind([row("a", "pgd100", 90), row("a", "adaptive(ce+rr)", 90)])
    assert not are_blind([row("a", "an-outsider", 90)]), "one that is not installed may look"
