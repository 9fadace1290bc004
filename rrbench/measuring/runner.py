"""Cell -> ResultRow: runs attacks, has rejectors judge them, and writes the rows."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rrbench.compute.devices import describe
from rrbench.errors import CellError, StoppedError, UseError, first_line, no_exit, reason
from rrbench.files import provenance
from rrbench.files.arrays import save_arrays
from rrbench.files.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from rrbench.measuring.answers import Answers, has_answers, kept_of, load_answers, save_answers, shrink
from rrbench.measuring.evaluation import Attacked, fresh_member, measured, run_attack, take_over
from rrbench.measuring.materials import Materials, Source, check_accuracy
from rrbench.measuring.subject import Subject, to_numpy
from rrbench.metrics.deployment import Clean
from rrbench.names import Choice
from rrbench.planning.cells import (
    Cell,
    Plan,
    Training,
    all_trainings,
    attack_key,
    cell_key,
    clean_key,
    data_key,
    identity,
)
from rrbench.planning.units import Unit, units_of
from rrbench.plugins.registry import build
from rrbench.plugins.revisions import write
from rrbench.protocols import NO_BUDGET, Attack, Batch, Budget, Calibration, Member, Moved, Rejector, Victim
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import CLEAN, DATA, SCORES

# Has `Runner.work` do every unit, here or elsewhere; yields a unit when nothing more will be done for it.
Engine = Callable[["Runner", Sequence[Unit]], Generator[Unit, None, None]]

SHOWN = 3  # files that a line names


@dataclass
class Runner(Materials):
    """Works through a plan in one work folder."""

    keep: frozenset[str] = frozenset()  # of {"images", "features"}
    _at_hand: dict[tuple[Training, Choice, int | None, Choice | None], tuple[Checkpoint, Subject]] = field(
        default_factory=dict
    )
    _cleans: dict[str, Clean] = field(default_factory=dict)  # what rejectors say of clean inputs, by victim

    def run(self, plan: Plan, engine: Engine) -> list[ResultRow]:
        """Measure every cell that has no row yet; return the plan's rows, failed ones included.

        When the time is over it says what is left, and returns the rows that are there.
        """
        self.store.prepare()
        units = self.units(plan)
        to_do, done = Counter(training for unit in units for training in unit.trainings), set[str]()
        with closing(engine(self, units)) as finished:
            for unit in finished:
                self.store.rebuild_rows(self.report)
                done.update(() if unit.is_training else self.keys(unit.cells))
                to_do.subtract(unit.trainings)
                for training in unit.trainings:
                    if not to_do[training]:
                        self._shrink_members(plan, training)
        rows = self.store.rebuild_rows(self.report)
        keys = self.keys(plan.cells)
        if self.deadline.is_over() and (left := self._left(units, done)):
            self._tell_stopped(list(left.values()), len(keys))
            return [rows[key] for key in keys if key in rows and key not in left]
        unseen = sum(key not in rows for key in keys)
        if unseen:
            raise UseError(f"{unseen} of {len(keys)} cells are not in {self.store.root}; run the same command again")
        if "features" in self.keep:
            for training, cells in plan.checkpoints().items():
                self._keep_training(self.source(training), cells[0])
        self._tell_earlier(set(keys))
        return [rows[key] for key in keys]

    def _left(self, units: Sequence[Unit], done: Collection[str]) -> dict[str, Cell]:
        """Return the cells that no unit has come to, by key; an earlier row of theirs that failed says nothing."""
        cells = [cell for unit in units if not unit.is_training for cell in unit.cells]
        return {
            key: cell
            for key, cell in zip(self.keys(cells), cells, strict=True)
            if key not in done and self.store.measured(key) is None
        }

    def _tell_stopped(self, left: Sequence[Cell], total: int) -> None:
        """Say what the time limit left to be done."""
        labels = list(dict.fromkeys(cell.label for cell in left))
        more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
        self.report.line(
            f"stopped after {self.deadline.text}: {len(left)} of {total} cells are left "
            f"({', '.join(labels[:SHOWN])}{more}); run the same command again to go on"
        )

    def _tell_earlier(self, keys: Collection[str]) -> None:
        """Say which rows differ from these in nothing but the revision of what measured them."""
        records = [record for record, _ in self.store.cells()]
        named = {_names(record) for record in records if record.key in keys}
        earlier = [record.key for record in records if record.key not in keys and _names(record) in named]
        if earlier:
            shown = ", ".join(f"cells/{key}.json" for key in earlier[:SHOWN]) + " ..." * (len(earlier) > SHOWN)
            self.report.line(
                f"{len(earlier)} older rows of the same cells, measured by other versions of the code, are also here; "
                f"to remove them, delete {shown} in {self.store.root} and run again"
            )

    def units(self, plan: Plan) -> list[Unit]:
        """Cut what a plan leaves to be done into units of work."""
        pending = self._unfinished(plan.cells)
        to_do = {cell.training for cell in pending}
        for training in plan.checkpoints() if "images" in self.keep else ():
            if training not in to_do:
                self.report.line(
                    f"--keep images comes too late for {training.trained_as}: its cells are measured already"
                )
        self._tell_harmed(self.keys(pending))
        trainings = dict.fromkeys(all_trainings(pending))
        return units_of(pending, [training for training in trainings if not self.source(training).path.is_file()])

    def _tell_harmed(self, keys: Sequence[str]) -> None:
        """Name the files for whose sake cells are measured again."""
        harmed = [names for key in keys if (names := self.store.harmed(key))]
        files = list(dict.fromkeys(name for names in harmed for name in names))
        if files:
            shown = ", ".join(files[:SHOWN]) + " ..." * (len(files) > SHOWN)
            self.report.line(
                f"gone or changed in {self.store.root}: {shown}; cells that are measured again: {len(harmed)}"
            )

    def work(self, unit: Unit) -> bool:
        """Do one unit; False where its checkpoint could not be made, and so nothing that comes after it."""
        source = self.source(unit.training)
        if not unit.is_training:
            key = self.attack_key(unit.cells[0])
            with self._failing(unit.cells, ""), self.store.lock(f"attack-{key}", self.report, self.deadline):
                self._check_time(unit.cells[0])
                self._measure(unit, source, key)
            return True
        with self._failing(unit.cells, ""):
            self.checkpoint(unit.training)
            return True
        return False

    def give_up(self, unit: Unit, reason: str) -> Unit | None:
        """Write failed rows for the cells that whoever did a unit was at; return what is left of it."""
        pending, key = self._unfinished(unit.cells), self.attack_key(unit.cells[0])
        # Once the attack is stored its cells are scored in their order, so the first without a row is to blame.
        lost = pending[:1] if not unit.is_training and has_answers(self.store, key) else pending
        self._fail(lost, "", CellError(reason))
        left = tuple(pending[len(lost) :])
        return dataclasses.replace(unit, cells=left) if left else None

    def _unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells that have no row yet."""
        return [cell for key, cell in zip(self.keys(cells), cells, strict=True) if self.store.measured(key) is None]

    def _opened(self, cell: Cell, source: Source) -> tuple[Checkpoint, Subject]:
        """Return a cell's checkpoint and its network with the data, checked; those of one checkpoint stay at hand."""
        if any(training != cell.training for training, *_ in self._at_hand):
            self._at_hand.clear()
            self._cleans.clear()
        looks = cell.rejector if build(Rejector, cell.rejector).has_look() else None
        key = cell.training, cell.dataset, cell.limit, looks
        if key not in self._at_hand:
            self._at_hand[key] = self._open(cell, source)
        return self._at_hand[key]

    def _open(self, cell: Cell, source: Source) -> tuple[Checkpoint, Subject]:
        checkpoint = self._read(cell.training, source)
        subject = self.subject(cell, checkpoint)
        check_accuracy(subject, cell, checkpoint)
        return checkpoint, subject

    def _measure(self, unit: Unit, source: Source, key: str) -> None:
        """Run one attack, or find its outputs, and score it with each rejector."""
        cells = self._unfinished(unit.cells)
        if not cells:
            return
        checkpoint, subject = self._opened(cells[0], source)
        with self._failing(cells, checkpoint.sha256):
            moved_on = self._other_network(cells[0])
            needs_features = any("features" in build(Rejector, cell.rejector).needs for cell in cells)
            wanted = {"with_features": needs_features, "with_images": "images" in self.keep}
            answers = load_answers(self.store, key, self.device, **wanted)
            if answers is None:
                attacked = self._attack(subject, source, cells[0])
                wanted = {"with_features": needs_features, "with_images": unit.is_member}
                answers = self._stored(key, attacked, is_shared=not cells[0].is_adaptive, **wanted)
            for cell in cells:
                with self._failing([cell], checkpoint.sha256):
                    if cell is not cells[0]:  # an attack that has ended gives a row at least
                        self._check_time(cell)
                    self._score(subject, checkpoint, source, cell, answers, moved_on)
            if not unit.is_member:
                shrink(self.store, key, self.keep)

    def _stored(
        self, key: str, attacked: Attacked, *, with_features: bool, with_images: bool, is_shared: bool = True
    ) -> Answers:
        """Store an attack's answers, and with them what earlier runs or this one were asked to keep.

        Whole until it has served: a run that is killed must find the features, an ensemble or a transfer the images.
        """
        kept = kept_of(self.store, key) | self.keep
        return save_answers(
            self.store,
            key,
            attacked,
            with_features=with_features or "features" in kept,
            with_images=with_images or "images" in kept,
            kept=kept,
            is_shared=is_shared,
        )

    def _keep_training(self, source: Source, cell: Cell) -> None:
        """Store what the network says of its clean training images: the t-SNE figure shows those features."""
        path = self.store.training_path(source.key)
        if path.is_file() or not source.path.is_file():
            return
        try:
            with no_exit():
                train = self.data(cell.training.dataset, "train")
                _, subject = self._opened(cell, source)
                outputs = subject.judge(train.images)
        except UseError:
            raise
        except Exception as error:
            trained_as = cell.training.trained_as
            self.report.line(f"features of the training images of {trained_as} are not kept: {first_line(error)}")
            return
        arrays = {"labels": train.labels, "prediction": outputs.logits.argmax(1), "features": outputs.features}
        save_arrays(path, {name: to_numpy(tensor) for name, tensor in arrays.items()}, compress=False)

    def _shrink_members(self, plan: Plan, training: Training) -> None:
        """Shrink what was moved on a network and kept whole for others, by this run or by one that was stopped."""
        cells = [cell for cell in plan.cells if training in cell.trainings]
        members = [cell.member(choice) for cell in cells for choice in cell.members]
        for member in dict.fromkeys(member for member in members if member.training == training):
            shrink(self.store, self.attack_key(member), self.keep)

    @contextmanager
    def _failing(self, cells: Sequence[Cell], checkpoint_sha256: str) -> Iterator[None]:
        """Turn whatever a plugin or a cell raises into failed rows; wrong use and the time limit stop the run."""
        try:
            with no_exit():
                yield
        except (UseError, StoppedError):
            raise
        except Exception as error:
            self._fail(cells, checkpoint_sha256, error)

    def _check_time(self, cell: Cell) -> None:
        """Stop before a cell when the time is over; what was attacked already is stored and need not be again."""
        if self.deadline.is_over():
            raise StoppedError(cell.label)

    def _attack(self, subject: Subject, source: Source, cell: Cell) -> Attacked:
        if cell.moved_on is not None:
            return take_over(subject, self._moved_elsewhere(cell), budget_of(cell))
        attack = build(Attack, cell.attack)
        # An attack that does not look at the rejector must not fail because one of its rejectors cannot be fitted.
        blind = Victim(subject.network, build(Rejector, cell.rejector))
        victim = self._victim(subject, source, cell) if attack.is_adaptive else blind
        gradients = attack.gradients_per_image(subject.outputs("test").logits.shape[1])
        with self.report.task(f"{cell.label} ({gradients} gradients an image)", subject.test().size) as advance:
            members = [(str(choice), self._member(cell, choice)) for choice in cell.members]
            return run_attack(subject, victim, attack, cell.attack.name, budget_of(cell), cell.seed, advance, members)

    def _moved_elsewhere(self, cell: Cell) -> Attacked:
        """Return what a transfer takes over, as the other network's own row has it: from the store, or moved now."""
        (choice,) = cell.members
        other = cell.member(choice)
        key = self.attack_key(other)
        # Transfers to several networks may be under way: the first moves the images for all.
        with self.store.lock(f"attack-{key}", self.report, self.deadline):
            found = load_answers(self.store, key, self.device, with_features=False, with_images=True)
            if found is None:
                source = self.source(other.training)
                _, subject = self._open(other, source)
                attacked = self._attack(subject, source, other)
                found = self._stored(key, attacked, with_features=False, with_images=True)
        return found.attacked

    def _other_network(self, cell: Cell) -> str:
        """Return the SHA-256 of the checkpoint that a transfer's images are moved on; of other attacks nothing."""
        if cell.moved_on is None:
            return ""
        return self._read(cell.moved_on, self.source(cell.moved_on)).sha256

    def _member(self, cell: Cell, choice: Choice) -> Member:
        """Return an attack of an ensemble: its stored answers where it was run, else the attack itself."""
        key = self.attack_key(cell.member(choice))
        stored = load_answers(self.store, key, self.device, with_features=False, with_images=True)
        ids = self.data(cell.dataset, "test").ids[: cell.limit].tolist()
        position = {identifier: index for index, identifier in enumerate(ids)}
        # Where several inputs share an id, as corruptions of one image do, answers cannot be found by it.
        if stored is None or len(position) < len(ids):
            return fresh_member(choice, budget_of(cell), cell.seed)

        def found(victim: Victim, batch: Batch) -> Moved:
            rows = torch.tensor([position[identifier] for identifier in batch.ids.tolist()], device=self.device)
            return Moved(stored.attacked.images[rows], stored.attacked.boldest_images[rows])

        return found

    def _victim(self, subject: Subject, source: Source, cell: Cell) -> Victim:
        """Return the fitted, calibrated victim, from the store where it was fitted before."""
        rejector = build(Rejector, cell.rejector)
        key = cell.victim_key(source.key)
        path = self.store.fitted_path(key)
        saved = self._read_fitted(path)
        if saved is None:
            with self.store.lock(f"fit-{key}", self.report, self.deadline):
                saved = self._read_fitted(path)
                if saved is None:
                    victim = subject.victim(rejector, needs_scale=cell.is_adaptive)
                    assert victim.calibration is not None
                    write_checkpoint(path, victim.rejector.fitted, victim.calibration._asdict())
                    return victim
        rejector.fitted = {name: tensor.to(self.device) for name, tensor in saved.tensors.items()}
        facts = {**saved.facts, "folds": tuple(saved.facts["folds"])}
        return Victim(subject.network, rejector, Calibration(**facts))

    def _read_fitted(self, path: Path) -> Checkpoint | None:
        """Read what a rejector learnt; a damaged file is named and made again."""
        if not path.is_file():
            return None
        try:
            saved = read_checkpoint(path)
            if saved.facts.keys() != set(Calibration._fields):
                raise UseError(f"{path} is no fitted rejector of this version")
            return saved
        except UseError as error:
            self.report.line(f"{error}; it is made again")
            path.unlink(missing_ok=True)
            return None

    def _score(
        self,
        subject: Subject,
        checkpoint: Checkpoint,
        source: Source,
        cell: Cell,
        answers: Answers,
        moved_on: str,
    ) -> None:
        """Turn outputs into a row and write it."""
        attacked = answers.attacked
        victim = self._victim(subject, source, cell)
        attack = build(Attack, cell.attack)
        (described,) = self.described([cell])
        key = clean_key(described)
        clean = self._cleans.get(key) or subject.clean(victim.rejector)
        self._cleans[key] = clean
        scores, columns = measured(subject, victim, attack, budget_of(cell), attacked, cell.metrics, cell.seed, clean)
        path = self.store.scores_path(cell_key(described))
        files = dict([self.store.add(DATA, data_key(described), scores.of_data())])
        files |= dict([self.store.add(CLEAN, key, scores.of_clean())])
        files[answers.file] = answers.sha256
        files[f"{SCORES}/{path.name}"] = save_arrays(path, scores.of_cell())
        row = dataclasses.replace(
            self._row(cell, checkpoint.facts.get("recipe"), moved_on),
            **columns,
            checkpoint_sha256=checkpoint.sha256,
        )
        self._save(cell, row, files)

    def _row(self, cell: Cell, recipe: object, moved_on: str = "") -> ResultRow:
        """Return a row with all that is known before measuring: what made the checkpoint, a transfer's other one."""
        settings: dict[str, object] = {
            kind: identity(choice)[1]
            for kind, choice in (
                ("rejector", cell.rejector),
                ("attack", cell.attack),
                ("framework", cell.training.framework),
            )
        }
        if recipe is not None:
            settings["recipe"] = recipe
        if cell.members:
            settings["members"] = [str(member) for member in cell.members]
        if cell.moved_on is not None:
            settings["moved_on"] = moved_on
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
            revisions=write(cell.revisions()),
        )

    def _fail(self, cells: Sequence[Cell], checkpoint_sha256: str, error: Exception) -> None:
        """Write failed rows: the reason in one line, and nothing measured."""
        for cell in self._unfinished(cells):
            self.report.line(f"failed: {cell.label}: {reason(error)}")
            row = dataclasses.replace(
                self._row(cell, None), status="failed", error=reason(error), checkpoint_sha256=checkpoint_sha256
            )
            self._save(cell, row, {})

    def _save(self, cell: Cell, row: ResultRow, files: dict[str, str]) -> None:
        (described,) = self.described([cell])
        self.store.save_cell(CellRecord(cell_key(described), attack_key(described), row, described, files))


def budget_of(cell: Cell) -> Budget:
    """Return a cell's budget; an attack without any may not move at all."""
    return cell.budget or NO_BUDGET


def _names(record: CellRecord) -> str:
    """Return all that decides a cell but its revisions."""
    return json.dumps({name: part for name, part in record.cell.items() if name != "revisions"}, sort_keys=True)
