"""Convolutions with their own copy of the weights: cast once, and mirrored for the backward pass."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.devices import tried_kernels

LANES = 8  # channels that the matrix units read at once; 3 would be converted on every pass


class FrozenConvolution:
    """A convolution with weights in its own precision; `refresh` copies the source's weights.

    With stride 1 the padding keeps the size, so the backward pass is a convolution of the same shape.
    """

    def __init__(self, source: nn.Conv2d, dtype: torch.dtype) -> None:
        self.source, self.stride, self.padding = source, source.stride, source.padding
        outputs, inputs, *kernel = source.weight.shape
        self.weight = self._empty(outputs, max(inputs, LANES), kernel, dtype)
        self.mirrored = self._empty(max(inputs, LANES), outputs, kernel, dtype)
        self.refresh()

    def _empty(self, outputs: int, inputs: int, kernel: list[int], dtype: torch.dtype) -> Tensor:
        weight = torch.zeros(outputs, inputs, *kernel, dtype=dtype, device=self.source.weight.device)
        return weight.contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the source's weights."""
        self.weight[:, : self.source.weight.shape[1]].copy_(self.source.weight)
        self.mirrored.copy_(self.weight.flip(2, 3).transpose(0, 1))

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve."""
        return lay(F.conv2d(maps, self.weight, stride=self.stride, padding=self.padding))

    def backward(self, gradient: Tensor, size: torch.Size) -> Tensor:
        """Return the gradient of the maps, whose height and width were `size`."""
        padding = (int(self.padding[0]), int(self.padding[1]))
        if self.stride == (1, 1):
            # With few channels, cuDNN's guessed kernel is three times too slow.
            with tried_kernels(self.source.weight.shape[1] < LANES):
                return lay(F.conv2d(gradient, self.mirrored, padding=padding))
        # Pixels that the stride cut off at the far edge get zeros.
        reached = [
            (length - 1) * self.stride[axis] - 2 * padding[axis] + self.weight.shape[2 + axis]
            for axis, length in enumerate(gradient.shape[2:])
        ]
        rest = (size[0] - reached[0], size[1] - reached[1])
        return lay(F.conv_transpose2d(gradient, self.weight, stride=self.stride, padding=padding, output_padding=rest))

    def weight_gradient(self, gradient: Tensor, maps: Tensor) -> Tensor:
        """Return the gradient of the source's weights, given the maps that were convolved."""
        settings = (None, self.stride, self.padding, (1, 1), False, (0, 0), 1, (False, True, False))
        _, found, _ = torch.ops.aten.convolution_backward(gradient, maps, self.weight, *settings)
        kept: Tensor = found[:, : self.source.weight.shape[1]]
        return kept.to(self.source.weight.dtype)


def lay(maps: Tensor) -> Tensor:
    """Arrange maps channels-last; cuDNN's results are so already."""
    return maps.contiguous(memory_format=torch.channels_last)


def widen(images: Tensor, stem: FrozenConvolution) -> Tensor:
    """Arrange images for a first convolution: channels-last, in its precision, padded to its channels with zeros."""
    count, channels, height, width = images.shape
    wide = torch.zeros(count, stem.weight.shape[1], height, width, dtype=stem.weight.dtype, device=images.device)
    wide = lay(wide)
    wide[:, :channels].copy_(images)
    return wide
