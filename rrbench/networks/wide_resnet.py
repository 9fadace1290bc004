"""Wide residual networks (Zagoruyko and Komodakis, 2016, arXiv 1605.07146)."""

from dataclasses import dataclass

from torch import nn

from rrbench.networks.composed import Composed
from rrbench.networks.preact_resnet import ResidualBackbone
from rrbench.protocols import DataInfo, NetworkSource, Rejector


@dataclass(frozen=True)
class WideResNet34(NetworkSource):
    """WRN-34-10 without dropout."""

    about = "wide ResNet of depth 34 and widening 10, 46.2 million parameters"

    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Build three groups of five blocks and initialise them, including the rejector's head."""
        backbone = ResidualBackbone(info.shape[0], stem=16, widths=(160, 320, 640), blocks=5)
        return initialise(Composed(info, backbone, 640, rejector))


def initialise(network: nn.Module) -> nn.Module:
    """Draw convolutions from He's normal distribution over their outputs and set every linear bias to zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return network
