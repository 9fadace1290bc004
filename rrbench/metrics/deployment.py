"""Thresholds as a deployer fixes them, on clean inputs alone, and what they do to clean and attacked inputs.

Clean inputs that are kept apart from the measured ones fix one threshold for all of them. Where none are kept apart,
the measured inputs, clean, do it by cross-fitting: they fall into folds, and a fold's threshold comes from the others.
So no input is judged by a threshold that it helped to fix, and every input both fixes and is measured.

A threshold is itself an estimate. The draws of an interval take anew not only the inputs that are measured, but also
those that fix the threshold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.metrics import tallies
from rrbench.metrics.resampling import numbered_draws
from rrbench.metrics.tallies import Booleans, Floats, Integers

# Of how thresholds are fixed. Raised with every change: the keys of cells hold it. 1 took the last 1,000 test images of
# CIFAR for it and measured the others.
REVISION = 2
FOLDS = 5
KEPT_APART = 1  # names the stream of random numbers that draws the inputs kept apart


class Clean(NamedTuple):
    """What a rejector says of clean inputs: the measured ones before an attack, and those that are kept apart."""

    certainty: Floats  # (N,)
    correct: Booleans
    folds: Integers  # (N,): 0 to FOLDS - 1
    apart_certainty: Floats  # (M,): empty where thresholds come by cross-fitting
    apart_correct: Booleans
    own_threshold: float | None = None  # of a rejector that brings one, and is fitted on nothing


class Deployed(NamedTuple):
    """What thresholds do to some inputs, in percent; or the same of each draw."""

    acc: float | None  # right among the accepted
    coverage: float  # accepted
    robust: float  # rejected or right
    joint: float  # so, and clean both accepted and right


def fold_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each input's fold: it depends on nothing but the input, so an attack on any batch knows it."""
    return ids % FOLDS


def deploy_threshold(certainty: Floats, correct: Booleans) -> float | None:
    """Return the threshold that keeps 95 % of the right inputs, by the quantile rule; None where none is right."""
    if not correct.any():
        return None
    ordered = np.sort(certainty[correct])
    return float(ordered[len(ordered) * 5 // 100])


def fold_thresholds(clean: Clean) -> tuple[float | None, ...]:
    """Return the threshold of each fold."""
    if clean.own_threshold is not None:
        return (clean.own_threshold,) * FOLDS
    if clean.apart_certainty.size:
        return (deploy_threshold(clean.apart_certainty, clean.apart_correct),) * FOLDS
    others = [clean.folds != fold for fold in range(FOLDS)]
    return tuple(deploy_threshold(clean.certainty[other], clean.correct[other]) for other in others)


def whole_threshold(clean: Clean) -> float | None:
    """Return the threshold to deploy: it comes from all the inputs that there are for it."""
    if clean.own_threshold is not None:
        return clean.own_threshold
    if clean.apart_certainty.size:
        return deploy_threshold(clean.apart_certainty, clean.apart_correct)
    return deploy_threshold(clean.certainty, clean.correct)


def accepted_by(clean: Clean, certainty: Floats) -> Booleans | None:
    """Accept certainty >= threshold, each input by that of its fold; None where a fold has no threshold."""
    found = fold_thresholds(clean)
    if any(found[fold] is None for fold in np.unique(clean.folds)):
        return None
    # In double precision: numpy would round the threshold to single to compare it with single scores.
    limits = np.array([np.nan if each is None else each for each in found])[clean.folds]
    return np.asarray(certainty.astype(np.float64) >= limits)


def deployed(clean: Clean, certainty: Floats, correct: Booleans) -> Deployed | None:
    """Judge inputs before and after an attack; None where a fold has no threshold."""
    tallies.check(certainty, correct)
    tallies.check(clean.certainty, clean.correct)
    if clean.certainty.shape != certainty.shape or clean.folds.shape != certainty.shape:
        raise ValueError(f"{len(clean.certainty)} clean inputs for {len(certainty)} attacked ones")
    accepted, stays = accepted_by(clean, certainty), accepted_by(clean, clean.certainty)
    if accepted is None or stays is None:
        return None
    acc, *others = (
        float(each) for each in _shares(accepted, correct, stays & clean.correct, np.ones(certainty.size, np.int32))
    )
    return Deployed(None if np.isnan(acc) else acc, *others)


def _shares(accepted: Booleans, correct: Booleans, answered: Booleans, counts: Integers) -> NDArray[np.float64]:
    """Return the numbers of `Deployed`, each input counted so many times; `answered`: right and accepted when clean.

    The last axis is over inputs; draws may come before it.
    """
    robust = ~accepted | correct
    kept, total = (counts * accepted).sum(-1), counts.sum(-1)
    with np.errstate(invalid="ignore"):  # nothing is kept: NaN
        acc = (counts * (accepted & correct)).sum(-1) / kept
    shares = (kept, (counts * robust).sum(-1), (counts * (robust & answered)).sum(-1))
    return 100 * np.stack([acc, *(share / total for share in shares)])


def deployed_draws(
    clean: Clean, certainty: Floats, correct: Booleans, resamples: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Return the numbers of `Deployed` for each draw of `resampling.bootstrap`; NaN where a draw leaves one undefined.

    Each draw fixes its thresholds anew: by cross-fitting on the inputs that it draws, or on as many drawn from those
    kept apart. Equal seeds draw the same inputs, so differences of two rejectors are paired.
    """
    cuts = _Cuts(clean, certainty)
    apart = _apart_draws(clean, resamples, seed)

    def work(first: int, examples: Integers) -> NDArray[np.float64]:
        counts = _counts(examples, certainty.size)
        limits = cuts.limits(counts if apart is None else apart[first : first + len(examples)], clean.folds)
        accepted, stays = cuts.attacked > limits, cuts.clean > limits
        found = _shares(accepted, correct, stays & clean.correct, counts)
        found[:, ((limits == np.inf) & (counts > 0)).any(axis=1)] = np.nan
        return found

    drawn = np.concatenate([np.empty((4, 0)), *numbered_draws(work, certainty.size, resamples, seed)], axis=1)
    return dict(zip(Deployed._fields, drawn, strict=True))


def _counts(examples: Integers, size: int) -> NDArray[np.int32]:
    """Return how often each draw takes each input."""
    places = examples + size * np.arange(len(examples))[:, None]
    return np.bincount(places.ravel(), minlength=size * len(examples)).reshape(-1, size).astype(np.int32)


def _apart_draws(clean: Clean, resamples: int, seed: int) -> Integers | None:
    """Return how often each draw takes the inputs that are kept apart; None where they fix no threshold."""
    size = clean.apart_certainty.size
    if not size or clean.own_threshold is not None:
        return None
    rng = np.random.default_rng([seed, KEPT_APART])
    return _counts(rng.integers(size, size=(resamples, size)), size)


class _Cuts:
    """Certainties as places among the right inputs that fix thresholds: a draw then needs no sorting.

    An input is accepted where its place, the number of those inputs that are not more certain than it is, lies above
    the position of the threshold.
    """

    def __init__(self, clean: Clean, certainty: Floats) -> None:
        self.own = clean.own_threshold
        is_apart = bool(clean.apart_certainty.size)
        scores, right = (clean.apart_certainty, clean.apart_correct) if is_apart else (clean.certainty, clean.correct)
        if self.own is not None:
            scores, right = np.array([self.own]), np.array([True])
        chosen = np.flatnonzero(right)
        self.order = chosen[np.argsort(scores[chosen], kind="stable")]
        ordered = scores[self.order].astype(np.float64)
        self.attacked, self.clean = (
            np.searchsorted(ordered, each.astype(np.float64), side="right") for each in (certainty, clean.certainty)
        )
        self.folds = None if is_apart or self.own is not None else clean.folds[self.order]

    def limits(self, counts: Integers, folds: Integers) -> NDArray[np.float64]:
        """Return the position of each input's threshold in each draw, infinity where it has none."""
        if self.own is not None:
            return np.zeros((len(counts), folds.size))
        drawn = counts[:, self.order]
        if self.folds is None:
            return np.repeat(_positions(drawn)[:, None], folds.size, axis=1)
        return np.stack([_positions(drawn * (self.folds != fold)) for fold in range(FOLDS)], axis=1)[:, folds]


def _positions(counts: Integers) -> NDArray[np.float64]:
    """Return where the quantile rule's threshold lies among ordered scores that each draw took so many times."""
    below = counts.cumsum(axis=1, dtype=np.int32)
    total = below[:, -1] if below.shape[1] else np.zeros(len(counts), np.int32)
    at = (below <= total[:, None] * 5 // 100).sum(axis=1)
    return np.where(total > 0, at, np.inf)
