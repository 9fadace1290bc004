"""The data sets, one small file for each kind; this table lists all of them."""

from rrbench.datasets.cifar import Cifar10, Cifar100
from rrbench.datasets.cifar10_c import Cifar10C
from rrbench.datasets.cifar10_c_made import Cifar10CMade
from rrbench.datasets.digits import Digits
from rrbench.datasets.folder import Folder
from rrbench.datasets.npz import Npz
from rrbench.protocols import DataTable

DATASETS: DataTable = {
    "digits": Digits,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "cifar10-c": Cifar10C,
    "cifar10-c-made": Cifar10CMade,
    "npz": Npz,
    "folder": Folder,
}
