"""Batch norm and ReLU together, forward and backward.

This is plain PyTorch for any device; `norm_relu_kernels` has the same functions for a GPU.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Norm(NamedTuple):
    """The tensors of a batch norm, shared with it."""

    weight: Tensor
    bias: Tensor
    mean: Tensor  # running
    variance: Tensor
    eps: float
    momentum: float

    @classmethod
    def of(cls, module: nn.BatchNorm2d) -> "Norm":
        """Share a module's tensors."""
        mean, variance, momentum = module.running_mean, module.running_var, module.momentum
        assert mean is not None
        assert variance is not None
        assert momentum is not None
        return cls(module.weight, module.bias, mean, variance, module.eps, momentum)


class Seen(NamedTuple):
    """What the backward pass needs from the forward pass."""

    maps: Tensor  # in training before the norm; else after ReLU, which shows what ReLU let through
    mean: Tensor  # the mean that was subtracted
    inverse: Tensor  # 1 / the deviation


class Normed(NamedTuple):
    """The result of the forward pass."""

    total: Tensor  # before the norm
    active: Tensor  # after ReLU
    seen: Seen


class Sums:
    """Zeros to which the norms of one pass add their sums; one kernel clears them for all norms."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self.zeros = torch.zeros(2 * channels, device=device)
        self.used = 0

    def take(self, channels: int) -> Tensor:
        """Return zeros for one norm: two for each channel."""
        start, self.used = self.used, self.used + 2 * channels
        return self.zeros[start : self.used]


def forward(maps: Tensor, skip: Tensor | None, norm: Norm, sums: Tensor | None) -> Normed:
    """Return relu(norm(maps + skip)).

    With `sums` (two zeros for each channel) it trains: it uses the batch's statistics and updates the running ones.
    """
    total = maps if skip is None else maps + skip
    wide = total.float()
    mean, variance = norm.mean, norm.variance
    if sums is not None:
        mean, variance = wide.mean((0, 2, 3)), wide.var((0, 2, 3), correction=0)
        rows = maps.numel() // maps.shape[1]
        # `data`: another pass, also of PyTorch's own norm, may update them between its forward and backward.
        norm.mean.data.lerp_(mean, norm.momentum)
        norm.variance.data.lerp_(variance * (rows / max(rows - 1, 1)), norm.momentum)
    inverse = (variance + norm.eps).rsqrt()
    active = _normal(total, mean, inverse, norm).relu().to(maps.dtype)
    return Normed(total, active, Seen(active if sums is None else total, mean.clone(), inverse))


def backward(
    gradient: Tensor,
    seen: Seen,
    norm: Norm,
    sums: Tensor | None,
    *,
    side_gradient: Tensor | None = None,
    past: Tensor | None = None,
) -> Tensor:
    """Return the gradient of `maps + skip`, given the gradient of the result.

    `sums` start as zeros and become the gradients of the norm's bias and weight. `side_gradient` is another part of the
    result's gradient; `past` is a gradient that reached `maps + skip` directly.
    """
    whole = gradient.float() if side_gradient is None else gradient.float() + side_gradient.float()
    passed = whole * ((seen.maps if sums is None else _normal(*seen, norm)) > 0)
    if sums is not None:
        standard = (seen.maps.float() - _wide(seen.mean)) * _wide(seen.inverse)
        first, second = sums.view(2, -1)
        first += passed.sum((0, 2, 3))
        second += (passed * standard).sum((0, 2, 3))
        rows = gradient.numel() // len(norm.bias)
        passed = passed - _wide(first / rows) - standard * _wide(second / rows)
    result = passed * _wide(seen.inverse * norm.weight)
    return (result if past is None else result + past.float()).to(gradient.dtype)


def _normal(maps: Tensor, mean: Tensor, inverse: Tensor, norm: Norm) -> Tensor:
    scale = inverse * norm.weight
    return maps.float() * _wide(scale) + _wide(norm.bias - mean * scale)


def _wide(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)
