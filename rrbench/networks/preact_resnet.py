"""Residual networks with pre-activation (He et al., 2016, arXiv 1603.05027)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.networks.composed import Composed, GlobalAverage
from rrbench.networks.fast.residual import FastResidual
from rrbench.protocols import DataInfo, NetworkSource, Rejector


class Block(nn.Module):
    """Two 3x3 convolutions, each after its batch norm and ReLU, added to a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        is_same_shape = stride == 1 and inputs == outputs
        self.shortcut = None if is_same_shape else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the sum; a convolved shortcut starts at the pre-activated input, an identity at the raw one."""
        active = F.relu(self.norm1(maps))
        shortcut = maps if self.shortcut is None else self.shortcut(active)
        inner: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return inner + shortcut


class ResidualBackbone(nn.Sequential):
    """A stem, groups of blocks (each group but the first halves the image) and a final average."""

    def __init__(self, channels: int, stem: int, widths: Sequence[int], blocks: int) -> None:
        super().__init__(
            nn.Conv2d(channels, stem, 3, padding=1, bias=False),
            *_blocks(stem, widths, blocks),
            nn.BatchNorm2d(widths[-1]),
            nn.ReLU(),
            GlobalAverage(),
        )

    def twin(self, dtype: torch.dtype) -> FastResidual:
        """Return a backbone on the same weights that computes gradients of images, or of weights, faster."""
        stem, *blocks, norm, _, _ = self
        return FastResidual(cast(nn.Conv2d, stem), blocks, cast(nn.BatchNorm2d, norm), dtype)


def _blocks(inputs: int, widths: Sequence[int], blocks: int) -> Iterator[Block]:
    for group, width in enumerate(widths):
        for position in range(blocks):
            yield Block(inputs, width, stride=2 if group and not position else 1)
            inputs = width


@dataclass(frozen=True)
class PreActResNet18(NetworkSource):
    """ResNet-18 with pre-activation; PyTorch's default initialisation."""

    about = "pre-activation ResNet-18, 11.2 million parameters"

    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Build four groups of two blocks."""
        backbone = ResidualBackbone(info.shape[0], stem=64, widths=(64, 128, 256, 512), blocks=2)
        return Composed(info, backbone, 512, rejector)
