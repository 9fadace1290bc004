"""Resampling: each draw is measured exactly, intervals equal those of a plain loop, and few draws give none."""

import threading
import time
import tracemalloc

import numpy as np
import pytest

from rrbench.metrics import measures as metrics
from rrbench.metrics import resampling
from rrbench.metrics.columns import TprRule
from scored_inputs import PLAIN, RULES, TIED, Scored, accepted_by_scikit_learn, accuracy, overlapping


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("inputs", [TIED, overlapping(150, seed=1)])
def test_bootstrap_measures_each_draw_exactly(inputs: Scored, rule: TprRule) -> None:
    certainty, correct = inputs
    draws = np.random.default_rng(7).integers(certainty.size, size=(60, certainty.size))
    accuracies = [accuracy(certainty[draw], correct[draw], rule) for draw in draws]
    aucs = [metrics.auc(certainty[draw], correct[draw]) for draw in draws]
    intervals = resampling.bootstrap(certainty, correct, rule, resamples=60, seed=7)
    for interval, values in [(intervals.acc_tpr95, accuracies), (intervals.auc, aucs)]:
        expected = np.percentile([value for value in values if value is not None], [2.5, 97.5])
        assert interval == pytest.approx(expected)


@pytest.mark.parametrize("rule", RULES)
def test_bootstrap_agrees_with_an_independent_resampling_loop(rule: TprRule) -> None:
    certainty, correct = overlapping(300, seed=2)
    rng = np.random.default_rng(3)
    accuracies, aucs = [], []
    for _ in range(1000):
        draw = rng.choice(certainty.size, certainty.size)
        right, wrong = np.sort(certainty[draw][correct[draw]]), certainty[draw][~correct[draw]]
        if rule == "quantile":
            accepted = certainty[draw] >= right[right.size // 20]
        else:
            accepted = accepted_by_scikit_learn(certainty[draw], correct[draw])
        accuracies.append(100 * correct[draw][accepted].mean())
        aucs.append((right[:, None] > wrong).mean())  # the scores are continuous: no tie between right and wrong
    intervals = resampling.bootstrap(certainty, correct, rule, resamples=2000, seed=4)
    for interval, values in [(intervals.acc_tpr95, accuracies), (intervals.auc, aucs)]:
        assert interval == pytest.approx(np.percentile(values, [2.5, 97.5]), abs=0.25 * np.std(values))


def test_bootstrap_does_not_depend_on_how_many_draws_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = overlapping(101, seed=5)
    at_once = resampling.bootstrap(*inputs, "quantile", resamples=50, seed=0)
    monkeypatch.setattr(resampling, "_DRAWN_AT_ONCE", 707)
    assert resampling.bootstrap(*inputs, "quantile", resamples=50, seed=0) == at_once


@pytest.mark.parametrize("threads", [1, 3])
def test_draws_keep_their_order_however_they_are_shared_out(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    certainty, correct = overlapping(101, seed=5)
    rows = np.random.default_rng(7).integers(101, size=(50, 101))
    monkeypatch.setattr(resampling, "_DRAWN_AT_ONCE", 2121)
    monkeypatch.setattr(resampling, "_THREADS", threads)
    drawing = set[int]()

    class Watched:
        def __init__(self, rng: np.random.Generator) -> None:
            self.rng = rng

        def integers(self, *asked: object, **more: object) -> object:
            drawing.add(threading.get_ident())
            return self.rng.integers(*asked, **more)  # type: ignore[call-overload]

    with monkeypatch.context() as context:
        make = np.random.default_rng
        context.setattr(np.random, "default_rng", lambda seed: Watched(make(seed)))
        found = resampling.resampled("auc", certainty, correct, "quantile", resamples=50, seed=7)
    assert found.tolist() == [metrics.auc(certainty[row], correct[row]) for row in rows]
    assert drawing == {threading.get_ident()}, "drawn by several threads the stream would depend on who comes first"


def test_bootstrap_follows_its_seed() -> None:
    inputs = overlapping(200, seed=6)
    first, again, other = (resampling.bootstrap(*inputs, "quantile", resamples=50, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_an_interval_needs_half_of_the_draws_to_be_defined() -> None:
    # One right and one wrong input: auc is defined exactly in the draws that hold both.
    certainty, correct = np.array([1.0, 0.0]), np.array([True, False])
    seen = set()
    for seed in range(20):
        draws = np.random.default_rng(seed).integers(2, size=(10, 2))
        is_enough = bool((draws[:, 0] != draws[:, 1]).mean() >= 0.5)
        interval = resampling.bootstrap(certainty, correct, "quantile", resamples=10, seed=seed).auc
        assert interval == ((1.0, 1.0) if is_enough else None)
        seen.add(is_enough)
    assert seen == {True, False}


def test_no_resamples_give_no_intervals() -> None:
    assert resampling.bootstrap(*PLAIN, "quantile", resamples=0, seed=0) == (None, None)


def test_bootstrap_of_ten_thousand_inputs_is_fast_and_small() -> None:
    inputs = overlapping(10_000, seed=8)
    start = time.process_time()
    resampling.bootstrap(*inputs, "quantile", resamples=1000, seed=0)
    assert time.process_time() - start < 2
    tracemalloc.start()
    resampling.bootstrap(*inputs, "quantile", resamples=1000, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6


def test_a_random_score_has_auc_one_half_within_its_interval() -> None:
    rng = np.random.default_rng(0)
    interval = resampling.bootstrap(rng.random(3000), rng.random(3000) < 0.6, "quantile", resamples=500, seed=0).auc
    assert interval is not None
    low, high = interval
    assert low < 0.5 < high
    assert high - low < 0.06
