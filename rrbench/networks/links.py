"""A convolution and the norm and ReLU behind it: what a residual network is a chain of.

Here one after the other; `fused_links` makes them one kernel where it can.
"""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from rrbench.networks import norm_relu
from rrbench.networks.frozen_convolution import FrozenConvolution, widen
from rrbench.networks.norm_relu import Norm, Normed, Seen


class Side(NamedTuple):
    """A block's shortcut where it is convolved, and what it is given: maps, or on the way back a gradient."""

    convolution: FrozenConvolution
    maps: Tensor


class Links:
    """Convolves, then normalises and rectifies by a module that knows how on some device."""

    def __init__(self, norm_relu: ModuleType) -> None:
        self.norm_relu = norm_relu

    def enter(self, stem: FrozenConvolution, images: Tensor, norm: Norm, sums: Tensor | None) -> Normed:
        """Go through the first link, from float32 images."""
        normed: Normed = self.norm_relu.forward(stem.forward(widen(images, stem)), None, norm, sums)
        return normed

    def forward(
        self,
        convolution: FrozenConvolution,
        maps: Tensor,
        norm: Norm,
        sums: Tensor | None,
        *,
        skip: Tensor | None = None,
        side: Side | None = None,
        keeps_total: bool = True,
    ) -> Normed:
        """Return relu(norm(convolved maps + shortcut)); nobody may ask for the total unless it is kept."""
        if side is not None:
            skip = side.convolution.forward(side.maps)
        normed: Normed = self.norm_relu.forward(convolution.forward(maps), skip, norm, sums)
        return normed

    def backward(
        self,
        convolution: FrozenConvolution,
        gradient: Tensor,
        seen: Seen,
        norm: Norm,
        sums: Tensor | None,
        *,
        side: Side | None = None,
        past: Tensor | None = None,
    ) -> Tensor:
        """Take a gradient back through a convolution and a convolved shortcut, then ReLU and norm; add `past`."""
        size = seen.maps.shape[2:]
        beside = None if side is None else side.convolution.backward(side.maps, size)
        arrived = convolution.backward(gradient, size)
        found: Tensor = self.norm_relu.backward(arrived, seen, norm, sums, beside=beside, past=past)
        return found

    def leave(self, stem: FrozenConvolution, gradient: Tensor) -> Tensor:
        """Return the float32 gradient at the images, given that at the stem's maps."""
        return stem.backward(gradient, gradient.shape[2:])[:, : stem.source.weight.shape[1]].float()


def links_for(device: torch.device, dtype: torch.dtype) -> Links:
    """Return the links that are fastest on a device."""
    if device.type != "cuda":
        return Links(norm_relu)
    # Here, not above: PyTorch for CPUs comes without Triton.
    from rrbench.networks import norm_relu_kernels

    if dtype != torch.bfloat16 or torch.cuda.get_device_capability(device)[0] != 9:
        return Links(norm_relu_kernels)
    from rrbench.networks.fused_links import FusedLinks

    return FusedLinks()
