"""Computes a row again from its stored files alone, without its network and its data set.

Each function yields one line for each difference.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from rrbench.measuring.evaluation import certainties, columns_of
from rrbench.protocols import Outputs
from rrbench.rows.record import CellRecord
from rrbench.rows.scores import Scores
from rrbench.verifying.restored import is_installed, rejector_of
from rrbench.verifying.tolerance import is_near

LAST_BITS = 1e-4  # share of the interquartile range; 6e-6 at most was measured, of an H200 and a CPU


def wrong_metrics(record: CellRecord, scores: Scores) -> Iterator[str]:
    """Say which metrics do not follow from the stored scores."""
    metrics = columns_of(scores, record.metrics, record.row.seed)
    if record.row.attack == "clean" and not _is_alike(scores.certainty, scores.clean_certainty):
        yield "its certainties and those of the clean inputs are not the same, and it is clean"
    for name, value in metrics.items():
        stated = getattr(record.row, name)
        if (stated is None) != (value is None) or (value is not None and not np.isclose(stated, value, rtol=1e-9)):
            yield f"{name} is {value} from the scores, and the row says {stated}"


def _is_alike(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Tell whether certainties are the same but for last bits: these differ between machines, and between looks."""
    if np.array_equal(one, other) or one.shape != other.shape:
        return one.shape == other.shape
    upper, lower = np.percentile(other, (75, 25))
    return np.allclose(one, other, rtol=0, atol=LAST_BITS * (upper - lower))


def other_clean_certainties(scores: Scores, first: NDArray[np.float64]) -> Iterator[str]:
    """Compare certainties on clean inputs with `first`, those of the rejector's first row: all must state the same."""
    if first.shape != scores.clean_certainty.shape or not is_near(scores.clean_certainty, first):
        yield "its certainties of clean inputs are not those of the rejector's other rows"


def wrong_certainties(record: CellRecord, scores: Scores) -> Iterator[str]:
    """Compute certainties again, if the rejector needs only stored outputs."""
    rejector = rejector_of(record)
    if not is_installed(record) or "features" in rejector.needs or rejector.has_fit():
        return
    shown = len(scores.logits)
    parts = (scores.logits, scores.head, scores.labels[:shown])
    logits, head, labels = (torch.from_numpy(part) for part in parts)
    found = certainties(rejector, Outputs(logits[:, :0], logits, head), labels)
    if not np.allclose(found, scores.certainty[:shown], rtol=1e-5):
        yield "certainties do not follow from the stored logits and head"
