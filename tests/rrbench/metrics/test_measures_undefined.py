"""Metrics of degenerate inputs: undefined metrics are None, the others have values, and invalid inputs are refused."""

from typing import Any

import numpy as np
import pytest

from rrbench.metrics import measures as metrics
from rrbench.metrics import resampling
from rrbench.metrics.columns import TprRule
from scored_inputs import RULES, accuracy, at_threshold, logits_for, ordering_metrics

NOTHING_DEPLOYED: dict[str, Any] = {"rule": "quantile", "clean": None, "resamples": 20, "seed": 0}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rule", RULES)
def test_all_inputs_wrong_leaves_only_what_is_defined(rule: TprRule) -> None:
    wrong = np.zeros(4, dtype=bool)
    labels, logits = logits_for(wrong)
    clean = at_threshold(np.arange(4.0), wrong, 2.0)
    measured = metrics.measure(
        *metrics.of_logits(labels, logits), np.arange(4.0), rule=rule, clean=clean, resamples=0, seed=0
    )
    confidence = 1 / (1 + np.exp(-2))
    defined = {name: value for name, value in vars(measured).items() if value is not None}
    assert defined == {
        "acc_all": 0.0,
        "deploy_threshold": 2.0,
        "deploy_n": 4,
        "deploy_acc": 0.0,
        "deploy_coverage": 50.0,
        "deploy_robust": 50.0,
        "deploy_joint": 0.0,
        "aurc": 1.0,
        "augrc": 0.5,
        "ece": pytest.approx(confidence),
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("rule", "coverage"), [("quantile", 100.0), ("official", 75.0)])
def test_all_inputs_right_leaves_only_what_is_defined(rule: TprRule, coverage: float) -> None:
    right = np.ones(4, dtype=bool)
    labels, logits = logits_for(right)
    measured = metrics.measure(
        *metrics.of_logits(labels, logits), np.arange(4.0), rule=rule, clean=None, resamples=50, seed=0
    )
    defined = {name: value for name, value in vars(measured).items() if value is not None}
    assert defined == {
        "acc_all": 100.0,
        "acc_tpr95": 100.0,
        "coverage_tpr95": coverage,
        "acc_tpr95_low": 100.0,
        "acc_tpr95_high": 100.0,
        "aurc": 0.0,
        "augrc": 0.0,
        "ece": pytest.approx(1 - 1 / (1 + np.exp(-2))),
    }


@pytest.mark.filterwarnings("error")
def test_constant_scores_tell_nothing_apart() -> None:
    certainty, correct = np.full(10, 0.7), np.arange(10) < 6
    assert accuracy(certainty, correct, "quantile") == pytest.approx(60)
    assert accuracy(certainty, correct, "official") is None
    assert metrics.auc(certainty, correct) == 0.5
    assert metrics.aurc(certainty, correct) == pytest.approx(0.4)
    assert metrics.augrc(certainty, correct) == pytest.approx(0.2)
    assert metrics.fpr95(certainty, correct) == 1.0
    assert resampling.bootstrap(certainty, correct, "official", 50, seed=0).acc_tpr95 is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("is_right", [True, False])
def test_a_single_input_can_be_measured(rule: TprRule, is_right: bool) -> None:
    correct = np.array([is_right])
    labels, logits = logits_for(correct)
    clean = at_threshold(np.array([0.3]), correct, None)
    measured = metrics.measure(
        *metrics.of_logits(labels, logits), np.array([0.3]), rule=rule, clean=clean, resamples=5, seed=0
    )
    assert measured.acc_tpr95 == (100.0 if is_right and rule == "quantile" else None)
    assert measured.deploy_n is measured.deploy_robust is None, "nobody is there to fix its threshold"


@pytest.mark.filterwarnings("error")
def test_infinite_certainties_are_ordered_like_any_others() -> None:
    infinite = np.array([np.inf, np.inf, 1.0, 0.0, -np.inf, -np.inf])
    finite = np.array([9.0, 9.0, 1.0, 0.0, -9.0, -9.0])
    correct = np.array([True, False, True, False, True, False])
    assert ordering_metrics(infinite, correct) == ordering_metrics(finite, correct)


@pytest.mark.filterwarnings("error")
def test_infinite_logits_leave_only_the_calibration_error_undefined() -> None:
    labels = np.array([0, 1])
    correct, confidence = metrics.of_logits(labels, np.array([[np.inf, 0.0], [0.0, 1.0]]))
    assert correct.all()
    assert metrics.ece(correct, confidence) is None
    assert metrics.ece(*metrics.of_logits(labels, np.array([[0.0, -np.inf], [-np.inf, 0.0]]))) == 0.0


@pytest.mark.parametrize(("place", "name"), [("certainty", "certainties"), ("logits", "logits")])
def test_a_nan_is_an_error_that_names_its_place(place: str, name: str) -> None:
    correct = np.array([True, False, True])
    labels, logits = logits_for(correct)
    inputs: dict[str, Any] = {"certainty": np.arange(3.0), "logits": logits}
    inputs[place][1] = np.nan
    with pytest.raises(ValueError, match="NaN among the " + name):
        metrics.measure(*metrics.of_logits(labels, inputs["logits"]), inputs["certainty"], **NOTHING_DEPLOYED)


def test_no_inputs_or_inputs_that_do_not_fit_together_are_errors() -> None:
    nothing, none = np.empty(0), np.empty(0, dtype=bool)
    for metric in (metrics.auc, metrics.aurc, metrics.augrc, metrics.fpr95):
        with pytest.raises(ValueError, match="no inputs"):
            metric(nothing, none)
        with pytest.raises(ValueError, match="shape"):
            metric(np.ones(3), np.ones(2, dtype=bool))
        with pytest.raises(ValueError, match="bool"):
            metric(np.ones(3), np.ones(3, dtype=np.int64))
    with pytest.raises(ValueError, match="no inputs"):
        metrics.of_logits(np.empty(0, dtype=np.int64), np.empty((0, 3)))
    with pytest.raises(ValueError, match="shape"):
        metrics.of_logits(np.zeros(2, dtype=np.int64), np.zeros((3, 3)))
