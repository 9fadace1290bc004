"""Finds the scale of a certainty that is no probability, for attacks: its fall to the border between two classes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rrbench.protocols import Batch, Outputs

# Rows of attacks that use the scale state its revision. Raise it when the scale is computed in another way. Revision 1
# was the interquartile range alone.
REVISION = 2
PAIRS = 64  # straight lines from an input to an input of another class
HALVINGS = 6  # of each line: they find the border to a 64th of its length


class Border(NamedTuple):
    """A network's outputs just beyond the border between two classes."""

    outputs: Outputs
    labels: Tensor  # of the inputs on the near side


def find_border(judge: Callable[[Tensor], Outputs], clean: Outputs, batch: Batch) -> Border | None:
    """Move right inputs straight to inputs of another class until the answer changes; None if all have one class."""
    right = clean.logits.argmax(1) == batch.labels
    images, labels = batch.images[right], batch.labels[right]
    # Partners are half the data apart: if inputs are sorted by class, neighbours have the same class.
    partners = torch.arange(len(labels), device=labels.device).roll(len(labels) // 2)
    chosen = (labels != labels[partners]).nonzero().squeeze(1)[:PAIRS]
    if not len(chosen):
        return None
    near, far, labels = images[chosen], images[partners[chosen]], labels[chosen]
    low, high = torch.zeros_like(near[:, :1, :1, :1]), torch.ones_like(near[:, :1, :1, :1])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_near = (judge(torch.lerp(near, far, middle)).logits.argmax(1) == labels).view_as(middle)
        low, high = torch.where(is_near, middle, low), torch.where(is_near, high, middle)
    return Border(judge(torch.lerp(near, far, high)), labels)


def scale_of(certainty: NDArray[np.float64], at_border: NDArray[np.float64]) -> tuple[float, float]:
    """Return the median of clean certainties and their scale.

    If clean certainties hardly differ, the interquartile range alone is so small that the attack's certainty term
    drowns the classifier's. On digits under ce+rcon, a confidence that was not declared a probability kept 99 % robust
    with it; with this scale it keeps 92.5 %, like a declared confidence (PGD: 94.2 %).
    """
    if not len(certainty):
        return float("nan"), float("nan")
    ordered = np.sort(certainty)
    median = float(ordered[(len(ordered) - 1) // 2])  # the lower median, as in torch: a value that occurs
    low, high = np.quantile(ordered, [0.25, 0.75])
    fall = median - float(np.median(at_border)) if len(at_border) else 0.0
    # For a constant certainty. In proportion to its size, since its author chooses the unit.
    least = 1e-6 * float(np.abs(ordered).max())
    return median, max(float(high - low), fall, least) or 1.0
