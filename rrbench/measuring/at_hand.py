"""Opens a checkpoint and keeps it in memory: its network with the data, its victims, their clean certainties."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from rrbench.errors import UseError
from rrbench.files.arrays import save_arrays
from rrbench.files.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from rrbench.files.decoding import from_json
from rrbench.lending import kept
from rrbench.measuring.materials import Materials, Source, check_accuracy
from rrbench.measuring.measured_network import MeasuredNetwork, to_numpy
from rrbench.metrics.deployment import CleanScores
from rrbench.names import Choice
from rrbench.planning.cells import Cell, Training
from rrbench.planning.sample import Sample
from rrbench.plugins.registry import build
from rrbench.protocols import Calibration, Rejector, Victim

# The checkpoint, the data, which of them are measured and, if it has `look`, the rejector.
NetworkKey = tuple[Training, Choice, Sample, Choice | None]


class Opened(NamedTuple):
    """A checkpoint, and its network with the data of a cell."""

    source: Source
    checkpoint: Checkpoint
    measured: MeasuredNetwork


@dataclass
class AtHand:
    """Opens checkpoints; the last one stays in memory, since the cells of a checkpoint follow each other."""

    materials: Materials
    _opened: dict[NetworkKey, Opened] = field(default_factory=dict)
    _cleans: dict[str, CleanScores] = field(default_factory=dict)  # certainties on clean inputs, by victim

    def opened(self, cell: Cell) -> Opened:
        """Return a cell's checkpoint and its network with the data, checked; forget every other checkpoint."""
        if any(training != cell.training for training, *_ in self._opened):
            self._opened.clear()
            self._cleans.clear()
        looks = cell.rejector if build(Rejector, cell.rejector).has_look() else None
        wanted = cell.training, cell.dataset, cell.sample, looks
        if wanted not in self._opened:
            self._opened[wanted] = self.open_apart(cell)
        return self._opened[wanted]

    def open_apart(self, cell: Cell) -> Opened:
        """Open a cell's checkpoint without remembering it; the checkpoint in memory stays there."""
        source = self.materials.source(cell.training)
        checkpoint = self.materials.read(cell.training, source)
        measured = self.materials.measured_network(cell, checkpoint)
        check_accuracy(measured, cell, checkpoint)
        return Opened(source, checkpoint, measured)

    def clean(self, key: str, measured: MeasuredNetwork, rejector: Rejector) -> CleanScores:
        """Return the rejector's certainties on clean inputs, computed once; `key` names the victim."""
        if key not in self._cleans:
            self._cleans[key] = measured.clean(rejector)
        return self._cleans[key]

    def victim(self, opened: Opened, cell: Cell) -> Victim:
        """Return the fitted, calibrated victim; read the fit from the store if it is there."""
        materials, rejector = self.materials, build(Rejector, cell.rejector)
        key = cell.victim_key(opened.source.key)
        path = materials.store.fitted_path(key)
        saved = self.read_fitted(path)
        if saved is None:
            with materials.store.lock(f"fit-{key}", materials.report, materials.deadline):
                saved = self.read_fitted(path)
                if saved is None:
                    with kept(opened.measured.network, partial(changed_while, cell.rejector)):
                        victim = opened.measured.victim(rejector, needs_scale=cell.is_adaptive)
                    assert victim.calibration is not None
                    write_checkpoint(path, victim.rejector.fitted, victim.calibration._asdict())
                    return victim
        tensors, calibration = saved
        rejector.fitted = {name: tensor.to(materials.device) for name, tensor in tensors.items()}
        return Victim(opened.measured.network, rejector, calibration)

    def read_fitted(self, path: Path) -> tuple[Mapping[str, Tensor], Calibration] | None:
        """Read a rejector's fit; report and delete a damaged file, so that the fit is made again."""
        if not path.is_file():
            return None
        try:
            saved = read_checkpoint(path)
            if saved.facts.keys() != set(Calibration._fields):
                raise TypeError
            return saved.tensors, from_json(Calibration, saved.facts, "a calibration")
        except (UseError, TypeError) as error:
            said = error if isinstance(error, UseError) else f"{path} is no fitted rejector of this version"
            self.materials.report.line(f"{said}; it is made again")
            path.unlink(missing_ok=True)
            return None

    def keep_training(self, cell: Cell, path: Path) -> None:
        """Store the network's predictions and features of its clean training images, for the t-SNE figure."""
        train = self.materials.data(cell.training.dataset, "train")
        outputs = self.opened(cell).measured.judge(train.images)
        arrays = {"labels": train.labels, "prediction": outputs.logits.argmax(1), "features": outputs.features}
        save_arrays(path, {name: to_numpy(tensor) for name, tensor in arrays.items()}, compress=False)


def changed_while(rejector: Choice, what: str) -> str:
    """Return the message for a rejector that writes into the network, which its user may need again."""
    return f"the network's {what} was changed while {rejector} was measured"
