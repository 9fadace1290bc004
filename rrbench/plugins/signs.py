"""Finds signs that a rejector is broken, from its scores in a run; each sign is the text of a note."""

import math

import numpy as np
from numpy.typing import NDArray

from rrbench.metrics.deployment import CleanScores
from rrbench.metrics.measures import auc
from rrbench.protocols import Rejector

SIGMAS = 3.0  # of chance: what differs by less says nothing
UPRIGHT = 0.15  # AUC: a weak idea may stay below one half; only a good one with the wrong sign stays below this


def doubtful_scores(
    rejector: Rejector, clean: CleanScores, certainty: NDArray[np.float64], *, is_attacked: bool
) -> list[str]:
    """Say what is odd in a rejector's certainties on clean inputs and, if `is_attacked`, on attacked ones."""
    if rejector.is_constant or len(clean.certainty) < 2:
        return []
    low, high = float(clean.certainty.min()), float(clean.certainty.max())
    if low == high:
        return ["all clean inputs have the same certainty"]
    found = []
    area = auc(clean.certainty, clean.correct)
    right, wrong = int(clean.correct.sum()), int((~clean.correct).sum())
    # If most answers are wrong, as before any training, the network may be surer of these, and not the rejector is odd.
    if area is not None and right > wrong and area < UPRIGHT and 0.5 - area > SIGMAS * _chance(right, wrong):
        found.append(
            "the certainty is upside down: clean, a right answer has more of it than a wrong one "
            f"{100 * area:.0f} times in 100"
        )
    own, lowest = clean.own_threshold, min(low, float(certainty.min()))
    if own is not None and own > high:
        found.append(f"own_threshold {own:.3g} rejects every clean input: their certainty ends at {high:.3g}")
    # A threshold may well keep all clean inputs: only together with attacked ones it says something.
    if own is not None and is_attacked and own <= lowest:
        found.append(f"own_threshold {own:.3g} rejects no input, clean or attacked: certainty begins at {lowest:.3g}")
    return found


def _chance(right: int, wrong: int) -> float:
    """Return the standard deviation of the AUC if scores say nothing (Mann and Whitney 1947)."""
    return math.sqrt((right + wrong + 1) / (12 * right * wrong))
