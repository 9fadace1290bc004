"""A link: a convolution with the norm and ReLU after it. A residual network is a chain of links.

Here the steps run one after another; `fused_links` does them in one kernel if it can. `residual` chooses.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from rrbench.networks.fast.frozen_convolution import FrozenConvolution, widen
from rrbench.networks.fast.norm_relu import Norm, Normed, Seen


class Side(NamedTuple):
    """A block's convolved shortcut, and its input: maps, or a gradient in the backward pass."""

    convolution: FrozenConvolution
    maps: Tensor


class NormRelu(Protocol):
    """A module that normalises and rectifies on some device; `norm_relu` defines how."""

    def forward(self, maps: Tensor, skip: Tensor | None, norm: Norm, sums: Tensor | None) -> Normed:
        """Return relu(norm(maps + skip))."""
        ...

    def backward(
        self,
        gradient: Tensor,
        seen: Seen,
        norm: Norm,
        sums: Tensor | None,
        *,
        side_gradient: Tensor | None = None,
        past: Tensor | None = None,
    ) -> Tensor:
        """Return the gradient before the norm."""
        ...


class Links:
    """Convolves, then normalises and rectifies."""

    def __init__(self, norm_relu: NormRelu) -> None:
        self.norm_relu = norm_relu

    def enter(self, stem: FrozenConvolution, images: Tensor, norm: Norm, sums: Tensor | None) -> Normed:
        """Go through the first link, from float32 images."""
        return self.norm_relu.forward(stem.forward(widen(images, stem)), None, norm, sums)

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
        """Return relu(norm(convolved maps + shortcut)); the total may be used only if `keeps_total`."""
        if side is not None:
            skip = side.convolution.forward(side.maps)
        return self.norm_relu.forward(convolution.forward(maps), skip, norm, sums)

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
        side_gradient = None if side is None else side.convolution.backward(side.maps, size)
        arrived = convolution.backward(gradient, size)
        return self.norm_relu.backward(arrived, seen, norm, sums, side_gradient=side_gradient, past=past)

    def leave(self, stem: FrozenConvolution, gradient: Tensor) -> Tensor:
        """Return the float32 gradient of the images, given the gradient of the stem's maps."""
        return stem.backward(gradient, gradient.shape[2:])[:, : stem.source.weight.shape[1]].float()
