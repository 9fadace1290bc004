"""The extra head on the features that RR, SNet, CARL and ATRO use."""

from torch import nn


def rejection_head(width: int) -> nn.Module:
    """Return Linear, BatchNorm, ReLU, Linear: one raw output for each input."""
    hidden = width // 2
    return nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 1))
