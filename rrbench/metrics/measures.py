"""The metrics of a row, computed from each input's certainty and whether its class was right.

Every metric but `ece` depends only on the order of the certainties, and treats equal ones as one operating
point. A metric that is undefined for its inputs is None; NaN among the inputs is an error.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.metrics import tallies
from rrbench.metrics.columns import Metrics, TprRule
from rrbench.metrics.deployment import CleanScores, deployed, deployed_draws, whole_threshold
from rrbench.metrics.resampling import bootstrap, interval
from rrbench.metrics.tallies import Booleans, Floats, Integers


class Reliability(NamedTuple):
    """Inputs in bins of equal width by their largest softmax probability; a bin includes its upper edge."""

    inputs: Integers
    right: Integers
    gap: NDArray[np.float64]  # the sum of their probabilities minus the number of right ones


def measure(
    correct: Booleans,
    confidence: Floats,
    certainty: Floats,
    *,
    rule: TprRule,
    clean: CleanScores | None,
    resamples: int,
    seed: int,
) -> Metrics:
    """Measure everything about one set of inputs; `deploy_*` needs the rejector's scores on clean inputs."""
    accepted = accept_at_tpr95(certainty, correct, rule)
    intervals = bootstrap(certainty, correct, rule, resamples, seed)
    acc_low, acc_high = intervals.acc_tpr95 or (None, None)
    auc_low, auc_high = intervals.auc or (None, None)
    deploy = deployed(clean, certainty, correct) if clean else None
    draws = deployed_draws(clean, certainty, correct, resamples, seed) if clean and deploy else {}
    ends = {name: interval(values) or (None, None) for name, values in draws.items()}
    robust_low, robust_high = ends.get("robust", (None, None))
    joint_low, joint_high = ends.get("joint", (None, None))
    return Metrics(
        acc_all=_percent(correct),
        acc_tpr95=None if accepted is None else _percent(correct[accepted]),
        auc=auc(certainty, correct),
        coverage_tpr95=None if accepted is None else _percent(accepted),
        acc_tpr95_low=acc_low,
        acc_tpr95_high=acc_high,
        auc_low=auc_low,
        auc_high=auc_high,
        deploy_threshold=whole_threshold(clean) if clean and deploy else None,
        deploy_n=correct.size if deploy else None,
        deploy_acc=None if deploy is None else deploy.acc,
        deploy_coverage=None if deploy is None else deploy.coverage,
        deploy_robust=None if deploy is None else deploy.robust,
        deploy_robust_low=robust_low,
        deploy_robust_high=robust_high,
        deploy_joint=None if deploy is None else deploy.joint,
        deploy_joint_low=joint_low,
        deploy_joint_high=joint_high,
        aurc=aurc(certainty, correct),
        augrc=augrc(certainty, correct),
        fpr95=fpr95(certainty, correct),
        ece=ece(correct, confidence),
    )


def classes_of(logits: Floats) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return each input's class (the first of equals) and its softmax.

    The softmax is NaN if an infinite logit makes it undefined.
    """
    if logits.ndim != 2 or logits.size == 0:
        raise ValueError(f"no inputs in logits of shape {logits.shape}")
    if np.isnan(logits).any():
        raise ValueError("NaN among the logits")
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        confidence = 1 / np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1)
    return np.asarray(logits.argmax(axis=1)), np.asarray(confidence)


def of_logits(labels: Integers, logits: Floats) -> tuple[Booleans, Floats]:
    """Return which inputs are right, and the softmax of their class."""
    prediction, confidence = classes_of(logits)
    if labels.shape != prediction.shape:
        raise ValueError(f"labels of shape {labels.shape} for logits of shape {logits.shape}")
    return np.asarray(prediction == labels), confidence


def accept_at_tpr95(certainty: Floats, correct: Booleans, rule: TprRule) -> Booleans | None:
    """Say which inputs are accepted if 95 % of the right ones must be; None if no input is accepted.

    quantile: with n right inputs, T is their certainty at position floor(n / 20), counted upwards from 0;
    accepts certainty >= T, so at most 5 % of the right inputs are rejected.
    official: T is the threshold at the vertex of the ROC curve whose true positive rate is nearest to 0.95 (the
    highest of equals), on the curve without the points that scikit-learn's `roc_curve` drops by default;
    accepts certainty > T.
    """
    ranks = tallies.ranks_of(certainty, correct)
    accepted = ranks < tallies.accepted_scores(tallies.tally_of(ranks, correct), rule)
    return accepted if accepted.any() else None


def auc(certainty: Floats, correct: Booleans) -> float | None:
    """Return the probability that a right input has a higher certainty than a wrong one; a tie counts half."""
    return _or_none(tallies.auc(_tally(certainty, correct)))


def aurc(certainty: Floats, correct: Booleans) -> float:
    """Return the area under the risk-coverage curve: the mean of the inputs' selective risks.

    An input's selective risk is the share of wrong inputs among all inputs that are at least as certain.
    """
    return float(tallies.aurc(_tally(certainty, correct)))


def risk_coverage(certainty: Floats, correct: Booleans) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coverage and selective risk at every operating point, as fractions, the smallest coverage first.

    The curve has steps: to answer a given share of inputs, accept at the first point that covers the share.
    The area under the curve is `aurc`.
    """
    wrong, accepted = tallies.accepted_counts(_tally(certainty, correct))
    return accepted / accepted[-1], wrong / accepted


def augrc(certainty: Floats, correct: Booleans) -> float:
    """Return the area under the generalised-risk-coverage curve (Traub et al. 2024, arXiv 2407.01032).

    The generalised risk is the share of inputs accepted and wrong; straight lines join the operating points,
    from (0, 0) on.
    """
    return float(tallies.augrc(_tally(certainty, correct)))


def fpr95(certainty: Floats, correct: Booleans) -> float | None:
    """Return the share of wrong inputs that the quantile rule accepts."""
    accepted = accept_at_tpr95(certainty, correct, "quantile")
    return None if accepted is None or correct.all() else float(accepted[~correct].mean())


def ece(correct: Booleans, confidence: Floats, bins: int = 15) -> float | None:
    """Return the expected calibration error of the largest softmax probability.

    It is the mean, over inputs, of the gap between mean probability and accuracy in the input's bin. The bins have
    equal width and include their upper edge. None if a probability is undefined.
    """
    bins_found = reliability(correct, confidence, bins)
    return None if bins_found is None else float(np.abs(bins_found.gap).sum() / correct.size)


def reliability(correct: Booleans, confidence: Floats, bins: int = 15) -> Reliability | None:
    """Sort inputs into the bins of `ece`; None if a probability is undefined."""
    if np.isnan(confidence).any():
        return None
    position = np.ceil(confidence * bins).astype(np.int64) - 1
    return Reliability(
        inputs=np.bincount(position, minlength=bins),
        right=np.bincount(position[correct], minlength=bins),
        gap=np.asarray(np.bincount(position, weights=confidence - correct, minlength=bins), dtype=np.float64),
    )


def _tally(certainty: Floats, correct: Booleans) -> Integers:
    return tallies.tally_of(tallies.ranks_of(certainty, correct), correct)


def _percent(chosen: Booleans) -> float:
    return 100 * int(chosen.sum()) / chosen.size


def _or_none(value: NDArray[np.float64]) -> float | None:
    return None if np.isnan(value) else float(value)
