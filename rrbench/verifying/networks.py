"""Finds the checkpoints of cells, in the work folder or in a zoo, and builds their networks."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from rrbench import zoo
from rrbench.compute.devices import Precision, place
from rrbench.compute.looking import with_looks
from rrbench.files.checkpoints import Checkpoint, load_weights, read_trained
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.planning.sample import Sample
from rrbench.plugins.registry import build, restore
from rrbench.protocols import DataSource, NetworkSource
from rrbench.rows.record import CellRecord
from rrbench.rows.row import stated
from rrbench.verifying.inputs import Inputs
from rrbench.verifying.restored import rejector_of

IN_MEMORY = 8  # networks, and checkpoints


@dataclass(frozen=True)
class Networks:
    """The networks of a folder's cells; the last few stay in memory."""

    store: Store
    inputs: Inputs
    _in_zoo: dict[str, tuple[Path | None, zoo.Entry | None]] = field(default_factory=dict)
    _checkpoints: dict[Path, Checkpoint] = field(default_factory=dict)
    _measured: dict[tuple[str, ...], MeasuredNetwork] = field(default_factory=dict)

    def find(self, record: CellRecord) -> tuple[Path | None, zoo.Entry | None]:
        """Find a cell's checkpoint in this folder, else in a zoo; a zoo may list a checkpoint without its file."""
        return self._find(record.checkpoint, record.row.checkpoint_sha256)

    def find_source(self, record: CellRecord) -> tuple[Path | None, zoo.Entry | None]:
        """Find the checkpoint that a transfer's images were moved on."""
        return self._find(record.cell["moved_on"], stated(record.row)["moved_on"])

    def _find(self, key: str, sha256: str) -> tuple[Path | None, zoo.Entry | None]:
        own = self.store.checkpoint_files(key).chosen
        if own.is_file():
            return own, None
        if sha256 not in self._in_zoo:
            self._in_zoo[sha256] = zoo.find_hash(sha256) or (None, None)
        return self._in_zoo[sha256]

    def read(self, path: Path) -> Checkpoint:
        """Return a checkpoint, read and hashed once."""
        if path not in self._checkpoints:
            _make_room(self._checkpoints)
            self._checkpoints[path] = read_trained(path)
        return self._checkpoints[path]

    def measured(self, record: CellRecord, checkpoint: Checkpoint) -> MeasuredNetwork:
        """Return the network that a cell was measured on, built once for all cells of a checkpoint."""
        cell = record.cell
        said = tuple(str(cell[name]) for name in ("dataset", "network", "trained_on"))
        said += (str(Sample.of_cell(cell)),)
        if rejector_of(record).has_look():
            said += (str(cell["rejector"]),)
        key = (checkpoint.sha256, record.row.precision, *said)
        if key not in self._measured:
            _make_room(self._measured)
            self._measured[key] = self._build(record, checkpoint)
        return self._measured[key]

    def _build(self, record: CellRecord, checkpoint: Checkpoint) -> MeasuredNetwork:
        cell, rejector, device = record.cell, rejector_of(record), self.inputs.device
        home = build(DataSource, restore("dataset", cell["trained_on"]))
        source = build(NetworkSource, restore("network", cell["network"]))
        network = source.build(home.info, rejector)
        if source.has_weights:
            network = network.to(device)
        else:
            load_weights(network, checkpoint)
            network = place(network, device)
        precision = cast(Precision, record.row.precision)
        load = partial(self.inputs.load_if_any, record)
        sample = Sample.of_cell(cell)
        return MeasuredNetwork(with_looks(network, rejector), load, device, precision, sample)


def _make_room(kept: dict[Any, Any]) -> None:
    """Forget the oldest entry if there are too many for another one."""
    if len(kept) == IN_MEMORY:
        kept.pop(next(iter(kept)))
