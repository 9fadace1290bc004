"""The scale on which attacks see a certainty that is no probability: its fall to the border between two classes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rrbench.protocols import Batch, Outputs

# Of the scale. Raised when it is found in another way: the rows of attacks that use it hold it. 1 was the interquartile
# range alone.
REVISION = 2
PAIRS = 64  # ways between two classes
HALVINGS = 6  # of each way: the border is known to a 64th of it


class Border(NamedTuple):
    """What a network says just beyond the border between two classes."""

    outputs: Outputs
    labels: Tensor  # of the inputs on the near side


def find_border(judge: Callable[[Tensor], Outputs], clean: Outputs, batch: Batch) -> Border | None:
    """Go from right answers straight to those of another class until the answer changes; None with a single class."""
    right = clean.logits.argmax(1) == batch.labels
    images, labels = batch.images[right], batch.labels[right]
    # Half the data away: inputs sorted by class have their neighbours in the same one.
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

    The interquartile range alone drowned the classifier's term where clean certainties hardly differ: on digits an
    undeclared confidence kept 99 % robust under ce+rcon, and this scale 92.5, as the declared one (PGD 94.2).
    """
    if not len(certainty):
        return float("nan"), float("nan")
    ordered = np.sort(certainty)
    median = float(ordered[(len(ordered) - 1) // 2])  # the lower one, as torch defines it: a value that occurs
    low, high = np.quantile(ordered, [0.25, 0.75])
    fall = median - float(np.median(at_border)) if len(at_border) else 0.0
    # A constant certainty falls nowhere; in proportion to it, since the unit is its author's choice.
    least = 1e-6 * float(np.abs(ordered).max())
    return median, max(float(high - low), fall, least) or 1.0
