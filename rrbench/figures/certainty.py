"""Confidence, T-Con, R-Con and the xi-error at any temperature, from stored logits and head only."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.metrics.theory import passes_coupled_filter, xi_error

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class CoupledScores(NamedTuple):
    """The values of the two coupled rejectors for each input at one temperature."""

    confidence: Floats
    rectified: Floats  # R-Con
    xi: Floats
    passes: Booleans  # confidence > 1 / (2 - xi)
    correct: Booleans


def log_odds(logits: NDArray[Any], classes: NDArray[Any], tau: float) -> Floats:
    """Return log p / (1 - p) of one class for each input; p is its softmax probability at temperature tau.

    It orders inputs as p does, even if p itself would be rounded to 0 or 1.
    """
    rows = np.arange(len(logits))
    margins = logits.astype(np.float64)
    margins = (margins - margins[rows, classes][:, None]) / tau
    margins[rows, classes] = -np.inf
    largest = margins.max(axis=1)
    return np.asarray(-largest - np.log(np.exp(margins - largest[:, None]).sum(axis=1)))


def probability(odds: Floats) -> Floats:
    """Return p from log p / (1 - p)."""
    return np.asarray(np.exp(-np.logaddexp(0, -odds)))


def couple(labels: NDArray[Any], logits: NDArray[Any], head: NDArray[Any], tau: float) -> CoupledScores:
    """Compute all values; the rectifier A is the head's sigmoid at any temperature."""
    predicted = logits.argmax(axis=1)
    confidence = probability(log_odds(logits, predicted, tau))
    true_confidence = probability(log_odds(logits, labels, tau))
    rectifier = probability(head[:, 0].astype(np.float64))
    xi = xi_error(rectifier, true_confidence / confidence)
    return CoupledScores(
        confidence, confidence * rectifier, xi, passes_coupled_filter(confidence, xi), np.asarray(predicted == labels)
    )
