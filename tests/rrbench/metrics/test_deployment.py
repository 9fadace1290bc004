"""Thresholds fixed on clean inputs, and their effect: by hand, by a slow loop, and for unusual rejectors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rrbench.metrics import tallies
from rrbench.metrics.deployment import (
    FOLDS,
    CleanScores,
    Deployed,
    accepted_by,
    deploy_threshold,
    deployed,
    deployed_draws,
    fold_of,
    fold_thresholds,
    joint_where_kept,
    whole_threshold,
)

NONE: tuple[NDArray[Any], NDArray[Any]] = np.empty(0), np.empty(0, dtype=bool)


def flags(text: str) -> NDArray[np.bool_]:
    return np.array([sign == "+" for sign in text])


def clean_of(
    certainty: NDArray[Any],
    correct: NDArray[np.bool_],
    apart: tuple[NDArray[Any], NDArray[Any]] = NONE,
    own: float | None = None,
) -> CleanScores:
    return CleanScores(certainty, correct, fold_of(np.arange(certainty.size)), *apart, own)


# Worked by hand.

TEN = clean_of(np.array([5.0, 1.0, 2.0, 3.0, 4.0, 9.0, 8.0, 7.0, 0.5, 6.0]), flags("+++++++++-"))


def test_a_folds_threshold_comes_from_the_right_inputs_of_the_others() -> None:
    # Nine right inputs, so the rule keeps them all: the threshold is the least certain of them that is in another fold.
    assert fold_thresholds(TEN) == (0.5, 0.5, 0.5, 1.0, 0.5)
    assert whole_threshold(TEN) == 0.5
    accepted = accepted_by(TEN, TEN.certainty)
    assert accepted is not None
    assert accepted.tolist() == [True] * 8 + [False, True]


def test_one_definition_says_how_many_right_inputs_every_threshold_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, right = np.arange(100.0), np.ones(100, dtype=bool)
    clean = clean_of(scores, right, (scores, right))
    every_second = np.arange(200) % 2 == 1  # right, from the surest on
    tally = tallies.tally_of(tallies.ranks_of(np.arange(200.0), every_second), every_second)
    for kept in (95, 80):
        monkeypatch.setattr(tallies, "KEPT_PERCENT", kept)
        assert deploy_threshold(scores, right) == 100 - kept
        # The official rule finds the same score, but does not accept it.
        assert (int(tallies.accepted_scores(tally, "quantile")), int(tallies.accepted_scores(tally, "official"))) == (
            2 * kept - 1,
            2 * kept - 2,
        )
        assert float(deployed_draws(clean, scores, right, 200, 0)["coverage"].mean()) == pytest.approx(kept, abs=1)


def test_inputs_kept_apart_fix_one_threshold_for_all() -> None:
    apart = np.array([0.1, 2.5, 3.5]), flags("-++")
    clean = TEN._replace(apart_certainty=apart[0], apart_correct=apart[1])
    assert fold_thresholds(clean) == (2.5,) * FOLDS
    assert whole_threshold(clean) == 2.5


def test_a_rejectors_own_threshold_goes_before_all_others() -> None:
    clean = TEN._replace(apart_certainty=np.ones(3), apart_correct=flags("+++"), own_threshold=4.5)
    assert fold_thresholds(clean) == (4.5,) * FOLDS
    assert whole_threshold(clean) == 4.5


def test_five_inputs_worked_by_hand() -> None:
    # Clean: the last is wrong, the fourth is refused. Attacked: the first stays right; the second is wrong and refused;
    # the third wrong and accepted; the fourth right; the last right and accepted.
    clean = clean_of(np.array([5.0, 5, 5, 1, 5]), flags("++++-"), own=2.0)
    found = deployed(clean, np.array([5.0, 1, 5, 5, 5]), flags("+--++"))
    assert found == Deployed(acc=75.0, coverage=80.0, robust=80.0, joint=40.0)


def test_rejecting_everything_is_robust_and_has_no_joint_number() -> None:
    clean = clean_of(np.ones(4), flags("++-+"), own=2.0)
    assert deployed(clean, np.ones(4), flags("+---")) == Deployed(None, 0.0, 100.0, 0.0)


def test_accepting_everything_has_the_share_that_is_right_both_clean_and_attacked() -> None:
    clean = clean_of(np.ones(5), flags("+++--"))
    assert deployed(clean, np.ones(5), flags("+--+-")) == Deployed(40.0, 100.0, 40.0, 20.0)


def test_an_oracle_has_its_clean_accuracy() -> None:
    right, attacked = flags("++++-"), flags("+---+")
    found = deployed(clean_of(right.astype(float), right), attacked.astype(float), attacked)
    assert found is not None
    assert (found.robust, found.joint) == (100.0, 80.0)


def test_a_threshold_is_not_rounded_to_the_precision_of_the_scores() -> None:
    just_below = np.array([0.7], dtype=np.float32)
    assert float(just_below[0]) < 0.7
    found = deployed(clean_of(just_below, flags("+"), own=0.7), just_below, flags("+"))
    assert found is not None
    assert found.coverage == 0.0


def test_without_a_right_input_in_other_folds_nothing_is_deployed() -> None:
    alone = clean_of(np.array([0.3]), flags("+"))
    assert fold_thresholds(alone)[0] is None
    assert deployed(alone, np.array([0.3]), flags("+")) is None
    wrong = clean_of(np.arange(7.0), np.zeros(7, dtype=bool))
    assert whole_threshold(wrong) is None
    assert deployed(wrong, np.arange(7.0), flags("+++++++")) is None
    assert deploy_threshold(*NONE) is None


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="10 clean inputs for 3 attacked ones"):
        deployed(TEN, np.ones(3), flags("+++"))
    with pytest.raises(ValueError, match="NaN among the certainties"):
        deployed(TEN, np.full(10, np.nan), TEN.correct)
    with pytest.raises(ValueError, match="NaN among the certainties"):
        deployed(TEN._replace(certainty=np.full(10, np.nan)), np.ones(10), TEN.correct)


# Draws, by the slow way.

Case = tuple[CleanScores, NDArray[Any], NDArray[np.bool_]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a few inputs on few distinct scores, so that most have ties."""
    size, apart = draw(st.integers(6, 30)), draw(st.sampled_from([0, 0, 7]))
    own = draw(st.sampled_from([None, None, None, 3.0]))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    clean = CleanScores(
        rng.integers(0, 9, size).astype(float),
        rng.random(size) < 0.8,
        fold_of(rng.permutation(size)),
        rng.integers(0, 9, apart).astype(float),
        rng.random(apart) < 0.8,
        own,
    )
    return clean, rng.integers(0, 9, size).astype(float), rng.random(size) < 0.5


@settings(deadline=None, max_examples=60)
@given(cases())
def test_each_draw_is_measured_as_if_its_inputs_were_the_only_ones(case: Case) -> None:
    clean, certainty, correct = case
    draws = deployed_draws(clean, certainty, correct, resamples=8, seed=3)
    rows = np.random.default_rng(3).integers(certainty.size, size=(8, certainty.size))
    others = np.random.default_rng([3, 1])
    for number, row in enumerate(rows):
        some = clean._replace(certainty=clean.certainty[row], correct=clean.correct[row], folds=clean.folds[row])
        if clean.apart_certainty.size and clean.own_threshold is None:
            taken = others.integers(clean.apart_certainty.size, size=clean.apart_certainty.size)
            some = some._replace(apart_certainty=clean.apart_certainty[taken], apart_correct=clean.apart_correct[taken])
        expected = deployed(some, certainty[row], correct[row])
        for name, values in draws.items():
            value = None if expected is None else getattr(expected, name)
            assert values[number] == pytest.approx(np.nan if value is None else value, nan_ok=True), name


def test_an_interval_is_wider_where_few_inputs_fix_the_threshold() -> None:
    rng = np.random.default_rng(0)
    certainty, attacked = rng.normal(2, 1, 2000), rng.normal(0.5, 1, 2000)
    correct, right = np.ones(2000, dtype=bool), rng.random(2000) < 0.3

    def width(clean: CleanScores) -> float:
        draws = deployed_draws(clean, attacked, right, resamples=300, seed=0)["robust"]
        low, high = np.percentile(draws, (2.5, 97.5))
        return float(high - low)

    few = clean_of(certainty, correct, (rng.normal(2, 1, 60), np.ones(60, dtype=bool)))
    fixed, crossed = few._replace(own_threshold=deploy_threshold(certainty, correct)), clean_of(certainty, correct)
    assert width(fixed) < width(crossed) < 0.7 * width(few)


def test_no_resamples_give_no_draws() -> None:
    assert {name: values.size for name, values in deployed_draws(TEN, TEN.certainty, TEN.correct, 0, 0).items()} == (
        dict.fromkeys(Deployed._fields, 0)
    )


def test_the_joint_number_where_a_threshold_keeps_a_share_of_the_right_clean_inputs() -> None:
    """Four inputs are right when clean, at 0.2, 0.4, 0.6 and 0.8; the attack makes the first and the last wrong."""
    clean = clean_of(np.array([0.2, 0.4, 0.6, 0.8, 0.5]), flags("++++-"))
    attacked, correct = np.array([0.5, 0.4, 0.6, 0.1, 0.9]), flags("-++--")
    # All are kept. Attacked, the first is answered wrong, and the fourth is refused.
    assert joint_where_kept(clean, attacked, correct, np.array([1.0])).tolist() == [60]
    # From 0.4 on the first is refused when clean; from 0.6 on the second is, too.
    assert joint_where_kept(clean, attacked, correct, np.array([0.75, 0.5])).tolist() == [60, 40]


def test_at_the_deployed_share_it_is_the_deployed_number_of_one_threshold() -> None:
    rng = np.random.default_rng(3)
    certainty, correct = rng.random(500), rng.random(500) < 0.8
    attacked, still = rng.random(500), correct & (rng.random(500) < 0.7)
    threshold = deploy_threshold(certainty, correct)
    found = deployed(clean_of(certainty, correct, own=threshold), attacked, still)
    assert found is not None
    clean = clean_of(certainty, correct)
    assert joint_where_kept(clean, attacked, still, np.array([0.95])) == pytest.approx([found.joint])
    apart = clean_of(certainty, correct, (np.array([0.0, 0.5]), flags("-+")))
    at_half = deployed(clean_of(certainty, correct, own=0.5), attacked, still)
    assert at_half is not None
    assert joint_where_kept(apart, attacked, still, np.array([0.95])) == pytest.approx([at_half.joint])
