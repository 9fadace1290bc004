"""Asks a cell's network again, about its stored images and about clean inputs, and compares the answers.

Each function yields one line for each difference.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.metrics.deployment import CleanScores
from rrbench.protocols import Outputs, Rejector
from rrbench.rows.scores import Scores
from rrbench.verifying.tolerance import LOGIT_TOLERANCE, is_near

REPLAYED = 1000  # clean inputs that are judged again if there is no --rerun
TIES = 1e-3  # share of clean inputs that other hardware may classify differently


def other_outputs(outputs: Outputs, scores: Scores) -> Iterator[str]:
    """Compare the network's outputs on the stored images with the stored outputs."""
    for name, other in (("logits", "other logits"), ("head", "another head")):
        here, there = getattr(outputs, name).cpu().numpy(), getattr(scores, name)[: len(outputs.logits)]
        if here.shape != there.shape:
            widths = f"{here.shape[1]} columns, and {there.shape[1]} are stored"
            yield f"the checkpoint's {name} has {widths}"
            continue
        gap = float(np.abs(here - there).max(initial=0.0))
        if gap > LOGIT_TOLERANCE * max(1.0, float(np.abs(here).max(initial=0.0))):
            yield f"the checkpoint gives {other} for the stored images (by {gap:.3g})"


def other_clean_scores(found: CleanScores, scores: Scores) -> Iterator[str]:
    """Compare the stored certainties that fix the deployed thresholds with those computed here."""
    count = len(found.certainty)
    for name, here, there in (
        ("the clean inputs", found.certainty, scores.clean_certainty[:count]),
        ("the inputs kept apart", found.apart_certainty, scores.apart_certainty),
    ):
        # `Inputs.differences` reports another number of inputs.
        if here.shape == there.shape and not is_near(here, there):
            yield f"its certainties of {name} are not what the rejector says of them"
    yield from _other_right(found.correct, scores.clean_correct[:count])
    yield from _other_right(found.apart_correct, scores.apart_correct)
    yield from _other_threshold(found.own_threshold, scores)


def other_right_inputs(measured: MeasuredNetwork, rejector: Rejector, scores: Scores) -> Iterator[str]:
    """Compare only which clean inputs are right, for a rejector whose certainties need a fit."""
    outputs, labels = measured.outputs("test", REPLAYED), scores.labels[:REPLAYED]
    found = outputs.logits.argmax(1).cpu().numpy() == labels
    yield from _other_right(found, scores.clean_correct[:REPLAYED])
    apart = measured.apart()
    if apart is not None:
        right = measured.outputs("calibration").logits.argmax(1) == apart.labels
        yield from _other_right(right.cpu().numpy(), scores.apart_correct)
    yield from _other_threshold(rejector.own_threshold, scores)


def _other_right(here: NDArray[np.bool_], there: NDArray[np.bool_]) -> Iterator[str]:
    """Compare which inputs are right; other hardware may decide a few ties (TIES) differently."""
    if here.shape == there.shape and int((here != there).sum()) > here.size * TIES:
        yield "other clean inputs are right than it says"


def _other_threshold(here: float | None, scores: Scores) -> Iterator[str]:
    """Compare the rejector's own threshold with the stored one."""
    own = scores.clean.own_threshold
    if own != here:
        yield f"its rejector brings the threshold {here}, and the files say {own}"
