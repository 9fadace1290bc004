"""The architectures, one small file for each kind; this table lists all of them."""

from rrbench.networks.from_file import FromFile
from rrbench.networks.preact_resnet import PreActResNet18
from rrbench.networks.small_cnn import SmallCnn
from rrbench.networks.wide_resnet import WideResNet34
from rrbench.protocols import NetworkTable

NETWORKS: NetworkTable = {
    "small-cnn": SmallCnn,
    "resnet18": PreActResNet18,
    "wrn34-10": WideResNet34,
    "file": FromFile,
}
