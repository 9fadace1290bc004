"""Thresholds as a deployer fixes them, on clean inputs only, and their effect on clean and attacked inputs.

If clean inputs are kept apart from the measured ones, they fix one threshold for all measured inputs. If not, the
measured inputs fix it while clean, by cross-fitting: they are split into folds, and the other folds fix the threshold
of a fold. So no input is judged by a threshold that it helped to fix, and every input is used for both.

A threshold is itself an estimate. So the draws of an interval resample the inputs that fix the threshold, too.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.metrics import tallies
from rrbench.metrics.resampling import numbered_draws
from rrbench.metrics.tallies import Booleans, Floats, Integers

# Revision of how thresholds are fixed. Raise it with every change: the keys of cells hold it. Revision 1 used the last
# 1,000 test images of CIFAR for thresholds and measured the others.
REVISION = 2
FOLDS = 5
KEPT_APART = 1  # names the random stream that draws the inputs kept apart


class CleanScores(NamedTuple):
    """A rejector's scores on clean inputs: the measured inputs before the attack, and the inputs kept apart."""

    certainty: Floats  # (N,)
    correct: Booleans
    folds: Integers  # (N,): 0 to FOLDS - 1
    apart_certainty: Floats  # (M,): empty if thresholds come from cross-fitting
    apart_correct: Booleans
    own_threshold: float | None = None  # of a rejector that brings one; nothing is fitted then


class Deployed(NamedTuple):
    """What thresholds do to some inputs, in percent; or arrays of these, one value for each draw."""

    acc: float | None  # right among the accepted
    coverage: float  # accepted
    robust: float  # 100 minus accepted and wrong
    joint: float  # robust, and also accepted and right when clean


def fold_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each input's fold; it depends only on the input's id, so an attack knows it in any batch."""
    return ids % FOLDS


def deploy_threshold(certainty: Floats, correct: Booleans) -> float | None:
    """Return the threshold that keeps 95 % of the right inputs, by the quantile rule; None if no input is right."""
    if not correct.any():
        return None
    ordered = np.sort(certainty[correct])
    return float(ordered[tallies.rejected_of(len(ordered))])


def joint_where_kept(
    clean: CleanScores, certainty: Floats, correct: Booleans, kept: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the joint number, in percent, at the thresholds that keep these shares of the right clean inputs.

    One threshold serves all inputs; a rejector's own threshold is left aside.
    """
    is_apart = bool(clean.apart_certainty.size)
    fixing = clean.apart_certainty[clean.apart_correct] if is_apart else clean.certainty[clean.correct]
    ordered = np.sort(fixing).astype(np.float64)
    # Rounded: 0.05 times 100 inputs is a little more than 5 in binary, and 1 - 0.9 a little less than 0.1.
    places = np.floor(np.round((1 - kept) * len(ordered), 6)).astype(np.int64)
    limits = ordered[np.minimum(places, len(ordered) - 1)][:, None]
    answered = clean.correct & (clean.certainty.astype(np.float64) >= limits)
    harmed = ~correct & (certainty.astype(np.float64) >= limits)
    return np.asarray(100 * (answered & ~harmed).mean(1))


def fold_thresholds(clean: CleanScores) -> tuple[float | None, ...]:
    """Return the threshold of each fold."""
    if clean.own_threshold is not None:
        return (clean.own_threshold,) * FOLDS
    if clean.apart_certainty.size:
        return (deploy_threshold(clean.apart_certainty, clean.apart_correct),) * FOLDS
    others = [clean.folds != fold for fold in range(FOLDS)]
    return tuple(deploy_threshold(clean.certainty[other], clean.correct[other]) for other in others)


def whole_threshold(clean: CleanScores) -> float | None:
    """Return the threshold to deploy, from all inputs that may fix it."""
    if clean.own_threshold is not None:
        return clean.own_threshold
    if clean.apart_certainty.size:
        return deploy_threshold(clean.apart_certainty, clean.apart_correct)
    return deploy_threshold(clean.certainty, clean.correct)


def accepted_by(clean: CleanScores, certainty: Floats) -> Booleans | None:
    """Accept certainty >= threshold, each input by its fold's threshold; None if a fold has no threshold."""
    found = fold_thresholds(clean)
    if any(found[fold] is None for fold in np.unique(clean.folds)):
        return None
    # In double precision: numpy would round the threshold to single precision if the scores are single.
    limits = np.array([np.nan if each is None else each for each in found])[clean.folds]
    return np.asarray(certainty.astype(np.float64) >= limits)


def deployed(clean: CleanScores, certainty: Floats, correct: Booleans) -> Deployed | None:
    """Judge inputs before and after an attack; None if a fold has no threshold."""
    tallies.check(certainty, correct)
    tallies.check(clean.certainty, clean.correct)
    if clean.certainty.shape != certainty.shape or clean.folds.shape != certainty.shape:
        raise ValueError(f"{len(clean.certainty)} clean inputs for {len(certainty)} attacked ones")
    accepted, stays = accepted_by(clean, certainty), accepted_by(clean, clean.certainty)
    if accepted is None or stays is None:
        return None
    fates = _fates(accepted, correct, stays & clean.correct)
    acc, *others = (float(each) for each in _shares(fates.sum(axis=-1), certainty.size))
    return Deployed(None if np.isnan(acc) else acc, *others)


def _fates(accepted: Booleans, correct: Booleans, answered: Booleans) -> Booleans:
    """Mark each input that is right and accepted, accepted, robust, joint; `answered`: right and accepted when clean.

    The axis of these four comes first.
    """
    robust = ~accepted | correct
    return np.stack([accepted & correct, accepted, robust, robust & answered])


def _shares(sums: Floats | Integers, total: int) -> NDArray[np.float64]:
    """Return the numbers of `Deployed` from how many of `total` inputs have each fate."""
    right, kept, robust, joint = sums
    with np.errstate(invalid="ignore"):  # NaN if nothing is kept
        acc = right / kept
    return 100 * np.stack([acc, *(part / total for part in (kept, robust, joint))])


def deployed_draws(
    clean: CleanScores, certainty: Floats, correct: Booleans, resamples: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Return the numbers of `Deployed` for each draw of `resampling.bootstrap`; NaN if undefined in a draw.

    Each draw fixes its thresholds anew: by cross-fitting on the drawn inputs, or on a draw from the inputs kept apart.
    Equal seeds draw the same inputs, so differences between two rejectors are paired.
    """
    cuts = _Cuts(clean, certainty)
    apart = _apart_draws(clean, resamples, seed)
    members = (clean.folds[:, None] == np.arange(FOLDS)).astype(np.float64)

    def fates(limits: Floats, chosen: NDArray[np.intp] | slice) -> Booleans:
        accepted, stays = cuts.attacked[chosen] > limits, cuts.clean[chosen] > limits
        return _fates(accepted, correct[chosen], stays & clean.correct[chosen])

    def work(first: int, examples: Integers) -> NDArray[np.float64]:
        counts = _counts(examples, certainty.size)
        limits = cuts.limits(counts if apart is None else apart[first : first + len(examples)])
        # The thresholds of all draws are near each other. So most inputs have one fate in all draws, and one product
        # counts them; only the others are judged draw by draw.
        lowest, highest = limits.min(axis=0)[clean.folds], limits.max(axis=0)[clean.folds]
        is_open = np.zeros(certainty.size, np.bool_)
        for places in (cuts.attacked, cuts.clean):
            is_open |= (places > lowest) & (places <= highest)
        settled, unsettled = fates(highest, slice(None)) & ~is_open, np.flatnonzero(is_open)
        sums = settled.astype(np.float64) @ counts.T
        sums += (fates(limits[:, clean.folds[unsettled]], unsettled) * counts[:, unsettled]).sum(axis=-1)
        found = _shares(sums, certainty.size)
        found[:, ((limits == np.inf) & (counts @ members > 0)).any(axis=1)] = np.nan
        return found

    drawn = np.concatenate([np.empty((4, 0)), *numbered_draws(work, certainty.size, resamples, seed)], axis=1)
    return dict(zip(Deployed._fields, drawn, strict=True))


def _counts(examples: Integers, size: int) -> NDArray[np.float64]:
    """Return how often each draw contains each input; as floats, whose products are fast and here exact."""
    places = examples + size * np.arange(len(examples))[:, None]
    return np.bincount(places.ravel(), minlength=size * len(examples)).reshape(-1, size).astype(np.float64)


def _apart_draws(clean: CleanScores, resamples: int, seed: int) -> NDArray[np.float64] | None:
    """Return how often each draw contains each input kept apart; None if they fix no threshold."""
    size = clean.apart_certainty.size
    if not size or clean.own_threshold is not None:
        return None
    rng = np.random.default_rng([seed, KEPT_APART])
    return _counts(rng.integers(size, size=(resamples, size)), size)


class _Cuts:
    """Certainties as places in the sorted list of right inputs that fix thresholds, so a draw needs no sorting.

    An input's place is the number of listed inputs that are at most as certain. The input is accepted if its place is
    above the position of the threshold.
    """

    def __init__(self, clean: CleanScores, certainty: Floats) -> None:
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
        self.is_right = right.astype(np.float64)
        self.folds = None if is_apart or self.own is not None else clean.folds

    def limits(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the position of each fold's threshold in each draw; infinity if it has none."""
        if self.own is not None:
            return np.zeros((len(counts), FOLDS))
        if self.folds is None:
            return np.repeat(self._positions(counts, self.is_right)[:, None], FOLDS, axis=1)
        others = [self.is_right * (self.folds != fold) for fold in range(FOLDS)]
        return np.stack([self._positions(counts, fixing) for fixing in others], axis=1)

    def _positions(self, counts: NDArray[np.float64], fixing: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the threshold's position in the list, by the quantile rule; `fixing`: 1 for each input that fixes it.

        `counts` says how often each draw contains each input.
        """
        total = counts @ fixing
        rejected = tallies.rejected_of(total)
        # The threshold is at a twentieth of the list: look beyond its first eighth only if need be.
        for listed in (self.order[: self.order.size // 8], self.order):
            below = (counts[:, listed] * fixing[listed]).cumsum(axis=1)
            if listed.size and (below[:, -1] > rejected).all():
                break
        return np.where(total > 0, (below <= rejected[:, None]).sum(axis=1), np.inf)
