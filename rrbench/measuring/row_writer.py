"""Writes the rows of cells: with the measured columns, or with the reason why measuring failed."""

import dataclasses
from functools import partial

from rrbench.errors import reason
from rrbench.files.arrays import save_arrays
from rrbench.lending import kept
from rrbench.measuring.answers import Answers
from rrbench.measuring.at_hand import AtHand, Opened, changed_while
from rrbench.measuring.evaluation import KEPT_IMAGES, begin_row, scores_and_columns
from rrbench.measuring.materials import Materials
from rrbench.measuring.measured_network import to_numpy
from rrbench.planning.cells import Cell, attack_key, cell_key, clean_key, data_key, identity
from rrbench.plugins.own import OWN
from rrbench.plugins.registry import build
from rrbench.protocols import Attack
from rrbench.rows.narrow import IMAGES, narrowed
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import CLEAN, DATA, SCORES


@dataclasses.dataclass(frozen=True)
class RowWriter:
    """Lets rejectors judge an attack's answers, and writes scores and rows into the work folder."""

    materials: Materials
    at_hand: AtHand

    def write(self, opened: Opened, cell: Cell, answers: Answers, moved_on: str) -> None:
        """Score an attack's answers and write the row; `moved_on`: SHA-256 of a transfer's other checkpoint."""
        measured, checkpoint, store = opened.measured, opened.checkpoint, self.materials.store
        victim = self.at_hand.victim(opened, cell)
        (described,) = self.materials.described([cell])
        key = clean_key(described)
        attack = build(Attack, cell.attack)
        with kept(measured.network, partial(changed_while, cell.rejector)):
            clean = self.at_hand.clean(key, measured, victim.rejector)
            scores, columns = scores_and_columns(
                measured, victim, attack, cell.area, answers.attacked, cell.metrics, cell.seed, clean
            )
        path = store.scores_path(cell_key(described))
        first = {IMAGES: to_numpy(measured.test().images[:KEPT_IMAGES])}
        files = dict([store.add(DATA, data_key(described), scores.of_data() | first)])
        files |= dict([store.add(CLEAN, key, scores.of_clean())])
        files[answers.file] = answers.sha256
        files[f"{SCORES}/{path.name}"] = save_arrays(path, narrowed(scores.of_cell()))
        row = self.begin(cell, checkpoint.facts.get("recipe"), moved_on)
        self._save(cell, dataclasses.replace(row, **columns, checkpoint_sha256=checkpoint.sha256), files)

    def write_failed(self, cell: Cell, checkpoint_sha256: str, error: Exception) -> None:
        """Write a failed row: it has the reason in one line, and no measured column."""
        begun, said = self.begin(cell, None), reason(error)
        row = dataclasses.replace(begun, status="failed", error=said, checkpoint_sha256=checkpoint_sha256)
        self._save(cell, row, {})

    def begin(self, cell: Cell, recipe: object, moved_on: str = "") -> ResultRow:
        """Return a row with everything known before measuring, the recipe and a transfer's `moved_on` included."""
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
        if cell.attack.name == OWN:  # only the row can tell: the attack is not installed
            settings["is_adaptive"] = build(Attack, cell.attack).is_adaptive
        if cell.sample.every:  # `n` alone could be of the first inputs
            settings["every"] = cell.sample.every
        if cell.moved_on is not None:
            settings["moved_on"] = moved_on
        return begin_row(
            dataset=str(cell.dataset),
            network=cell.training.architecture,
            framework=str(cell.training.framework),
            trained_as=cell.training.trained_as,
            rejector=str(cell.rejector),
            attack=str(cell.attack),
            budget=cell.budget,
            seed=cell.seed,
            preset=cell.preset,
            settings=settings,
            members=cell.members,
            revisions=cell.revisions(),
            device=self.materials.device,
            precision=self.materials.precision,
        )

    def _save(self, cell: Cell, row: ResultRow, files: dict[str, str]) -> None:
        (described,) = self.materials.described([cell])
        self.materials.store.save_cell(CellRecord(cell_key(described), attack_key(described), row, described, files))
