from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc as area
from sklearn.metrics import roc_auc_score, roc_curve

from rrbench.metrics import measures as metrics
from rrbench.metrics import resampling
from rrbench.metrics.columns import Metrics, TprRule
from rrbench.metrics.deployment import deploy_threshold, deployed_draws
from scored_inputs import (
    PLAIN,
    TIED,
    Scored,
    accepted_by_scikit_learn,
    accuracy,
    at_threshold,
    logits_for,
    ordering_metrics,
    overlapping,
)


def scored(most: int = 60) -> st.SearchStrategy[Scored]:
    """Draw a few inputs on few distinct scores, so that most have ties."""
    inputs = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=most)
    return inputs.map(lambda pairs: (np.array([float(p[0]) for p in pairs]), np.array([p[1] for p in pairs])))


# Worked by hand.


def test_metrics_without_ties_match_hand_computed_values() -> None:
    assert metrics.auc(*PLAIN) == pytest.approx(5 / 6)
    assert metrics.aurc(*PLAIN) == pytest.approx((0 + 0 + 1 / 3 + 1 / 4 + 2 / 5) / 5)
    assert metrics.augrc(*PLAIN) == pytest.approx(0.12)
    assert metrics.fpr95(*PLAIN) == 1 / 2
    assert deploy_threshold(*PLAIN) == 2.0


def test_metrics_with_ties_match_hand_computed_values() -> None:
    assert metrics.auc(*TIED) == pytest.approx(11 / 18)
    assert metrics.aurc(*TIED) == pytest.approx((2 * 1 / 2 + 3 * 2 / 5 + 1 * 3 / 6) / 6)
    assert metrics.augrc(*TIED) == pytest.approx(2 / 9)
    assert metrics.fpr95(*TIED) == pytest.approx(2 / 3)
    assert deploy_threshold(*TIED) == 2.0


@pytest.mark.parametrize(
    ("inputs", "rule", "expected"),
    [
        (PLAIN, "quantile", [True, True, True, True, False]),
        (PLAIN, "official", [True, True, True, False, False]),
        (TIED, "quantile", [True, True, True, True, True, False]),
        (TIED, "official", [True, True, False, False, False, False]),
    ],
)
def test_both_rules_accept_the_hand_computed_inputs(inputs: Scored, rule: TprRule, expected: list[bool]) -> None:
    accepted = metrics.accept_at_tpr95(*inputs, rule)
    assert accepted is not None
    assert accepted.tolist() == expected


@pytest.mark.parametrize(("right", "rejected"), [(1, 0), (19, 0), (20, 1), (39, 1), (40, 2), (100, 5), (9980, 499)])
def test_the_quantile_rule_rejects_a_twentieth_of_the_right_inputs_rounded_down(right: int, rejected: int) -> None:
    accepted = metrics.accept_at_tpr95(np.arange(right, dtype=np.float64), np.ones(right, dtype=bool), "quantile")
    assert accepted is not None
    assert np.flatnonzero(~accepted).tolist() == list(range(rejected))


def test_the_official_rule_looks_only_at_the_corners_of_the_curve() -> None:
    # A hundred right inputs above ten wrong ones: the straight way up loses its vertex at 0.95, so T is the lowest
    # right score and, accepting strictly above it, 99 remain.
    accepted = metrics.accept_at_tpr95(np.arange(110.0, 0.0, -1.0), np.arange(110) < 100, "official")
    assert accepted is not None
    assert np.flatnonzero(accepted).tolist() == list(range(99))


def test_calibration_error_matches_hand_computed_values() -> None:
    labels = np.array([0, 1, 0])
    logits = np.log([[0.8, 0.2], [0.8, 0.2], [0.6, 0.4]])
    assert metrics.ece(*metrics.of_logits(labels, logits)) == pytest.approx((2 * abs(0.8 - 0.5) + abs(0.6 - 1)) / 3)
    assert metrics.ece(*metrics.of_logits(labels, logits), bins=1) == pytest.approx(2.2 / 3 - 2 / 3)


def test_a_calibration_bin_includes_its_upper_edge() -> None:
    logits = np.log([[0.5, 0.5], [0.75, 0.25]])
    assert metrics.ece(*metrics.of_logits(np.array([1, 0]), logits), bins=2) == pytest.approx((0.5 + 0.25) / 2)


def test_a_tie_between_logits_goes_to_the_first_class() -> None:
    assert metrics.of_logits(np.array([0, 1]), np.zeros((2, 3)))[0].tolist() == [True, False]


# Against scikit-learn and slow definitions.


@settings(deadline=None, max_examples=150)
@given(scored())
def test_the_official_rule_agrees_with_scikit_learn(inputs: Scored) -> None:
    certainty, correct = inputs
    accepted = metrics.accept_at_tpr95(certainty, correct, "official")
    if not correct.any():
        assert accepted is None
        return
    expected = accepted_by_scikit_learn(certainty, correct)
    assert (accepted is None) == (not expected.any())
    assert accepted is None or (accepted == expected).all()


@pytest.mark.parametrize("inputs", [3, 200, 5000])
def test_the_official_rule_agrees_with_scikit_learn_on_continuous_scores(inputs: int) -> None:
    certainty, correct = overlapping(inputs, seed=inputs)
    accepted = metrics.accept_at_tpr95(certainty, correct, "official")
    assert accepted is not None
    assert (accepted == accepted_by_scikit_learn(certainty, correct)).all()


@settings(deadline=None, max_examples=100)
@given(scored())
def test_the_quantile_rule_agrees_with_its_definition(inputs: Scored) -> None:
    certainty, correct = inputs
    right = sorted(certainty[correct].tolist())
    accepted = metrics.accept_at_tpr95(certainty, correct, "quantile")
    if not right:
        assert accepted is None
        assert deploy_threshold(certainty, correct) is None
        return
    threshold = right[len(right) // 20]
    assert accepted is not None
    assert (accepted == (certainty >= threshold)).all()
    assert deploy_threshold(certainty, correct) == threshold


@settings(deadline=None, max_examples=100)
@given(scored())
def test_auc_and_fpr95_agree_with_scikit_learn(inputs: Scored) -> None:
    certainty, correct = inputs
    if correct.all() or not correct.any():
        assert metrics.auc(certainty, correct) is None
        assert metrics.fpr95(certainty, correct) is None
        return
    assert metrics.auc(certainty, correct) == pytest.approx(roc_auc_score(correct, certainty))
    wrong_rate, right_rate, _ = roc_curve(correct, certainty, drop_intermediate=False)
    assert metrics.fpr95(certainty, correct) == pytest.approx(wrong_rate[right_rate > 0.95 - 1e-9].min())


@settings(deadline=None, max_examples=100)
@given(scored())
def test_aurc_is_the_mean_risk_of_accepting_down_to_each_input(inputs: Scored) -> None:
    certainty, correct = inputs
    risks = [1 - correct[certainty >= lowest].mean() for lowest in certainty]
    assert metrics.aurc(certainty, correct) == pytest.approx(np.mean(risks))


@settings(deadline=None, max_examples=100)
@given(scored())
def test_augrc_is_the_trapezoid_over_distinct_scores(inputs: Scored) -> None:
    certainty, correct = inputs
    accepted = [certainty > certainty.max(), *(certainty >= lowest for lowest in np.unique(certainty)[::-1])]
    expected = area([a.mean() for a in accepted], [(a & ~correct).mean() for a in accepted])
    assert metrics.augrc(certainty, correct) == pytest.approx(expected)


@settings(deadline=None, max_examples=100)
@given(scored())
def test_augrc_follows_from_auc_and_accuracy(inputs: Scored) -> None:
    certainty, correct = inputs
    auc, right = metrics.auc(certainty, correct), correct.mean()
    misranked = 0.0 if auc is None else (1 - auc) * right * (1 - right)
    assert metrics.augrc(certainty, correct) == pytest.approx(misranked + (1 - right) ** 2 / 2)


def test_calibration_error_agrees_with_a_loop_over_bins() -> None:
    rng = np.random.default_rng(0)
    logits, labels = 2 * rng.normal(size=(500, 4)), rng.integers(4, size=500)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert metrics.ece(*metrics.of_logits(labels, logits)) == pytest.approx(expected)


def test_the_two_rules_nearly_agree_on_many_continuous_scores() -> None:
    differences = []
    for seed in range(40):
        inputs = overlapping(10_000, seed)
        quantile, official = accuracy(*inputs, "quantile"), accuracy(*inputs, "official")
        assert quantile is not None
        assert official is not None
        differences.append(abs(quantile - official))
    # Not always: the nearest corner of the curve may lie some inputs away.
    assert np.quantile(differences, 0.9) < 0.03
    assert max(differences) < 0.1


# Properties.


@settings(deadline=None, max_examples=50)
@given(scored(), st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_does_not_matter(inputs: Scored, random: Any) -> None:
    certainty, correct = inputs
    order = list(range(certainty.size))
    random.shuffle(order)
    assert ordering_metrics(certainty[order], correct[order]) == ordering_metrics(certainty, correct)


@settings(deadline=None, max_examples=50)
@given(scored())
def test_a_monotone_transform_of_the_scores_changes_nothing(inputs: Scored) -> None:
    certainty, correct = inputs
    expected = ordering_metrics(certainty, correct)
    for transformed in (np.exp(certainty), -1 / (1 + certainty), certainty**3 - 100):
        assert ordering_metrics(transformed, correct) == expected


@settings(deadline=None, max_examples=50)
@given(scored(), st.floats(-1, 9))
def test_every_metric_keeps_to_its_range(inputs: Scored, threshold: float) -> None:
    certainty, correct = inputs
    labels, logits = logits_for(correct)
    clean = at_threshold(certainty, correct, threshold)
    measured = metrics.measure(
        *metrics.of_logits(labels, logits), certainty, rule="quantile", clean=clean, resamples=20, seed=0
    )
    percentages = {name for name in vars(measured) if name.startswith(("acc_", "coverage_", "deploy_"))}
    for name, value in vars(measured).items():
        if value is not None and name not in {"deploy_threshold", "deploy_n"}:
            assert 0 <= value <= (100 if name in percentages else 1), name
    assert measured.augrc is not None
    assert measured.augrc <= 0.5
    for low, high in [(measured.acc_tpr95_low, measured.acc_tpr95_high), (measured.auc_low, measured.auc_high)]:
        assert (low is None) == (high is None)
        assert low is None or high is None or low <= high


@settings(deadline=None, max_examples=50)
@given(scored())
def test_turning_the_scores_round_turns_auc_round(inputs: Scored) -> None:
    certainty, correct = inputs
    auc, turned = metrics.auc(certainty, correct), metrics.auc(-certainty, correct)
    assert (auc is None and turned is None) or (auc is not None and turned == pytest.approx(1 - auc))


# Controls, and the row as a whole.


def test_the_fields_stand_in_the_order_of_the_csv_file() -> None:
    assert " ".join(vars(Metrics())) == (
        "acc_all acc_tpr95 auc coverage_tpr95 acc_tpr95_low acc_tpr95_high auc_low auc_high "
        "deploy_threshold deploy_n deploy_acc deploy_coverage deploy_robust deploy_robust_low deploy_robust_high "
        "deploy_joint deploy_joint_low deploy_joint_high aurc augrc fpr95 ece"
    )


def test_measure_fills_every_field() -> None:
    certainty, correct = PLAIN
    labels, logits = logits_for(correct)
    clean = at_threshold(np.array([5.0, 5.0, 5.0, 2.0, 5.0]), np.array([True, True, True, True, False]), 3.0)
    measured = metrics.measure(
        *metrics.of_logits(labels, logits), certainty, rule="quantile", clean=clean, resamples=200, seed=1
    )
    draws = deployed_draws(clean, certainty, correct, resamples=200, seed=1)
    intervals = resampling.bootstrap(certainty, correct, "quantile", resamples=200, seed=1)
    assert intervals.acc_tpr95 is not None
    assert intervals.auc is not None
    assert vars(measured) == {
        "acc_all": 60.0,
        "acc_tpr95": 75.0,
        "auc": pytest.approx(5 / 6),
        "coverage_tpr95": 80.0,
        "acc_tpr95_low": intervals.acc_tpr95[0],
        "acc_tpr95_high": intervals.acc_tpr95[1],
        "auc_low": intervals.auc[0],
        "auc_high": intervals.auc[1],
        "deploy_threshold": 3.0,
        "deploy_n": 5,
        "deploy_acc": pytest.approx(200 / 3),
        "deploy_coverage": 60.0,
        "deploy_robust": 80.0,
        "deploy_robust_low": np.percentile(draws["robust"], 2.5),
        "deploy_robust_high": np.percentile(draws["robust"], 97.5),
        "deploy_joint": 40.0,
        "deploy_joint_low": np.percentile(draws["joint"], 2.5),
        "deploy_joint_high": np.percentile(draws["joint"], 97.5),
        "aurc": pytest.approx(59 / 300),
        "augrc": pytest.approx(0.12),
        "fpr95": 0.5,
        "ece": pytest.approx(1 / (1 + np.exp(-2)) - 0.6),
    }


def test_measure_uses_the_official_rule_when_asked() -> None:
    certainty, correct = PLAIN
    labels, logits = logits_for(correct)
    measured = metrics.measure(
        *metrics.of_logits(labels, logits), certainty, rule="official", clean=None, resamples=0, seed=0
    )
    assert measured.acc_tpr95 == pytest.approx(200 / 3)
    assert measured.coverage_tpr95 == 60.0


def test_measured_numbers_are_plain_python_numbers() -> None:
    certainty, correct = overlapping(50, seed=10)
    labels, logits = logits_for(correct)
    measured = metrics.measure(
        *metrics.of_logits(labels, logits.astype(np.float32)),
        certainty.astype(np.float32),
        rule="official",
        clean=at_threshold(certainty, correct, None),
        resamples=20,
        seed=0,
    )
    kinds = {name: type(value) for name, value in vars(measured).items()}
    assert kinds.pop("deploy_n") is int
    assert set(kinds.values()) == {float}
