"""Counts of right and wrong inputs for each certainty, and the metrics that these counts decide.

A tally has shape (..., 2, distinct scores): how many right and how many wrong inputs have each score, the highest
score first. One tally describes a set of inputs; a stack of tallies describes its resamples. NaN means undefined.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rrbench.metrics.columns import TprRule

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]
Booleans = NDArray[np.bool_]
Counts = TypeVar("Counts", int, Integers, NDArray[np.float64])

KEPT_PERCENT = 95  # of the right inputs: by TPR-95 and by the deployed threshold. A change needs new revisions.


def rejected_of(right: Counts) -> Counts:
    """Return how many of so many right inputs the quantile rule rejects. In whole numbers: no float is exactly 0.05."""
    return right * (100 - KEPT_PERCENT) // 100


def check(certainty: Floats, correct: Booleans) -> None:
    """Refuse arrays that cannot be measured."""
    if certainty.ndim != 1 or certainty.shape != correct.shape:
        raise ValueError(f"certainty of shape {certainty.shape} for correctness of shape {correct.shape}")
    if certainty.size == 0:
        raise ValueError("no inputs to measure")
    if correct.dtype != np.bool_:
        raise ValueError(f"correctness must be bool, not {correct.dtype}")
    if np.isnan(certainty).any():
        raise ValueError("NaN among the certainties")


def ranks_of(certainty: Floats, correct: Booleans) -> NDArray[np.intp]:
    """Return, for each input, how many distinct scores are higher than its own."""
    check(certainty, correct)
    return np.unique(-certainty, return_inverse=True)[1]


def tally_of(ranks: NDArray[np.intp], correct: Booleans) -> Integers:
    """Return the tally of inputs with these ranks."""
    scores = int(ranks.max()) + 1
    return np.bincount(ranks + scores * ~correct, minlength=2 * scores).reshape(2, scores)


def accepted_counts(tally: Integers) -> tuple[Integers, Integers]:
    """Count the wrong inputs and all inputs accepted at each score."""
    return tally[..., 1, :].cumsum(axis=-1), tally.sum(axis=-2).cumsum(axis=-1)


def accepted_scores(tally: Integers, rule: TprRule) -> Integers:
    """Return how many of the distinct scores are accepted; 0 if no input is right."""
    if rule == "official":
        single = tally.reshape(-1, *tally.shape[-2:])
        return np.array([_accepted_officially(each) for each in single]).reshape(tally.shape[:-2])
    right = tally[..., 0, :].cumsum(axis=-1)
    total = right[..., -1:]
    needed = total - rejected_of(total)
    return np.where(total[..., 0] > 0, (right < needed).sum(axis=-1) + 1, 0)


def _accepted_officially(tally: Integers) -> int:
    present = np.flatnonzero(tally.any(axis=0))
    roc = tally[:, present].cumsum(axis=1)
    if roc[0, -1] == 0:
        return 0
    is_vertex = np.ones(present.size, dtype=np.bool_)
    # Only two equal steps in a row count as a straight line: scikit-learn drops just these points.
    is_vertex[1:-1] = np.diff(roc, n=2, axis=1).any(axis=0)
    # The curve starts at rate 0 and threshold infinity. That point is never nearest: the last one has rate 1.
    vertices = np.flatnonzero(is_vertex)
    nearest = np.abs(roc[0, vertices] / roc[0, -1] - KEPT_PERCENT / 100).argmin()
    return int(present[vertices[nearest]])


def acc_all(tally: Integers) -> NDArray[np.float64]:
    """Return the percentage of right inputs."""
    return _ratio(100 * tally[..., 0, :].sum(axis=-1), tally.sum(axis=(-2, -1)))


def acc_tpr95(tally: Integers, rule: TprRule) -> NDArray[np.float64]:
    """Return the percentage of right inputs among the accepted ones."""
    accepted = accepted_scores(tally, rule)
    # Draw by draw: with many inputs, a running sum over every score of every draw takes longer.
    single = zip(tally.reshape(-1, *tally.shape[-2:]), accepted.flat, strict=True)
    counts = np.array([each[:, :count].sum(axis=1) for each, count in single]).reshape(tally.shape[:-1])
    return _ratio(100 * counts[..., 0], counts.sum(axis=-1))


def auc(tally: Integers) -> NDArray[np.float64]:
    """Return `measures.auc` for each tally."""
    right, wrong = tally[..., 0, :], tally[..., 1, :]
    twice_right_above = 2 * right.cumsum(axis=-1) - right
    return _ratio(np.einsum("...i,...i->...", wrong, twice_right_above) / 2, right.sum(axis=-1) * wrong.sum(axis=-1))


def aurc(tally: Integers) -> NDArray[np.float64]:
    """Return `measures.aurc` for each tally."""
    inputs = tally.sum(axis=-2)
    selective_risk = np.nan_to_num(_ratio(*accepted_counts(tally)))
    return np.asarray((inputs * selective_risk).sum(axis=-1) / inputs.sum(axis=-1))


def augrc(tally: Integers) -> NDArray[np.float64]:
    """Return `measures.augrc` for each tally."""
    inputs, wrong = tally.sum(axis=-2), tally[..., 1, :]
    mean_wrong_accepted = wrong.cumsum(axis=-1) - wrong / 2
    return np.asarray((inputs * mean_wrong_accepted).sum(axis=-1) / inputs.sum(axis=-1) ** 2)


def _ratio(part: Floats | Integers, whole: Integers) -> NDArray[np.float64]:
    ratio = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio
