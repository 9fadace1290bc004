"""Checks that stored results are what they say: metrics, hashes, replayed images, and on request the attacks."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch

from rrbench import zoo
from rrbench.cells import attack_key, cell_key, data_key, read_budget
from rrbench.checkpoints import load_weights, read_checkpoint
from rrbench.datasets.check import fingerprint
from rrbench.devices import Precision, place
from rrbench.doubts import with_doubts
from rrbench.errors import CellError, UseError, first_line
from rrbench.evaluation import (
    KEPT_IMAGES,
    Subject,
    certainties,
    check_budget,
    distances_of,
    fresh_member,
    held_out,
    metrics_of,
    run_attack,
    score,
)
from rrbench.files import sha256
from rrbench.names import long_form, parse
from rrbench.progress import Report
from rrbench.protocols import (
    NO_BUDGET,
    Attack,
    Batch,
    Budget,
    Calibration,
    DataSource,
    NetworkSource,
    Outputs,
    Rejector,
    Split,
)
from rrbench.registry import build, expand, restore, table
from rrbench.revisions import installed, is_current, write
from rrbench.rows import ResultRow, order, read_rows
from rrbench.scores import ATTACKS, DATA, SCORES, Scores, file_in, read_images, read_scores
from rrbench.store import CellRecord, Store
from rrbench.tables import budget_text

LOGIT_TOLERANCE = 1e-3  # other hardware sums in another order
SUBJECTS = 8  # networks kept at hand
FLIP_TOLERANCE = 0.005  # share of verdicts that may differ when an attack is repeated elsewhere


@dataclass
class Findings:
    """What a verification did and what it found wrong."""

    cells: int = 0
    failed: int = 0
    recomputed: int = 0
    replayed: int = 0
    rerun: int = 0
    unfitted: int = 0  # cells whose threshold needs a fit that only a rerun makes
    superseded: int = 0  # cells of another revision than is installed: what that would say of them tells nothing
    absent: set[str] = field(default_factory=set)  # checkpoints and data sets that are not here
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Say it in one line."""
        text = f"{self.cells} cells: {self.recomputed} recomputed from scores, {self.replayed} replayed"
        text += f", {self.rerun} attacked again" if self.rerun else ""
        text += f", {self.failed} failed rows" if self.failed else ""
        text += f"; {self.unfitted} thresholds need --rerun, their rejectors being fitted" if self.unfitted else ""
        text += f"; {self.superseded} of another revision than is installed" if self.superseded else ""
        text += f"; {len(self.absent)} checkpoints or data sets not here" if self.absent else ""
        return f"{text}; {len(self.problems)} problems" if self.problems else f"{text}; all confirmed"


@dataclass(frozen=True)
class Verifier:
    """Looks at one folder."""

    store: Store
    roots: tuple[Path, ...]
    device: torch.device
    findings: Findings = field(default_factory=Findings)
    _data: dict[tuple[str, Split], Batch] = field(default_factory=dict)
    _hashes: dict[tuple[str, int | None], str] = field(default_factory=dict)
    _subjects: dict[tuple[str, ...], Subject] = field(default_factory=dict)

    def check(self, record: CellRecord, row_sha256: str, *, rerun: bool) -> None:
        """Check one cell; each disagreement is one line."""
        row = record.row
        self.findings.cells += 1
        if record.row_sha256() != row_sha256:
            self._problem(record, "its row was changed after it was written")
        if not (self.store.root / "cells" / f"{record.key}.json").is_file():
            self._problem(record, "its file is not named by its key")
        try:
            for text in _miskeyed(record):
                self._problem(record, text)
            if row.status != "ok":
                self.findings.failed += 1
                return
            self.findings.superseded += not is_current(row)
            for text in _misnamed(record):
                self._problem(record, text)
            for name in self.store.unsound(record):
                advice = "`rrbench run` measures the cell again"
                self._problem(record, f"{name} does not have the SHA-256 written with the row: {advice}")
            scores = read_scores(self.store.root, record.files)
            images = torch.from_numpy(read_images(self.store.root, record.files))
            self._check_metrics(record, scores)
            is_here = self._check_data(record, scores, images)
            self._check_checkpoint(record, scores, images, is_here=is_here, rerun=rerun)
        except (UseError, CellError) as error:
            self._problem(record, str(error))
        except Exception as error:  # a damaged or foreign file can fail in any way, and the other cells go on
            self._problem(record, f"its row or its files are not of this make: {first_line(error)}")

    def _check_metrics(self, record: CellRecord, scores: Scores) -> None:
        rule, resamples = record.cell["tpr_rule"], record.cell["resamples"]
        metrics = metrics_of(scores, rule, resamples, record.row.seed)._asdict() | distances_of(scores)._asdict()
        metrics["n"] = len(scores.labels)
        for name, value in metrics.items():
            stated = getattr(record.row, name)
            if (stated is None) != (value is None) or (value is not None and not np.isclose(stated, value, rtol=1e-9)):
                self._problem(record, f"{name} is {value} from the scores, and the row says {stated}")
        rejector = build(Rejector, restore("rejector", record.cell["rejector"]))
        if _is_installed(record) and "features" not in rejector.needs and not rejector.has_fit():
            logits, head = torch.from_numpy(scores.logits), torch.from_numpy(scores.head)
            outputs = Outputs(logits[:, :0], logits, head)
            if not np.allclose(
                certainties(rejector, outputs, torch.from_numpy(scores.labels)), scores.certainty, rtol=1e-5
            ):
                self._problem(record, "certainties do not follow from the stored logits and head")
        self.findings.recomputed += 1

    def _check_data(self, record: CellRecord, scores: Scores, images: torch.Tensor) -> bool:
        """Compare ids, labels, the data's hash and the budget of stored images with the data set, if it is present."""
        try:
            test = self._load(record, "test")
        except UseError:
            self.findings.absent.add(str(record.cell["dataset"]))
            return False
        test = test.at(slice(record.cell["limit"]))
        data = str(record.cell["dataset"]), record.cell["limit"]
        if data not in self._hashes:
            self._hashes[data] = fingerprint(test)
        if self._hashes[data] != record.row.data_sha256:
            self._problem(record, "it was measured on other data than is here")
        if test.ids.tolist() != scores.ids.tolist() or test.labels.tolist() != scores.labels.tolist():
            self._problem(record, "its ids or labels are not the data set's")
        if len(images) < min(KEPT_IMAGES, test.size):
            self._problem(record, f"only {len(images)} of its images are stored")
        try:
            check_budget(images.to(self.device), test.images[: len(images)], _budget(record))
        except CellError as error:
            self._problem(record, f"its stored images: {error}")
        return self._check_held_out(record, scores, test)

    def _check_held_out(self, record: CellRecord, scores: Scores, test: Batch) -> bool:
        """Check that deploy_* counts exactly the inputs that did not fix the threshold."""
        try:
            calibration = self._load(record, "calibration")
        except UseError:  # borrowed from another data set, which is not here
            self.findings.absent.add(f"{record.cell['dataset']} calibration")
            return False
        if not np.array_equal(held_out(test, calibration), scores.held_out):
            self._problem(record, "it counts other inputs as held out than the data set does")
        return True

    def _load(self, record: CellRecord, split: Split) -> Batch:
        """Return a split of a cell's data set, loaded once."""
        saved = record.cell["dataset"]
        if (str(saved), split) not in self._data:
            batch = build(DataSource, restore("dataset", saved)).load(split, self.roots)
            self._data[str(saved), split] = batch.to(self.device)
        return self._data[str(saved), split]

    def _check_checkpoint(
        self, record: CellRecord, scores: Scores, images: torch.Tensor, *, is_here: bool, rerun: bool
    ) -> None:
        """Replay the stored images on the checkpoint, where it is present, and with the data fix the threshold anew."""
        path = self._find_checkpoint(record)
        if path is None:
            self.findings.absent.add(record.row.checkpoint_sha256)
            return
        if sha256(path) != record.row.checkpoint_sha256:
            self._problem(record, f"checkpoint {path.name} does not have the row's SHA-256")
            return
        subject = self._subject(record, path)
        logits = subject.judge(images.to(self.device)).logits.cpu().numpy()
        gap = float(np.abs(logits - scores.logits[: len(logits)]).max())
        if gap > LOGIT_TOLERANCE * max(1.0, float(np.abs(logits).max())):
            self._problem(record, f"the checkpoint gives other logits for the stored images (by {gap:.3g})")
        self.findings.replayed += 1
        if rerun and is_current(record.row):
            self._rerun(record, subject, scores)
        elif is_here and _is_installed(record):
            rejector = build(Rejector, restore("rejector", record.cell["rejector"]))
            if rejector.has_fit():
                self.findings.unfitted += 1
            else:
                self._check_threshold(record, subject.calibrate(rejector, None), scores)

    def _check_threshold(self, record: CellRecord, calibration: Calibration | None, scores: Scores) -> None:
        """Compare the deployed threshold with the one that calibration inputs give here."""
        found = calibration.threshold if calibration else float("nan")
        stated, known = float(scores.threshold), scores.certainty[np.isfinite(scores.certainty)]
        # As far as replayed logits may differ: certainties are made of them.
        slack = LOGIT_TOLERANCE * max(1.0, float(np.abs(known).max(initial=0.0)))
        if not np.isclose(found, stated, rtol=0, atol=slack, equal_nan=True):
            self._problem(record, f"its threshold is {stated:.6g}, and {found:.6g} on held-out inputs")

    def _find_checkpoint(self, record: CellRecord) -> Path | None:
        own = self.store.checkpoint_files(record.checkpoint).chosen
        if own.is_file():
            return own
        for folder in (zoo.EMBEDDED, zoo.large_zoo()):
            for entry in zoo.entries(folder):
                is_named = entry.sha256.startswith(record.checkpoint)
                if is_named and entry.sha256 == record.row.checkpoint_sha256 and (folder / entry.file).is_file():
                    return folder / entry.file
        return None

    def _subject(self, record: CellRecord, path: Path) -> Subject:
        """Return the network that a cell was measured on, built once for all the cells of a checkpoint."""
        cell = record.cell
        said = tuple(str(cell[name]) for name in ("dataset", "network", "trained_on", "limit"))
        key = (record.row.checkpoint_sha256, record.row.precision, *said)
        if key not in self._subjects:
            if len(self._subjects) == SUBJECTS:
                self._subjects.pop(next(iter(self._subjects)))
            self._subjects[key] = self._build(record, path)
        return self._subjects[key]

    def _build(self, record: CellRecord, path: Path) -> Subject:
        cell = record.cell
        home = build(DataSource, restore("dataset", cell["trained_on"]))
        rejector = build(Rejector, restore("rejector", cell["rejector"]))
        network = build(NetworkSource, restore("network", cell["network"])).build(home.info, rejector)
        load_weights(network, read_checkpoint(path))
        precision = cast(Precision, record.row.precision)
        return Subject(place(network, self.device), partial(self._load, record), self.device, precision, cell["limit"])

    def _rerun(self, record: CellRecord, subject: Subject, scores: Scores) -> None:
        """Attack again; on the same kind of machine every verdict comes out the same."""
        attack = build(Attack, restore("attack", record.cell["attack"]))
        rejector = build(Rejector, restore("rejector", record.cell["rejector"]))
        victim = subject.victim(rejector, is_attacked=attack.is_adaptive)
        self._check_threshold(record, victim.calibration, scores)
        budget = _budget(record)
        name = record.cell["attack"][0]
        choices = [restore("attack", saved) for saved in record.cell["members"]]
        members = [(str(choice), fresh_member(choice, budget, record.row.seed)) for choice in choices]
        attacked = run_attack(subject, victim, attack, name, budget, record.row.seed, lambda done: None, members)
        again = score(subject, victim, attacked)
        threshold = float(scores.threshold)
        flips = (again.prediction != scores.prediction) | (
            (again.certainty >= threshold) != (scores.certainty >= threshold)
        )
        if flips.mean() > FLIP_TOLERANCE:
            self._problem(record, f"repeating the attack changes {flips.sum()} of {len(flips)} verdicts")
        self.findings.rerun += 1

    def check_rows(self, cells: list[ResultRow]) -> None:
        """Compare rows.csv with the cell files, field by field."""
        path = self.store.root / "rows.csv"
        try:
            listed = read_rows(path)
        except UseError as error:
            self.findings.problems.append(str(error))
            return
        if len(listed) != len(cells):
            self.findings.problems.append(f"rows.csv has {len(listed)} rows and there are {len(cells)} cell files")
        # Only what has no equal on the other side is compared: a version before may have sorted ties in another way.
        left, odd = Counter(cells), list[tuple[int, ResultRow]]()
        for line, found in enumerate(listed, start=2):
            if left[found]:
                left[found] -= 1
            else:
                odd.append((line, found))
        for (line, found), expected in zip(odd, sorted(left.elements(), key=order), strict=False):
            for item in dataclasses.fields(ResultRow):
                here, there = getattr(found, item.name), getattr(expected, item.name)
                if here != there:
                    self.findings.problems.append(
                        f"rows.csv line {line}: {item.name} is {here!r}, its cell says {there!r}"
                    )

    def _problem(self, record: CellRecord, text: str) -> None:
        row = record.row
        attack = f"{row.attack} {budget_text(row)}".strip()
        self.findings.problems.append(f"{row.trained_as} {row.rejector} {attack} seed {row.seed}: {text}")


def _is_installed(record: CellRecord) -> bool:
    """Tell whether the rejector that is installed here is the one that was measured."""
    name = record.cell["rejector"][0]
    return bool(installed("rejector", name) in (None, record.cell["revisions"]["rejector"]))


def _miskeyed(record: CellRecord) -> Iterator[str]:
    """Say where the keys, or the row, do not follow from what the cell says that they were made of."""
    row, cell = record.row, record.cell
    if record.key != cell_key(cell):
        yield f"its key is not that of what was measured, {cell_key(cell)}"
    if record.attack != attack_key(cell):
        yield f"its attack's key is not that of what was measured, {attack_key(cell)}"
    for name in ("seed", "precision", "preset"):
        if getattr(row, name) != cell[name]:
            yield f"its row says {name} {getattr(row, name)}, and {cell[name]} was measured"
    if row.revisions != write(cell["revisions"]):
        yield f"its row says the revisions {row.revisions}, and {write(cell['revisions'])} were measured"
    keys = {ATTACKS: record.attack, DATA: data_key(cell), SCORES: record.key} if row.status == "ok" else {}
    for folder, key in keys.items():
        # A second run of an attack that ended otherwise lies beside the first.
        if not re.fullmatch(rf"{folder}/{key}(-[0-9a-f]{{8}})?\.npz", file_in(record.files, folder)):
            yield f"it names {file_in(record.files, folder)}, which is not its own"


def _misnamed(record: CellRecord) -> Iterator[str]:
    """Say where a row names something else than the cell that was measured; tables print the row."""
    row, cell = record.row, record.cell
    settings = json.loads(row.settings)
    for kind in ("dataset", "network", "framework", "rejector", "attack"):
        name = long_form(kind, parse(expand(kind, getattr(row, kind))), table(kind).classes).name
        if name != cell[kind][0] or settings.get(kind, cell[kind][1]) != cell[kind][1]:
            yield f"its row says {kind} {getattr(row, kind)}, and {cell[kind][0]} with other settings was measured"
    budget = read_budget(cell["budget"])
    radius = None if budget is None else budget.radius
    if row.norm != (budget.norm if budget else "") or (Fraction(row.eps) if row.eps else None) != radius:
        yield f"its row says the budget {budget_text(row) or 'none'}, and {cell['budget'] or 'none'} was measured"


def _budget(record: CellRecord) -> Budget:
    return read_budget(record.cell["budget"]) or NO_BUDGET


def verify_folder(
    folder: Path, roots: tuple[Path, ...], device: torch.device, *, rerun: bool, report: Report
) -> Findings:
    """Verify every cell of a work folder and its rows.csv."""
    store = Store(folder)
    if not (folder / "cells").is_dir():
        raise UseError(f"{folder} is no work folder: it has no cells/")
    verifier = Verifier(store, roots, device)
    cells = store.cells()
    with report.task(f"verifying {len(cells)} cells", len(cells)) as advance:
        for record, row_sha256 in cells:
            verifier.check(record, row_sha256, rerun=rerun)
            advance(1)
    verifier.check_rows(with_doubts(record.row for record, _ in cells))
    return verifier.findings
