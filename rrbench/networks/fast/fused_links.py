"""Links as one kernel, on the matrix units of a Hopper GPU; cuDNN does the convolutions that the kernels cannot do.

The first link is two kernels. So is every link in training: a norm's statistics are known only after all is summed.
"""

from types import ModuleType

import torch
from torch import Tensor

from rrbench.networks.fast import resident_convolution, tiled_convolution
from rrbench.networks.fast.frozen_convolution import FrozenConvolution
from rrbench.networks.fast.kernels import norm_relu_kernels, stem_kernels
from rrbench.networks.fast.links import Links, Side
from rrbench.networks.fast.norm_relu import Norm, Normed, Seen

KERNELS = (resident_convolution, tiled_convolution)  # both have the same functions; the fastest comes first


class FusedLinks(Links):
    """The same as `Links`, with fused kernels."""

    def __init__(self) -> None:
        super().__init__(norm_relu_kernels)

    def enter(self, stem: FrozenConvolution, images: Tensor, norm: Norm, sums: Tensor | None) -> Normed:
        """Go through the first link, from float32 images."""
        if not stem_kernels.fits(stem):
            return super().enter(stem, images, norm, sums)
        maps = stem_kernels.forward(stem, images, sums)
        return norm_relu_kernels.normalise(maps, norm, sums)

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
        """See `Links.forward`."""
        kernels = kernels_for(convolution, side, maps.shape)
        if kernels is None:
            return super().forward(convolution, maps, norm, sums, skip=skip, side=side, keeps_total=keeps_total)
        if sums is not None:
            return norm_relu_kernels.normalise(
                kernels.add_up(convolution, maps, sums, skip=skip, side=side), norm, sums
            )
        total, active, inverse = kernels.normalise(
            convolution, maps, norm, skip=skip, side=side, keeps_total=keeps_total
        )
        return Normed(total, active, Seen(active, norm.mean, inverse))

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
        """See `Links.backward`."""
        kernels = kernels_for(convolution, side, seen.maps.shape)
        if kernels is None:
            return super().backward(convolution, gradient, seen, norm, sums, side=side, past=past)
        if sums is None:
            found: Tensor = kernels.backward(convolution, gradient, seen, norm, None, side=side, past=past)
            return found
        passed = kernels.backward(convolution, gradient, seen, norm, sums, side=side)
        return norm_relu_kernels.unnormalise(passed, seen, norm, sums, past=past)

    def leave(self, stem: FrozenConvolution, gradient: Tensor) -> Tensor:
        """Return the float32 gradient of the images, given the gradient of the stem's maps."""
        return stem_kernels.backward(stem, gradient) if stem_kernels.fits(stem) else super().leave(stem, gradient)


def kernels_for(convolution: FrozenConvolution, side: Side | None, shape: torch.Size) -> ModuleType | None:
    """Return the fastest kernels that support a convolution of maps of this shape; None if none does."""
    return next((kernels for kernels in KERNELS if kernels.fits(convolution, side, shape)), None)
