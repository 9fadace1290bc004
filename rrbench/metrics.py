"""What a row measures, from each input's certainty and whether its class was right.

Every metric but `ece` depends on the order of the certainties alone, and treats equal ones as one operating
point. A metric that its inputs leave undefined is None; NaN among the inputs is an error.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

TprRule = Literal["quantile", "official"]
Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]
Booleans = NDArray[np.bool_]

# Examples held while resampling, by all threads: bounds the memory at about 70 MB where that is more than one draw.
_DRAWN_AT_ONCE = 2**20
_THREADS = min(4, os.cpu_count() or 1)


class Metrics(NamedTuple):
    """The measured columns of a row, in the order of the CSV file."""

    acc_all: float | None
    acc_tpr95: float | None
    auc: float | None
    coverage_tpr95: float | None
    acc_tpr95_low: float | None
    acc_tpr95_high: float | None
    auc_low: float | None
    auc_high: float | None
    deploy_threshold: float | None
    deploy_n: int | None
    deploy_acc: float | None
    deploy_coverage: float | None
    deploy_robust: float | None
    aurc: float | None
    augrc: float | None
    fpr95: float | None
    ece: float | None


class Intervals(NamedTuple):
    """The (low, high) of each resampled metric."""

    acc_tpr95: tuple[float, float] | None
    auc: tuple[float, float] | None


class Deployed(NamedTuple):
    """What a fixed threshold does to some inputs, in percent."""

    acc: float | None  # right among the accepted
    coverage: float  # accepted
    robust: float  # rejected or right


class Reliability(NamedTuple):
    """Inputs in bins of equal width by their largest softmax probability, upper edges included."""

    inputs: Integers
    right: Integers
    gap: NDArray[np.float64]  # the sum of their probabilities, less that


def measure(
    labels: Integers,
    logits: Floats,
    certainty: Floats,
    *,
    rule: TprRule,
    threshold: float | None,
    deploy_mask: Booleans,
    resamples: int,
    seed: int,
) -> Metrics:
    """Measure everything about one set of inputs; `deploy_mask` marks those that count for `deploy_*`."""
    correct = is_correct(labels, logits)
    accepted = accept_at_tpr95(certainty, correct, rule)
    intervals = bootstrap(certainty, correct, rule, resamples, seed)
    acc_low, acc_high = intervals.acc_tpr95 or (None, None)
    auc_low, auc_high = intervals.auc or (None, None)
    if deploy_mask.shape != correct.shape or deploy_mask.dtype != np.bool_:
        raise ValueError(f"deploy_mask must be one bool per input, not {deploy_mask.dtype} of {deploy_mask.shape}")
    deploy = None
    if threshold is not None and deploy_mask.any():
        deploy = deployed(certainty[deploy_mask], correct[deploy_mask], threshold)
    return Metrics(
        acc_all=_percent(correct),
        acc_tpr95=None if accepted is None else _percent(correct[accepted]),
        auc=auc(certainty, correct),
        coverage_tpr95=None if accepted is None else _percent(accepted),
        acc_tpr95_low=acc_low,
        acc_tpr95_high=acc_high,
        auc_low=auc_low,
        auc_high=auc_high,
        deploy_threshold=threshold,
        deploy_n=None if threshold is None else int(deploy_mask.sum()),
        deploy_acc=None if deploy is None else deploy.acc,
        deploy_coverage=None if deploy is None else deploy.coverage,
        deploy_robust=None if deploy is None else deploy.robust,
        aurc=aurc(certainty, correct),
        augrc=augrc(certainty, correct),
        fpr95=fpr95(certainty, correct),
        ece=ece(labels, logits),
    )


def is_correct(labels: Integers, logits: Floats) -> Booleans:
    """Say which inputs have their largest logit, the first of equals, at their label."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or logits.size == 0:
        raise ValueError(f"no inputs, or labels of shape {labels.shape} for logits of shape {logits.shape}")
    if np.isnan(logits).any():
        raise ValueError("NaN among the logits")
    return np.asarray(logits.argmax(axis=1) == labels)


def accept_at_tpr95(certainty: Floats, correct: Booleans, rule: TprRule) -> Booleans | None:
    """Say which inputs are accepted when 95 % of the right ones must be; None where that accepts nothing.

    quantile: with n right inputs, T is their certainty at position floor(n / 20), counted upwards from 0;
    accepts certainty >= T, so that at most 5 % of the right ones are rejected.
    official: T is the threshold at the vertex of the ROC curve whose true positive rate is nearest to 0.95, the
    highest of equals, on the curve without the points that scikit-learn's `roc_curve` drops by default;
    accepts certainty > T.
    """
    ranks = _ranks(certainty, correct)
    accepted = ranks < _accepted_scores(_tally(ranks, correct), rule)
    return accepted if accepted.any() else None


def deploy_threshold(certainty: Floats, correct: Booleans) -> float | None:
    """Return the quantile rule's T; the inputs are clean and held out, as a deployer's are."""
    accepted = accept_at_tpr95(certainty, correct, "quantile")
    return None if accepted is None else float(certainty[accepted].min())


def deployed(certainty: Floats, correct: Booleans, threshold: float) -> Deployed:
    """Accept certainty >= threshold; accuracy is None where nothing is accepted."""
    _check(certainty, correct)
    if np.isnan(threshold):
        raise ValueError("the threshold is NaN")
    # In double precision: numpy would round the threshold to single to compare it with single scores.
    accepted = certainty.astype(np.float64) >= threshold
    return Deployed(
        acc=_percent(correct[accepted]) if accepted.any() else None,
        coverage=_percent(accepted),
        robust=_percent(~accepted | correct),
    )


def auc(certainty: Floats, correct: Booleans) -> float | None:
    """Return the chance that a right input has a higher certainty than a wrong one, a tie counting half."""
    return _or_none(_auc(_tally(_ranks(certainty, correct), correct)))


def aurc(certainty: Floats, correct: Booleans) -> float:
    """Return the area under the risk-coverage curve: the mean, over inputs, of a selective risk.

    An input's selective risk is the share of wrong ones among all inputs at least as certain as it is.
    """
    return float(_aurc(_tally(_ranks(certainty, correct), correct)))


def risk_coverage(certainty: Floats, correct: Booleans) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coverage and selective risk at every operating point, as fractions, the smallest coverage first.

    The curve has steps: whoever must answer a share of the inputs accepts at the first point that covers it.
    The area under it is `aurc`.
    """
    wrong, accepted = _accepted(_tally(_ranks(certainty, correct), correct))
    return accepted / accepted[-1], wrong / accepted


def risk_coverage_band(
    certainty: Floats, correct: Booleans, coverage: Floats, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (low, high) of the selective risk at some coverages: 95 % percentile intervals over examples.

    The draws are those of `bootstrap`; each has its own operating points.
    """
    needed = np.ceil(coverage * certainty.size - 1e-9)  # without the slack 0.07 * 100 would need 8 inputs

    def risks(tallies: Integers) -> NDArray[np.float64]:
        wrong, accepted = _accepted(tallies)
        first = np.array([np.searchsorted(each, needed) for each in accepted])
        at_least_one = np.maximum(np.take_along_axis(accepted, first, axis=1), 1)
        return np.take_along_axis(wrong, first, axis=1) / at_least_one

    drawn = np.concatenate([np.empty((0, coverage.size)), *_resample(risks, certainty, correct, resamples, seed)])
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    return low, high


def augrc(certainty: Floats, correct: Booleans) -> float:
    """Return the area under the generalised-risk-coverage curve (Traub et al. 2024, arXiv 2407.01032).

    The generalised risk is the share of inputs accepted and wrong; straight lines join the operating points,
    from (0, 0) on.
    """
    return float(_augrc(_tally(_ranks(certainty, correct), correct)))


def fpr95(certainty: Floats, correct: Booleans) -> float | None:
    """Return the share of wrong inputs that the quantile rule accepts."""
    accepted = accept_at_tpr95(certainty, correct, "quantile")
    return None if accepted is None or correct.all() else float(accepted[~correct].mean())


def ece(labels: Integers, logits: Floats, bins: int = 15) -> float | None:
    """Return the expected calibration error of the largest softmax probability.

    It is the mean over inputs of their bin's gap between mean probability and accuracy; the bins have equal width
    and include their upper edge. None where an infinite logit leaves a probability undefined.
    """
    bins_found = reliability(labels, logits, bins)
    return None if bins_found is None else float(np.abs(bins_found.gap).sum() / labels.size)


def reliability(labels: Integers, logits: Floats, bins: int = 15) -> Reliability | None:
    """Sort inputs into the bins of `ece`; None where an infinite logit leaves a probability undefined."""
    correct = is_correct(labels, logits)
    logits = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        confidence = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    if np.isnan(confidence).any():
        return None
    position = np.ceil(confidence * bins).astype(np.int64) - 1
    return Reliability(
        inputs=np.bincount(position, minlength=bins),
        right=np.bincount(position[correct], minlength=bins),
        gap=np.asarray(np.bincount(position, weights=confidence - correct, minlength=bins), dtype=np.float64),
    )


def bootstrap(certainty: Floats, correct: Booleans, rule: TprRule, resamples: int, seed: int) -> Intervals:
    """Return 95 % percentile intervals of acc_tpr95 and auc over examples.

    Draw i takes the examples in row i of `default_rng(seed).integers(n, size=(resamples, n))` and finds its own
    threshold. A draw that leaves a metric undefined is left out; the interval is None if over half are.
    """

    def both(tallies: Integers) -> NDArray[np.float64]:
        return np.stack([_acc_tpr95(tallies, rule), _auc(tallies)])

    accuracies, aucs = np.concatenate([np.empty((2, 0)), *_resample(both, certainty, correct, resamples, seed)], axis=1)
    return Intervals(_interval(accuracies), _interval(aucs))


def resampled(
    metric: str, certainty: Floats, correct: Booleans, rule: TprRule, resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return one of `RESAMPLED` for each draw of `bootstrap`, NaN where it is undefined.

    Equal seeds draw the same examples of equally many inputs: differences of two such answers are paired.
    """

    def of_tallies(tallies: Integers) -> NDArray[np.float64]:
        return _of_tally(metric, tallies, rule)

    return np.concatenate([np.empty(0), *_resample(of_tallies, certainty, correct, resamples, seed)])


# A tally has shape (..., 2, distinct scores): how many right and how many wrong inputs have each score, the highest
# score first. One tally describes a set of inputs, a stack of them its resamples; NaN marks what is undefined.


def _check(certainty: Floats, correct: Booleans) -> None:
    if certainty.ndim != 1 or certainty.shape != correct.shape:
        raise ValueError(f"certainty of shape {certainty.shape} for correctness of shape {correct.shape}")
    if certainty.size == 0:
        raise ValueError("no inputs to measure")
    if correct.dtype != np.bool_:
        raise ValueError(f"correctness must be bool, not {correct.dtype}")
    if np.isnan(certainty).any():
        raise ValueError("NaN among the certainties")


def _ranks(certainty: Floats, correct: Booleans) -> NDArray[np.intp]:
    """Return for each input how many distinct scores lie above its own."""
    _check(certainty, correct)
    return np.unique(-certainty, return_inverse=True)[1]


def _tally(ranks: NDArray[np.intp], correct: Booleans) -> Integers:
    scores = int(ranks.max()) + 1
    return np.bincount(ranks + scores * ~correct, minlength=2 * scores).reshape(2, scores)


def _accepted(tally: Integers) -> tuple[Integers, Integers]:
    """Count the wrong and all of the inputs accepted at each score."""
    return tally[..., 1, :].cumsum(axis=-1), tally.sum(axis=-2).cumsum(axis=-1)


def _resample(
    work: Callable[[Integers], NDArray[np.float64]], certainty: Floats, correct: Booleans, resamples: int, seed: int
) -> Iterator[NDArray[np.float64]]:
    """Yield what `work` makes of the tallies of all resamples, a bounded number at a time and in their order."""
    ranks = _ranks(certainty, correct)
    scores = int(ranks.max()) + 1
    entries = ranks + scores * ~correct
    rng = np.random.default_rng(seed)
    threads = max(1, min(_THREADS, _DRAWN_AT_ONCE // ranks.size))
    at_once = max(1, _DRAWN_AT_ONCE // threads // ranks.size)
    pieces = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]

    def tallied(examples: Integers) -> NDArray[np.float64]:
        draws = len(examples)
        drawn = entries[examples]
        drawn += 2 * scores * np.arange(draws)[:, None]
        return work(np.bincount(drawn.ravel(), minlength=2 * scores * draws).reshape(draws, 2, scores))

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(pieces), threads):
            sizes = pieces[start : start + threads]
            # Drawn here, one after the other: the draws are a single stream.
            yield from pool.map(tallied, (rng.integers(ranks.size, size=(draws, ranks.size)) for draws in sizes))


def _accepted_scores(tally: Integers, rule: TprRule) -> Integers:
    """Return how many of the distinct scores are accepted; 0 where no input is right."""
    if rule == "official":
        single = tally.reshape(-1, *tally.shape[-2:])
        return np.array([_accepted_officially(each) for each in single]).reshape(tally.shape[:-2])
    right = tally[..., 0, :].cumsum(axis=-1)
    total = right[..., -1:]
    needed = total - total * 5 // 100
    return np.where(total[..., 0] > 0, (right < needed).sum(axis=-1) + 1, 0)


def _accepted_officially(tally: Integers) -> int:
    present = np.flatnonzero(tally.any(axis=0))
    roc = tally[:, present].cumsum(axis=1)
    if roc[0, -1] == 0:
        return 0
    is_vertex = np.ones(present.size, dtype=np.bool_)
    # Two equal steps in a row count as a straight line, and nothing else does: as scikit-learn drops them.
    is_vertex[1:-1] = np.diff(roc, n=2, axis=1).any(axis=0)
    # The curve's start, at rate 0 and threshold infinity, is never nearest: its end is at rate 1.
    vertices = np.flatnonzero(is_vertex)
    nearest = np.abs(roc[0, vertices] / roc[0, -1] - 0.95).argmin()
    return int(present[vertices[nearest]])


def _acc_tpr95(tally: Integers, rule: TprRule) -> NDArray[np.float64]:
    accepted = _accepted_scores(tally, rule)
    # Draw by draw: a running sum over every score of every draw takes longer where there are many inputs.
    single = zip(tally.reshape(-1, *tally.shape[-2:]), accepted.flat, strict=True)
    counts = np.array([each[:, :count].sum(axis=1) for each, count in single]).reshape(tally.shape[:-1])
    return _ratio(100 * counts[..., 0], counts.sum(axis=-1))


def _auc(tally: Integers) -> NDArray[np.float64]:
    right, wrong = tally[..., 0, :], tally[..., 1, :]
    twice_right_above = 2 * right.cumsum(axis=-1) - right
    return _ratio(np.einsum("...i,...i->...", wrong, twice_right_above) / 2, right.sum(axis=-1) * wrong.sum(axis=-1))


def _aurc(tally: Integers) -> NDArray[np.float64]:
    inputs = tally.sum(axis=-2)
    selective_risk = np.nan_to_num(_ratio(*_accepted(tally)))
    return np.asarray((inputs * selective_risk).sum(axis=-1) / inputs.sum(axis=-1))


def _augrc(tally: Integers) -> NDArray[np.float64]:
    inputs, wrong = tally.sum(axis=-2), tally[..., 1, :]
    mean_wrong_accepted = wrong.cumsum(axis=-1) - wrong / 2
    return np.asarray((inputs * mean_wrong_accepted).sum(axis=-1) / inputs.sum(axis=-1) ** 2)


RESAMPLED = ("acc_all", "acc_tpr95", "auc", "aurc", "augrc")


def _of_tally(metric: str, tally: Integers, rule: TprRule) -> NDArray[np.float64]:
    if metric == "acc_tpr95":
        return _acc_tpr95(tally, rule)
    if metric == "acc_all":
        return _ratio(100 * tally[..., 0, :].sum(axis=-1), tally.sum(axis=(-2, -1)))
    return {"auc": _auc, "aurc": _aurc, "augrc": _augrc}[metric](tally)


def _ratio(part: Floats | Integers, whole: Integers) -> NDArray[np.float64]:
    ratio = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _percent(chosen: Booleans) -> float:
    return 100 * int(chosen.sum()) / chosen.size


def _or_none(value: NDArray[np.float64]) -> float | None:
    return None if np.isnan(value) else float(value)


def _interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    defined = values[~np.isnan(values)]
    if defined.size == 0 or 2 * defined.size < values.size:
        return None
    low, high = np.percentile(defined, (2.5, 97.5))
    return float(low), float(high)
