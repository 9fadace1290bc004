"""A worker of a Ray cluster: it checks its node, then does one unit after the other."""

import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rrbench.compute.devices import tell_compiling
from rrbench.errors import UseError
from rrbench.files import provenance
from rrbench.measuring.runner import Runner
from rrbench.planning.units import Unit
from rrbench.plugins.contract import BASES
from rrbench.plugins.registry import table
from rrbench.progress import PassedOn

Send = Callable[[str], None]


@dataclass(frozen=True)
class Orders:
    """The values that every worker of a run gets; all can be sent to other machines."""

    runner: Runner
    sign: Path  # a file in the work folder that exists during the run
    zoo: str
    version: str


class Worker:
    """A process with its own GPU or core; networks and data stay in memory between units."""

    def __init__(self, orders: Orders, send: Send) -> None:
        self.orders, self.runner, self.materials = orders, orders.runner, orders.runner.materials
        self.materials.report = PassedOn(send)
        tell_compiling(self.materials.device, self.materials.report)
        os.environ["RRBENCH_ZOO"] = orders.zoo
        if self.materials.device.type == "cpu":
            torch.set_num_threads(1)  # each core has its own worker
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the process that started the run has warned of broken plugins
            for kind in BASES:
                table(kind)
        warnings.showwarning = lambda message, *rest, **more: send(f"rrbench: warning: {message}")

    def check(self) -> None:
        """Refuse a node that lacks the work folder or a GPU, or has another version of rrbench."""
        node, root = platform.node(), self.materials.store.root
        if not self.orders.sign.is_file():
            raise UseError(f"node {node} does not see the work folder {root}: --out must lie where all nodes see it")
        if provenance.version() != self.orders.version:
            raise UseError(f"node {node} has rrbench {provenance.version()}, not {self.orders.version}")
        if self.materials.device.type == "cuda" and not torch.cuda.is_available():
            raise UseError(f"PyTorch on node {node} cannot use its GPU")

    def work(self, unit: Unit, keys: list[str]) -> bool:
        """Do one unit; its cells must have the same keys here as in the process that started the run."""
        if self.materials.keys(unit.cells) != keys:
            raise UseError(f"node {platform.node()} has another version of rrbench, of a plugin or of the zoo")
        return self.runner.work(unit)
