"""Scored right and wrong inputs, and values that follow from the order of scores, for the tests of metrics."""

import warnings
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from rrbench.metrics import measures as metrics
from rrbench.metrics.columns import TprRule
from rrbench.metrics.deployment import CleanScores, fold_of

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Scored = tuple[Floats, Booleans]

RULES: tuple[TprRule, ...] = get_args(TprRule)

# Worked by hand. Right scores 5, 4, 2 and wrong scores 3, 1, then the same with ties.
PLAIN: Scored = (np.array([5.0, 4.0, 3.0, 2.0, 1.0]), np.array([True, True, False, True, False]))
TIED: Scored = (np.array([3.0, 3.0, 2.0, 2.0, 2.0, 1.0]), np.array([True, False, True, True, False, False]))


def overlapping(inputs: int, seed: int) -> Scored:
    """Draw continuous scores that tell right from wrong somewhat."""
    rng = np.random.default_rng(seed)
    correct = rng.random(inputs) < 0.6
    return rng.normal(size=inputs) + correct, correct


def logits_for(correct: Booleans, gap: float = 2.0) -> tuple[NDArray[np.int64], Floats]:
    """Make labels and two-class logits that are right where asked."""
    labels = np.arange(correct.size) % 2
    predicted = np.where(correct, labels, 1 - labels)
    return labels, gap * np.eye(2)[predicted]


def at_threshold(certainty: Floats, correct: Booleans, threshold: float | None) -> CleanScores:
    """Deploy a threshold as it is; without one, the clean inputs fix each other's."""
    return CleanScores(certainty, correct, fold_of(np.arange(correct.size)), certainty[:0], correct[:0], threshold)


def accepted_by_scikit_learn(certainty: Floats, correct: Booleans) -> Booleans:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, rate, thresholds = roc_curve(correct, certainty)
    return np.asarray(certainty > thresholds[np.abs(rate - 0.95).argmin()])


def accuracy(certainty: Floats, correct: Booleans, rule: TprRule) -> float | None:
    accepted = metrics.accept_at_tpr95(certainty, correct, rule)
    return None if accepted is None else 100 * float(correct[accepted].mean())


def ordering_metrics(certainty: Floats, correct: Booleans) -> list[float | None]:
    """Compute all that the order of the scores decides."""
    shares = [metrics.accept_at_tpr95(certainty, correct, rule) for rule in RULES]
    return [
        *(accuracy(certainty, correct, rule) for rule in RULES),
        *(None if share is None else float(share.mean()) for share in shares),
        metrics.auc(certainty, correct),
        metrics.aurc(certainty, correct),
        metrics.augrc(certainty, correct),
        metrics.fpr95(certainty, correct),
    ]
