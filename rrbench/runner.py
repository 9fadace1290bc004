"""Cell -> ResultRow: the only file that sees every stage."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rrbench import provenance, zoo
from rrbench.checkpoints import Checkpoint, load_weights, read_checkpoint, unpack_bits, write_checkpoint
from rrbench.datasets.check import check_batch, fingerprint
from rrbench.devices import Precision, describe, place
from rrbench.errors import CellError, UseError, first_line
from rrbench.evaluation import (
    KEPT_IMAGES,
    Attacked,
    Subject,
    distances_of,
    metrics_of,
    notes,
    run_attack,
    score,
    to_numpy,
)
from rrbench.names import Choice
from rrbench.plan import Cell, Plan, Training, digest, identity
from rrbench.progress import Report, Silent
from rrbench.protocols import Attack, Batch, Budget, Calibration, DataSource, Outputs, Rejector, Split, Victim
from rrbench.registry import build
from rrbench.rows import ResultRow
from rrbench.store import CellRecord, Store, load_arrays, save_arrays
from rrbench.train import build_network, train


@dataclass(frozen=True)
class Source:
    """Where a training's checkpoint is, or will be once trained."""

    path: Path
    key: str  # decides whether work that used it can be used again


@dataclass
class Runner:
    """Works through a plan in one work folder."""

    store: Store
    device: torch.device
    precision: Precision
    roots: tuple[Path, ...]
    use_large_zoo: bool = False
    retrain: bool = False
    keep: frozenset[str] = frozenset()  # of {"images", "features"}
    report: Report = field(default_factory=Silent)
    _data: dict[tuple[Choice, Split], Batch] = field(default_factory=dict)

    def run(self, plan: Plan) -> list[ResultRow]:
        """Measure every cell that has no row yet; return the plan's rows, failed ones included."""
        self.store.prepare()
        rows: list[ResultRow] = []
        for training, cells in plan.checkpoints().items():
            source = self.source(training)
            if any(self._finished(cell, source) is None for cell in cells):
                self._measure(training, source, cells)
            for cell in cells:
                record = self.store.cell(cell.key(source.key, self.precision))
                assert record is not None
                rows.append(record.row)
        return rows

    def source(self, training: Training) -> Source:
        """Find a training's checkpoint: the zoo asked for, the embedded zoo, else this work folder."""
        if self.use_large_zoo:
            named = (str(training.dataset), str(training.network), training.trained_as, training.seed)
            found = zoo.find_named(zoo.large_zoo(), *named) or zoo.find_named(zoo.EMBEDDED, *named)
            if found is None:
                raise UseError(f"no checkpoint {training.trained_as} for {training.dataset} in {zoo.large_zoo()}")
            return Source(found[0], found[1].sha256[:24])
        embedded = None if self.retrain else zoo.find(training.key)
        if embedded is not None:
            return Source(embedded[0], embedded[1].sha256[:24])
        return Source(self.store.checkpoint_files(training.key).chosen, training.key)

    def checkpoint(self, training: Training) -> Checkpoint:
        """Return a training's checkpoint, training it first where nobody has."""
        source = self.source(training)
        files = self.store.checkpoint_files(training.key)
        if source.path == files.chosen:
            with self.store.lock(f"train-{training.key}", self.report):
                if not source.path.is_file():
                    train(
                        training,
                        lambda split: self.data(training.dataset, split),
                        files,
                        device=self.device,
                        precision=self.precision,
                        report=self.report,
                    )
        checkpoint = read_checkpoint(source.path)
        if source.path != files.chosen and not checkpoint.sha256.startswith(source.key):
            raise UseError(f"checkpoint {source.path} does not have the SHA-256 of its index: damaged or replaced")
        return checkpoint

    def data(self, dataset: Choice, split: Split) -> Batch:
        """Return a split of a data set on the device, loaded and checked once."""
        if (dataset, split) not in self._data:
            source = build(DataSource, dataset)
            batch = source.load(split, self.roots)
            check_batch(batch, source.info.classes, f"{dataset} ({split})")
            self._data[dataset, split] = batch.to(self.device)
        return self._data[dataset, split]

    def subject(self, cell: Cell, checkpoint: Checkpoint) -> Subject:
        """Build a cell's network and put the checkpoint's weights into it."""
        info = build(DataSource, cell.training.dataset).info
        network = build_network(cell.training, info, build(Rejector, cell.training.rejector))
        load_weights(network, checkpoint)
        network = place(network, self.device)
        return Subject(network, lambda split: self.data(cell.dataset, split), self.device, self.precision, cell.limit)

    def _finished(self, cell: Cell, source: Source) -> CellRecord | None:
        record = self.store.cell(cell.key(source.key, self.precision))
        return record if record and record.row.status == "ok" else None

    def _measure(self, training: Training, source: Source, cells: list[Cell]) -> None:
        """Measure the cells of one checkpoint, an attack at a time."""
        subjects: dict[Choice, Subject] = {}
        with self._failing(cells, source, ""):
            checkpoint = self.checkpoint(training)
            for cell in cells:
                if cell.dataset not in subjects:
                    subjects[cell.dataset] = self.subject(cell, checkpoint)
                    check_accuracy(subjects[cell.dataset], cell, checkpoint)
            groups: dict[str, list[Cell]] = {}
            for cell in cells:
                groups.setdefault(cell.attack_key(source.key, self.precision), []).append(cell)
            for key, group in groups.items():
                with self.store.lock(f"attack-{key}", self.report):
                    pending = [cell for cell in group if self._finished(cell, source) is None]
                    if pending:
                        self._measure_group(subjects[group[0].dataset], checkpoint, source, key, pending)
                self.store.rebuild_rows(self.report)

    def _measure_group(
        self, subject: Subject, checkpoint: Checkpoint, source: Source, key: str, cells: list[Cell]
    ) -> None:
        """Run one attack, or find its outputs, and score it with each rejector."""
        with self._failing(cells, source, checkpoint.sha256):
            needs_features = any("features" in build(Rejector, cell.rejector).needs for cell in cells)
            attacked = self._load_moved(key, needs_features)
            if attacked is None:
                attacked = self._attack(subject, source, cells[0])
                self._save_moved(key, attacked, needs_features or "features" in self.keep)
            for cell in cells:
                with self._failing([cell], source, checkpoint.sha256):
                    self._score(subject, checkpoint, source, cell, attacked)
            if needs_features and "features" not in self.keep:
                self._save_moved(key, attacked, False)

    @contextmanager
    def _failing(self, cells: list[Cell], source: Source, checkpoint_sha256: str) -> Iterator[None]:
        """Turn whatever a plugin or a cell raises into failed rows; wrong use stops the run."""
        try:
            yield
        except UseError:
            raise
        except Exception as error:
            self._fail(cells, source, checkpoint_sha256, error)

    def _attack(self, subject: Subject, source: Source, cell: Cell) -> Attacked:
        attack = build(Attack, cell.attack)
        # An attack that does not look at the rejector must not fail because one of its rejectors cannot be fitted.
        blind = Victim(subject.network, build(Rejector, cell.rejector))
        victim = self._victim(subject, source, cell) if attack.is_adaptive else blind
        gradients = attack.gradients_per_image(subject.outputs("test").logits.shape[1])
        with self.report.task(f"{cell.label} ({gradients} gradients an image)", subject.test().size) as advance:
            budget = cell.budget or Budget("linf", Fraction(0))
            return run_attack(subject, victim, attack, cell.attack.name, budget, cell.seed, advance)

    def _victim(self, subject: Subject, source: Source, cell: Cell) -> Victim:
        """Return the fitted, calibrated victim, from the store where it was fitted before."""
        rejector = build(Rejector, cell.rejector)
        parts = {"checkpoint": source.key, "dataset": identity(cell.dataset), "rejector": identity(cell.rejector)}
        path = self.store.fitted_path(digest(**parts, is_attacked=cell.is_adaptive))
        if path.is_file():
            saved = read_checkpoint(path)
            rejector.fitted = {name: tensor.to(self.device) for name, tensor in saved.tensors.items()}
            return Victim(subject.network, rejector, Calibration(**saved.facts))
        victim = subject.victim(rejector, is_attacked=cell.is_adaptive)
        assert victim.calibration is not None
        write_checkpoint(path, rejector.fitted, victim.calibration._asdict())
        return victim

    def _score(self, subject: Subject, checkpoint: Checkpoint, source: Source, cell: Cell, attacked: Attacked) -> None:
        """Turn outputs into a row and write it."""
        victim = self._victim(subject, source, cell)
        scores = score(subject, victim, attacked)
        metrics = metrics_of(scores, cell.metrics.tpr_rule, cell.metrics.resamples, cell.seed)
        key = cell.key(source.key, self.precision)
        images = {"images": to_numpy(attacked.images[: None if "images" in self.keep else KEPT_IMAGES])}
        scores_sha256 = save_arrays(self.store.scores_path(key), scores._asdict() | images)
        row = dataclasses.replace(
            self._row(cell),
            n=len(scores.labels),
            **metrics._asdict(),
            **distances_of(scores)._asdict(),
            note=notes(subject, victim.rejector),
            seconds=round(attacked.seconds, 3),
            gradients=round(attacked.gradients, 3),
            checkpoint_sha256=checkpoint.sha256,
            data_sha256=fingerprint(subject.test()),
        )
        self._save(cell, source, row, scores_sha256)

    def _row(self, cell: Cell) -> ResultRow:
        """Return a row with everything that is known before measuring."""
        settings = {
            kind: identity(choice)[1]
            for kind, choice in (
                ("rejector", cell.rejector),
                ("attack", cell.attack),
                ("framework", cell.training.framework),
            )
        }
        return ResultRow(
            dataset=str(cell.dataset),
            network=str(cell.training.network),
            framework=str(cell.training.framework),
            trained_as=cell.training.trained_as,
            rejector=str(cell.rejector),
            attack=str(cell.attack),
            norm=cell.budget.norm if cell.budget else "",
            eps=str(cell.budget.radius) if cell.budget and cell.budget.radius is not None else "",
            seed=cell.seed,
            preset=cell.preset,
            n=None,
            settings=json.dumps(settings, sort_keys=True),
            device=describe(self.device),
            precision=self.precision,
            version=provenance.version(),
            commit=provenance.commit(),
        )

    def _fail(self, cells: Iterable[Cell], source: Source, checkpoint_sha256: str, error: Exception) -> None:
        """Write failed rows: the reason in one line, and nothing measured."""
        reason = first_line(error) if isinstance(error, CellError) else f"{type(error).__name__}: {first_line(error)}"
        for cell in cells:
            if self._finished(cell, source) is not None:
                continue
            self.report.line(f"failed: {cell.label}: {reason}")
            row = dataclasses.replace(
                self._row(cell), status="failed", error=reason, checkpoint_sha256=checkpoint_sha256
            )
            self._save(cell, source, row, "")

    def _save(self, cell: Cell, source: Source, row: ResultRow, scores_sha256: str) -> None:
        key, attack = cell.key(source.key, self.precision), cell.attack_key(source.key, self.precision)
        self.store.save_cell(CellRecord(key, row, source.key, attack, scores_sha256, cell.describe()))

    def _save_moved(self, key: str, attacked: Attacked, with_features: bool) -> None:
        """Store what the network said, so that a rejector added later needs no new attack."""
        arrays = {"seconds": np.asarray(attacked.seconds), "gradients": np.asarray(attacked.gradients)}
        if attacked.distances is not None and attacked.reached is not None:
            arrays |= {"distances": to_numpy(attacked.distances), "reached": to_numpy(attacked.reached)}
        arrays["images"] = to_numpy(attacked.images[: None if "images" in self.keep else KEPT_IMAGES])
        for name, outputs in (("moved", attacked.outputs), ("boldest", attacked.boldest)):
            for part, tensor in outputs._asdict().items():
                if part != "features" or with_features:
                    arrays[f"{name}_{part}"] = to_numpy(tensor)
        save_arrays(self.store.moved_path(key), arrays, compress=False)

    def _load_moved(self, key: str, needs_features: bool) -> Attacked | None:
        """Return an attack's outputs if the store has all that is needed of them."""
        path = self.store.moved_path(key)
        if not path.is_file():
            return None
        arrays = load_arrays(path)
        if needs_features and "moved_features" not in arrays:
            return None

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(arrays[name]).to(self.device)

        def outputs(name: str) -> Outputs:
            logits = tensor(f"{name}_logits")
            features = tensor(f"{name}_features") if f"{name}_features" in arrays else logits.new_zeros(len(logits), 0)
            return Outputs(features, logits, tensor(f"{name}_head"))

        seconds, gradients = float(arrays["seconds"]), float(arrays["gradients"])
        minimal = (tensor("distances"), tensor("reached")) if "distances" in arrays else (None, None)
        return Attacked(outputs("moved"), outputs("boldest"), tensor("images"), seconds, gradients, *minimal)


def check_accuracy(subject: Subject, cell: Cell, checkpoint: Checkpoint) -> None:
    """Stop where a checkpoint does not classify as it did when it was written: wrong data or preprocessing."""
    if "clean_correct" not in checkpoint.facts or cell.dataset != cell.training.dataset:
        return
    test = subject.test()
    correct = (subject.outputs("test").logits.argmax(1) == test.labels).cpu()
    expected = unpack_bits(checkpoint.facts["clean_correct"])[: len(correct)]
    differ = int((correct[: len(expected)] != expected).sum())
    if len(expected) < len(correct) or differ > 1 + 0.005 * len(correct):
        raise CellError(
            f"checkpoint {checkpoint.path.name} gives {100 * float(correct.double().mean()):.2f} % clean accuracy "
            f"and {100 * float(expected.double().mean()):.2f} % was expected: wrong data or preprocessing"
        )
