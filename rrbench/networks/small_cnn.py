"""A convolutional network of three layers, for digits and for quick trials."""

from dataclasses import dataclass

from torch import nn

from rrbench.networks.composed import Composed, GlobalAverage
from rrbench.networks.small_maps import SmallMapConvolution
from rrbench.protocols import DataInfo, NetworkSource, Rejector
from rrbench.ranges import at_least


@dataclass(frozen=True)
class SmallCnn(NetworkSource):
    """Three convolutions of width, 2 width and 4 width channels, the last two with stride 2, and an average."""

    about = "three convolutions, about 24 thousand parameters at width 16"

    width: int = 16

    def __post_init__(self) -> None:
        at_least(1, width=self.width)

    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Build the network with PyTorch's default initialisation."""
        width = self.width
        backbone = nn.Sequential(
            *_layer(info.shape[0], width, stride=1),
            *_layer(width, 2 * width, stride=2),
            *_layer(2 * width, 4 * width, stride=2),
            GlobalAverage(),
        )
        return Composed(info, backbone, 4 * width, rejector)


def _layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    convolution = SmallMapConvolution(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU()
