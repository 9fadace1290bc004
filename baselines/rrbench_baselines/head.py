"""The extra head that RR, SNet, CARL and ATRO put on the features."""

from torch import nn


def rejection_head(width: int) -> nn.Module:
    """Return Linear, BatchNorm, ReLU, Linear: one raw output per input."""
    hidden = width // 2
    return nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 1))
