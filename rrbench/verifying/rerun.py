"""Repeats the fit, the attack and the measuring of a cell, and compares all results."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from rrbench.compute.devices import describe
from rrbench.errors import UseError
from rrbench.files import provenance
from rrbench.files.checkpoints import read_checkpoint
from rrbench.measuring.evaluation import Attacked, columns_of, fresh_members, run_attack, scores_and_columns, take_over
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.planning.cells import victim_key
from rrbench.plugins.registry import restore
from rrbench.protocols import Victim
from rrbench.rows.record import CellRecord
from rrbench.rows.scores import Scores
from rrbench.verifying.claims import elsewhere
from rrbench.verifying.networks import Networks
from rrbench.verifying.replay import other_clean_scores
from rrbench.verifying.restored import attack_of, budget_of, is_ensemble, rejector_of
from rrbench.verifying.tolerance import EXACT, ROUNDED, SHORT, Tolerance, disagreements, new_notes


@dataclass(frozen=True)
class Reruns:
    """Repeats the attacks of a folder's cells; the last one serves all rejectors that share it."""

    networks: Networks
    new_notes: Counter[str] = field(default_factory=Counter)  # {note: rows of other code that lack it}
    _attacked: dict[str, Attacked] = field(default_factory=dict)  # the last attack that was repeated

    def differences(self, record: CellRecord, measured: MeasuredNetwork, scores: Scores) -> Iterator[str]:
        """Measure a cell again; yield one line for each difference that its tolerance does not allow."""
        cell, tolerance = record.cell, self.tolerance(record)
        victim = measured.victim(rejector_of(record), needs_scale=cell["is_adaptive"])
        clean = measured.clean(victim.rejector)
        yield from other_clean_scores(clean, scores)
        yield from self._other_fit(record, victim, tolerance)
        attacked = self._attack(record, measured, victim)
        again, columns = scores_and_columns(
            measured,
            victim,
            attack_of(record),
            budget_of(record),
            attacked,
            record.metrics,
            record.row.seed,
            clean,
        )
        rounded = again.rounded(like=scores)
        if rounded is not again:  # `rrbench join --short` stores such scores and the row that follows from them
            columns |= columns_of(rounded, record.metrics, record.row.seed)
        is_older = (record.row.version, record.row.commit) != (provenance.version(), provenance.commit())
        if is_older:
            self.new_notes.update(new_notes(record.row, columns["note"], tolerance))
        yield from disagreements(
            record.row, scores, rounded, columns, tolerance, is_ensemble=is_ensemble(record), is_older=is_older
        )

    def _attack(self, record: CellRecord, measured: MeasuredNetwork, victim: Victim) -> Attacked:
        """Repeat an attack, once for all rejectors of a checkpoint that share it."""
        if record.attack not in self._attacked:
            attacked = self._repeated(record, measured, victim)
            self._attacked.clear()
            self._attacked[record.attack] = attacked
        return self._attacked[record.attack]

    def _repeated(self, record: CellRecord, measured: MeasuredNetwork, victim: Victim) -> Attacked:
        budget, seed = budget_of(record), record.row.seed
        if "moved_on" in record.cell:
            return take_over(measured, self._moved_elsewhere(record), budget)
        choices = [restore("attack", saved) for saved in record.cell["members"]]
        members = fresh_members(choices, budget, seed)
        name = record.cell["attack"][0]
        return run_attack(measured, victim, attack_of(record), name, budget, seed, lambda done: None, members)

    def _moved_elsewhere(self, record: CellRecord) -> Attacked:
        """Repeat the attack behind a transfer, on the other network."""
        path, _ = self.networks.find_source(record)
        assert path is not None  # else the transfer is not repeated
        checkpoint = self.networks.read(path)
        other = elsewhere(record, checkpoint.facts)
        measured = self.networks.measured(other, checkpoint)
        return self._attack(other, measured, Victim(measured.network, rejector_of(other)))

    def tolerance(self, record: CellRecord) -> Tolerance:
        """Return how far a rerun may differ from a row: not at all on the same machine with the same packages.

        Exceptions: a GPU sums in no fixed order; an ensemble may have used members' answers made in other batches.
        """
        row, device = record.row, self.networks.inputs.device
        here = {"device": describe(device), "packages": provenance.packages(), "machine": provenance.machine()}
        said = {name: getattr(row, name) for name in ("device", "precision", "version", "commit")}
        is_same = row.device == here["device"] and any(
            all(run.get(name) == value for name, value in (here | said).items()) for run in self._runs()
        )
        if is_same and device.type == "cpu" and not is_ensemble(record):
            return EXACT
        return ROUNDED if row.precision == "fp32" else SHORT

    def _runs(self) -> list[dict[str, Any]]:
        """Return the runs in the folder's manifest; none if the manifest is damaged."""
        try:
            return self.networks.store.runs()
        except UseError:
            return []

    def _other_fit(self, record: CellRecord, victim: Victim, tolerance: Tolerance) -> Iterator[str]:
        """Compare the stored fit of a rejector with a new fit: later runs use the stored fit without a check."""
        path = self.networks.store.fitted_path(victim_key(record.cell))
        if not path.is_file():
            return
        saved, slack = read_checkpoint(path), tolerance.half or 1e-12
        learnt = {name: tensor.cpu() for name, tensor in victim.rejector.fitted.items()}
        for name, value in (victim.calibration._asdict() if victim.calibration else {}).items():
            learnt[f"calibration {name}"] = torch.tensor(value, dtype=torch.float64)
        there = {**saved.tensors}
        there |= {
            f"calibration {name}": torch.tensor(value, dtype=torch.float64) for name, value in saved.facts.items()
        }
        if there.keys() != learnt.keys() or not all(_is_same(there[name], learnt[name], slack) for name in learnt):
            yield f"fitted/{path.name} is not what a fit gives: delete it, and measure again"


def _is_same(one: torch.Tensor, other: torch.Tensor, slack: float) -> bool:
    """Compare tensors up to a share of the largest value."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    largest = float(other.double().nan_to_num().abs().amax()) if other.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=0, atol=slack * largest, equal_nan=True)
