"""Directs the work on a plan: finds the units that are left, records failures, reports; its parts do the work."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from rrbench.errors import CellError, StoppedError, UseError, first_line, no_exit, reason
from rrbench.measuring.at_hand import AtHand
from rrbench.measuring.attacking import Attacks
from rrbench.measuring.materials import Materials, made_otherwise
from rrbench.measuring.row_writer import RowWriter
from rrbench.planning.cells import Cell, Plan, all_trainings
from rrbench.planning.units import Unit, units_of
from rrbench.plugins.registry import build
from rrbench.protocols import DataSource
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow
from rrbench.zoo import EMBEDDED, large_zoo, shown_zoo

# Calls `Runner.work` for every unit, in this or another process; yields a unit when its work has ended.
Engine = Callable[["Runner", Sequence[Unit]], Generator[Unit, None, None]]

SHOWN = 3  # files that a line names


@dataclass
class Runner:
    """Works through a plan in one work folder."""

    materials: Materials
    keep: frozenset[str] = frozenset()  # of {"images", "features"}
    at_hand: AtHand = field(init=False)
    attacks: Attacks = field(init=False)
    rows: RowWriter = field(init=False)

    def __post_init__(self) -> None:
        self.at_hand = AtHand(self.materials)
        self.attacks = Attacks(self.materials, self.at_hand, self.keep)
        self.rows = RowWriter(self.materials, self.at_hand)

    def bare(self) -> "Runner":
        """Return a copy to send to another machine: nothing in memory, silent, with absolute paths."""
        return Runner(self.materials.bare(), self.keep)

    def run(self, plan: Plan, engine: Engine) -> list[ResultRow]:
        """Measure every cell that has no row yet; return the rows of the plan, failed rows included.

        When the time is over, report which cells are left, and return the finished rows.
        """
        materials, store = self.materials, self.materials.store
        store.prepare()
        materials.check_inputs(plan)
        units = self.units(plan)
        self._tell_shipped(units)
        done = self._work_through(plan, units, engine)
        rows = store.rebuild_rows(materials.report)
        keys = materials.keys(plan.cells)
        if materials.deadline.is_over() and (left := self._left(units, done)):
            materials.report.line(_stopped(materials.deadline.text, list(left.values()), len(keys)))
            return [rows[key] for key in keys if key in rows and key not in left]
        unseen = sum(key not in rows for key in keys)
        if unseen:
            raise UseError(f"{unseen} of {len(keys)} cells are not in {store.root}; run the same command again")
        if "features" in self.keep:
            for cells in plan.checkpoints().values():
                self._keep_training(cells[0])
        self._tell_earlier(set(keys))
        return [rows[key] for key in keys]

    def _work_through(self, plan: Plan, units: Sequence[Unit], engine: Engine) -> set[str]:
        """Let the engine do every unit; return the keys of the cells in finished units."""
        materials = self.materials
        to_do, done = Counter(training for unit in units for training in unit.trainings), set[str]()
        with closing(engine(self, units)) as finished:
            for unit in finished:
                materials.store.rebuild_rows(materials.report)
                done.update(() if unit.is_training else materials.keys(unit.cells))
                to_do.subtract(unit.trainings)
                for training in unit.trainings:
                    if not to_do[training]:
                        self.attacks.shrink_members(plan, training)
        return done

    def _left(self, units: Sequence[Unit], done: Collection[str]) -> dict[str, Cell]:
        """Return the cells that this run has not reached, by key, also if an earlier run left a failed row."""
        cells = [cell for unit in units if not unit.is_training for cell in unit.cells]
        pending = self._unfinished(cells)
        return {key: cell for key, cell in zip(self.materials.keys(pending), pending, strict=True) if key not in done}

    def _unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells that have no sound, measured row yet."""
        store, keys = self.materials.store, self.materials.keys(cells)
        return [cell for key, cell in zip(keys, cells, strict=True) if store.measured(key) is None]

    def units(self, plan: Plan) -> list[Unit]:
        """Cut the unfinished cells of a plan into units of work."""
        pending = self._unfinished(plan.cells)
        to_do = {cell.training for cell in pending}
        for training in plan.checkpoints() if "images" in self.keep else ():
            if training not in to_do:
                self.materials.report.line(
                    f"--keep images comes too late for {training.trained_as}: its cells are measured already"
                )
        self._tell_harmed(self.materials.keys(pending))
        trainings = dict.fromkeys(all_trainings(pending))
        missing = [training for training in trainings if not self.materials.source(training).is_there]
        return units_of(pending, missing)

    def work(self, unit: Unit) -> bool:
        """Do one unit; return False if its checkpoint could not be made: units that come after it cannot be done."""
        materials = self.materials
        if not unit.is_training:
            lock = f"attack-{materials.attack_key(unit.cells[0])}"
            with self._failing(unit.cells), materials.store.lock(lock, materials.report, materials.deadline):
                self._check_time(unit.cells[0])
                self._measure(unit)
            return True
        with self._failing(unit.cells):
            materials.checkpoint(unit.training)
            return True
        return False

    def give_up(self, unit: Unit, reason: str) -> Unit | None:
        """Write failed rows for the cells on which a unit's workers died; return a unit of its other cells, or None."""
        pending = self._unfinished(unit.cells)
        # Once the attack is stored, its cells are scored in order: so the first cell without a row is the cause.
        is_stored = not unit.is_training and self.attacks.has_answers(unit.cells[0])
        lost = pending[:1] if is_stored else pending
        self._fail(lost, "", CellError(reason))
        left = tuple(pending[len(lost) :])
        return dataclasses.replace(unit, cells=left) if left else None

    def _measure(self, unit: Unit) -> None:
        """Run one attack, or read its stored answers, and score the answers with each rejector."""
        cells = self._unfinished(unit.cells)
        if not cells:
            return
        opened = self.at_hand.opened(cells[0])
        sha256 = opened.checkpoint.sha256
        with self._failing(cells, sha256):
            moved_on = self.materials.moved_on(cells[0])
            answers = self.attacks.answers(opened, cells, is_member=unit.is_member)
            for cell in cells:
                with self._failing([cell], sha256):
                    if cell is not cells[0]:  # a finished attack gives at least one row
                        self._check_time(cell)
                    self.rows.write(opened, cell, answers, moved_on)
            if not unit.is_member:
                self.attacks.shrink(cells[0])

    def _keep_training(self, cell: Cell) -> None:
        """Store the features of a checkpoint's training images; a failure is only reported, since no row needs them."""
        source = self.materials.source(cell.training)
        path = self.materials.store.training_path(source.key)
        if path.is_file() or not source.is_there or "train" not in build(DataSource, cell.dataset).splits:
            return
        try:
            with no_exit():
                self.at_hand.keep_training(cell, path)
        except UseError:
            raise
        except Exception as error:
            trained_as = cell.training.trained_as
            told = f"features of the training images of {trained_as} are not kept: {first_line(error)}"
            self.materials.report.line(told)

    @contextmanager
    def _failing(self, cells: Sequence[Cell], checkpoint_sha256: str = "") -> Iterator[None]:
        """Turn any error of a plugin or a cell into failed rows; UseError and StoppedError stop the run."""
        try:
            with no_exit():
                yield
        except (UseError, StoppedError):
            raise
        except Exception as error:
            self._fail(cells, checkpoint_sha256, error)

    def _fail(self, cells: Sequence[Cell], checkpoint_sha256: str, error: Exception) -> None:
        """Write and report failed rows for the unfinished cells."""
        for cell in self._unfinished(cells):
            self.materials.report.line(f"failed: {cell.label}: {reason(error)}")
            self.rows.write_failed(cell, checkpoint_sha256, error)

    def _check_time(self, cell: Cell) -> None:
        """Stop before a cell when the time is over; stored attacks are not run again later."""
        if self.materials.deadline.is_over():
            raise StoppedError(cell.label)

    def _tell_shipped(self, units: Sequence[Unit]) -> None:
        """Report the networks that came with rrbench: whoever sees no training may think that there was one."""
        trainings = dict.fromkeys(training for unit in units for training in unit.trainings)
        shipped = [training for training in trainings if self.materials.source(training).is_shipped]
        folder = large_zoo()
        if shipped and self.materials.use_large_zoo and folder.resolve() != EMBEDDED:
            there = {each: made_otherwise(folder, each, "there") for each in shipped}
            names = [each.trained_as + (f" ({there[each]})" if there[each] else "") for each in shipped]
            self.materials.report.line(f"shipped with rrbench, as {shown_zoo()} has none that fits: {', '.join(names)}")
        elif shipped:
            names = [each.trained_as for each in shipped]
            self.materials.report.line(
                f"shipped with rrbench, not trained here: {', '.join(names)}; --retrain trains here"
            )

    def _tell_harmed(self, keys: Collection[str]) -> None:
        """Report missing or changed files; they are the reason why cells are measured again."""
        store = self.materials.store
        harmed = [names for key in keys if (names := store.harmed(key))]
        files = list(dict.fromkeys(name for names in harmed for name in names))
        if files:
            self.materials.report.line(
                f"gone or changed in {store.root}: {_first(files)}; cells that are measured again: {len(harmed)}"
            )

    def _tell_earlier(self, keys: Collection[str]) -> None:
        """Report older rows that differ from the plan's rows only in the revisions of the code that measured them."""
        store = self.materials.store
        records = [record for record, _ in store.cells()]
        named = {_names(record) for record in records if record.key in keys}
        earlier = [record.key for record in records if record.key not in keys and _names(record) in named]
        if earlier:
            self.materials.report.line(
                f"{len(earlier)} older rows of the same cells, measured by other versions of the code, are also here; "
                f"to remove them, delete {_first([f'cells/{key}.json' for key in earlier])} in {store.root} "
                "and run again"
            )


def _stopped(limit: str, left: Sequence[Cell], total: int) -> str:
    """Say which cells the time limit left undone."""
    labels = list(dict.fromkeys(cell.label for cell in left))
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return (
        f"stopped after {limit}: {len(left)} of {total} cells are left "
        f"({', '.join(labels[:SHOWN])}{more}); run the same command again to go on"
    )


def _first(files: Sequence[str]) -> str:
    """Name the first files of a list."""
    return ", ".join(files[:SHOWN]) + " ..." * (len(files) > SHOWN)


def _names(record: CellRecord) -> str:
    """Return everything that decides a cell, except its revisions."""
    return json.dumps({name: part for name, part in record.cell.items() if name != "revisions"}, sort_keys=True)
