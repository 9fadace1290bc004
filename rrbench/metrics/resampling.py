"""Metrics of resampled inputs: for 95 % intervals, and for paired differences."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.metrics import tallies
from rrbench.metrics.columns import TprRule
from rrbench.metrics.tallies import Booleans, Floats, Integers

Drawn = NDArray[np.float64]  # one value for each draw, in order
Work = Callable[[Integers], Drawn]

RESAMPLED: dict[str, Callable[[Integers, TprRule], Drawn]] = {  # functions of a stack of tallies
    "acc_all": lambda stack, rule: tallies.acc_all(stack),
    "acc_tpr95": tallies.acc_tpr95,
    "auc": lambda stack, rule: tallies.auc(stack),
    "aurc": lambda stack, rule: tallies.aurc(stack),
    "augrc": lambda stack, rule: tallies.augrc(stack),
}
# Examples that all threads hold while resampling: about 70 MB, or one draw if that is more.
_DRAWN_AT_ONCE = 2**20
_THREADS = min(4, os.cpu_count() or 1)


class Intervals(NamedTuple):
    """The (low, high) of each resampled metric."""

    acc_tpr95: tuple[float, float] | None
    auc: tuple[float, float] | None


def bootstrap(certainty: Floats, correct: Booleans, rule: TprRule, resamples: int, seed: int) -> Intervals:
    """Return 95 % percentile intervals of acc_tpr95 and auc over examples.

    Draw i takes the examples in row i of `default_rng(seed).integers(n, size=(resamples, n))` and finds its own
    threshold. A draw in which a metric is undefined is left out; the interval is None if over half are left out.
    """

    def both(stack: Integers) -> Drawn:
        return np.stack([tallies.acc_tpr95(stack, rule), tallies.auc(stack)])

    accuracies, aucs = np.concatenate([np.empty((2, 0)), *_resample(both, certainty, correct, resamples, seed)], axis=1)
    return Intervals(interval(accuracies), interval(aucs))


def resampled(metric: str, certainty: Floats, correct: Booleans, rule: TprRule, resamples: int, seed: int) -> Drawn:
    """Return one metric of `RESAMPLED` for each draw of `bootstrap`; NaN if it is undefined.

    Equal seeds and equal numbers of inputs draw the same examples: differences between two such results are paired.
    """
    draws = _resample(lambda stack: RESAMPLED[metric](stack, rule), certainty, correct, resamples, seed)
    return np.concatenate([np.empty(0), *draws])


def risk_coverage_band(
    certainty: Floats, correct: Booleans, coverage: Floats, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (low, high) of the selective risk at given coverages: 95 % percentile intervals over examples.

    The draws are those of `bootstrap`; each draw has its own operating points.
    """
    needed = np.ceil(coverage * certainty.size - 1e-9)  # without the slack, 0.07 * 100 would need 8 inputs

    def risks(stack: Integers) -> Drawn:
        wrong, accepted = tallies.accepted_counts(stack)
        first = np.array([np.searchsorted(each, needed) for each in accepted])
        at_least_one = np.maximum(np.take_along_axis(accepted, first, axis=1), 1)
        return np.take_along_axis(wrong, first, axis=1) / at_least_one

    drawn = np.concatenate([np.empty((0, coverage.size)), *_resample(risks, certainty, correct, resamples, seed)])
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    return low, high


def resampled_share(part: NDArray[np.float64], whole: NDArray[np.float64], resamples: int, seed: int) -> Drawn:
    """Return sum(part) / sum(whole) for each draw of `bootstrap`; NaN if the drawn whole is 0."""

    def shares(examples: Integers) -> Drawn:
        wholes = whole[examples].sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.where(wholes > 0, part[examples].sum(axis=1) / wholes, np.nan)

    return np.concatenate([np.empty(0), *_draw(shares, part.size, resamples, seed)])


def _resample(work: Work, certainty: Floats, correct: Booleans, resamples: int, seed: int) -> Iterator[Drawn]:
    """Yield the result of `work` on the tallies of all resamples."""
    ranks = tallies.ranks_of(certainty, correct)
    scores = int(ranks.max()) + 1
    entries = ranks + scores * ~correct

    def tallied(examples: Integers) -> Drawn:
        draws = len(examples)
        drawn = entries[examples]
        drawn += 2 * scores * np.arange(draws)[:, None]
        return work(np.bincount(drawn.ravel(), minlength=2 * scores * draws).reshape(draws, 2, scores))

    return _draw(tallied, ranks.size, resamples, seed)


def _draw(work: Work, size: int, resamples: int, seed: int) -> Iterator[Drawn]:
    """Yield the result of `work` on the examples of all draws."""
    return numbered_draws(lambda first, examples: work(examples), size, resamples, seed)


def numbered_draws(work: Callable[[int, Integers], Drawn], size: int, resamples: int, seed: int) -> Iterator[Drawn]:
    """Yield the result of `work` on the examples of all draws, in order; memory is bounded.

    `work` also gets the number of its first draw, and may run in several threads at once.
    """
    rng = np.random.default_rng(seed)
    threads = max(1, min(_THREADS, _DRAWN_AT_ONCE // size))
    at_once = max(1, _DRAWN_AT_ONCE // threads // size)
    starts = range(0, resamples, at_once)
    if len(starts) == 1:  # few inputs: a second thread would take longer to start than the work takes
        yield work(0, rng.integers(size, size=(resamples, size)))
        return
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(starts), threads):
            group = starts[first : first + threads]
            # Drawn in this thread, in order: all draws come from one stream.
            drawn = (rng.integers(size, size=(min(at_once, resamples - start), size)) for start in group)
            yield from pool.map(work, group, drawn)


def interval(values: Drawn) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of the defined values; None if over half of the draws are undefined."""
    defined = values[~np.isnan(values)]
    if defined.size == 0 or 2 * defined.size < values.size:
        return None
    low, high = np.percentile(defined, (2.5, 97.5))
    return float(low), float(high)
