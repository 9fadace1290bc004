"""A convolutional network of three layers, for digits and for quick trials."""

from dataclasses import dataclass

from torch import nn

from rrbench.networks.composed import Composed, GlobalAverage
from rrbench.protocols import DataInfo, NetworkSource, Rejector


@dataclass(frozen=True)
class SmallCnn(NetworkSource):
    """Three convolutions of width, 2 width and 4 width channels, and an average."""

    about = "three convolutions, about 24 thousand parameters at width 16"

    width: int = 16

    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Build it in PyTorch's default initialisation."""
        width = self.width
        backbone = nn.Sequential(
            *_layer(info.shape[0], width),
            *_layer(width, 2 * width),
            nn.MaxPool2d(2, ceil_mode=True),  # ceil: an image of one pixel is still an image
            *_layer(2 * width, 4 * width),
            GlobalAverage(),
        )
        return Composed(info, backbone, 4 * width, rejector)


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
