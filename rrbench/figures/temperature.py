"""Figure 5: the effect of temperature on confidence and T-Con of a network without a head."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rrbench.figures.certainty import Floats, log_odds, probability
from rrbench.figures.request import Need, PaperRequest
from rrbench.figures.scored import provenance_text
from rrbench.figures.style import BLUE, GREEN, ORANGE, RED, finish, legend_below, panels, styled, typeset
from rrbench.figures.style import LOG2_TAU as TAU_LABEL
from rrbench.metrics.columns import LABELS, TprRule
from rrbench.metrics.measures import accept_at_tpr95
from rrbench.rows.tables import budget_text

LOG2_TAU = tuple(range(-10, 11))
NEED = Need("pgd-at", "confidence", "pgd10", "pgd-at")


class Sweep(NamedTuple):
    """A score at every temperature."""

    acc_tpr95: Floats  # percent; NaN if undefined
    mean_right: Floats
    mean_wrong: Floats


def figure5(request: PaperRequest) -> Figure:
    """Draw TPR-95 (left) and mean scores on right and wrong inputs (right) against the temperature."""
    (cell,) = request.find(NEED)
    labels, logits = cell.whole_scores.labels, cell.whole_scores.logits
    confidence = sweep(labels, logits, logits.argmax(axis=1), cell.record.metrics.tpr_rule)
    true_confidence = sweep(labels, logits, labels, cell.record.metrics.tpr_rule)
    with styled():
        figure, (left, right) = panels(1, 2, width=3.2, height=2.9)
        left.plot(LOG2_TAU, confidence.acc_tpr95, color=BLUE, marker="o", label="confidence")
        left.plot(LOG2_TAU, true_confidence.acc_tpr95, color=ORANGE, marker="s", linestyle="--", label="T-Con (oracle)")
        for values, color, marker, line, label in (
            # For right inputs the label is the prediction, so both scores are equal.
            (confidence.mean_right, BLUE, "o", "-", "confidence = T-Con of right inputs"),
            (confidence.mean_wrong, RED, "v", ":", "confidence of wrong inputs"),
            (true_confidence.mean_wrong, GREEN, "D", "-.", "T-Con of wrong inputs"),
        ):
            right.plot(LOG2_TAU, values, color=color, marker=marker, linestyle=line, label=label)
        left.set(xlabel=TAU_LABEL, ylabel=f"{LABELS['acc_tpr95']} (%)")
        right.set(xlabel=TAU_LABEL, ylabel="mean score", ylim=(-0.03, 1.03))
        for panel in (left, right):
            panel.set_xticks(LOG2_TAU[::5])
        left.legend()
        legend_below(figure, [right], columns=3)
        row = cell.row
        finish(figure, f"{row.trained_as}, {row.attack} {typeset(budget_text(row))}, {provenance_text([row])}")
    return figure


def sweep(labels: NDArray[Any], logits: NDArray[Any], classes: NDArray[Any], rule: TprRule) -> Sweep:
    """Score each input by the probability of one class, at every temperature.

    Acceptance uses log-odds: at small tau probabilities would tie at 1, although their order has no ties.
    """
    correct = np.asarray(logits.argmax(axis=1) == labels)
    points = []
    for log2_tau in LOG2_TAU:
        odds = log_odds(logits, classes, 2.0**log2_tau)
        accepted = accept_at_tpr95(odds, correct, rule)
        score = probability(odds)
        points.append(
            (
                np.nan if accepted is None else 100 * correct[accepted].mean(),
                score[correct].mean() if correct.any() else np.nan,
                score[~correct].mean() if not correct.all() else np.nan,
            )
        )
    return Sweep(*np.array(points).T)
