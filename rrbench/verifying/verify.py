"""Checks stored results: keys, hashes, metrics, outputs on the stored images and, on request, the attacks."""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rrbench import zoo
from rrbench.compute.devices import Precision, describe, place
from rrbench.datasets.check import fingerprint
from rrbench.errors import CellError, UseError, first_line, no_exit
from rrbench.files import provenance
from rrbench.files.arrays import load_arrays
from rrbench.files.checkpoints import Checkpoint, load_weights, read_checkpoint
from rrbench.measuring.evaluation import (
    KEPT_IMAGES,
    Attacked,
    certainties,
    check_budget,
    distances_of,
    fresh_members,
    metrics_of,
    run_attack,
    scores_and_columns,
    take_over,
)
from rrbench.measuring.looking import with_looks
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.metrics.deployment import CleanScores
from rrbench.planning.cells import clean_key, read_budget, victim_key
from rrbench.plugins.config import MetricSettings
from rrbench.plugins.registry import build, restore
from rrbench.plugins.revisions import installed
from rrbench.progress import Report
from rrbench.protocols import (
    NO_BUDGET,
    Attack,
    Batch,
    Budget,
    DataSource,
    NetworkSource,
    Outputs,
    Rejector,
    Split,
    Victim,
)
from rrbench.rows.currency import is_current
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow, order, read_rows, stated
from rrbench.rows.scores import ATTACKS, CLEAN, Scores, file_in, files_in, read_images, read_scores
from rrbench.rows.tables import budget_text
from rrbench.rows.weak_attacks import with_weak_notes
from rrbench.verifying.claims import (
    elsewhere,
    miscounted,
    misheaded,
    miskeyed,
    mislisted,
    misnamed,
    mistaken_source,
    mistrained,
    not_installed,
    of_preset,
)
from rrbench.verifying.findings import Findings
from rrbench.verifying.tolerance import EXACT, ROUNDED, SHORT, Tolerance, disagreements

REPLAYED = 1000  # clean inputs that are judged again if there is no --rerun
TIES = 1e-3  # share of clean inputs that other hardware may classify differently
LOGIT_TOLERANCE = 1e-3  # share of the largest value; other hardware sums in another order
IN_MEMORY = 8  # networks, and checkpoints, kept in memory
NOT_KEPT = "not kept"  # the network's weights: only the row's metrics are recomputed
OLDER = "of an older version, which stored no clean scores: measure them again"


@dataclass(frozen=True)
class Verifier:
    """Checks one work folder."""

    store: Store
    roots: tuple[Path, ...]
    device: torch.device
    findings: Findings = field(default_factory=Findings)
    _data: dict[tuple[str, Split], Batch] = field(default_factory=dict)
    _hashes: dict[tuple[str, int | None], str] = field(default_factory=dict)
    _zoo: dict[str, tuple[Path | None, zoo.Entry | None]] = field(default_factory=dict)
    _checkpoints: dict[Path, Checkpoint] = field(default_factory=dict)
    _networks: dict[tuple[str, ...], MeasuredNetwork] = field(default_factory=dict)
    _cleans: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # on clean inputs, by their file's key
    _attacked: dict[str, Attacked] = field(default_factory=dict)  # the last attack that was repeated

    def check(self, record: CellRecord, row_sha256: str, *, rerun: bool) -> None:
        """Check one cell; each disagreement becomes one line of the findings."""
        findings, before = self.findings, len(self.findings.problems)
        findings.cells += 1
        reason = ""
        try:
            self._check_names(record, row_sha256)
            if record.row.status != "ok":
                findings.failed += 1
                return
            if not files_in(record.files, CLEAN):
                findings.unchecked[OLDER] += 1
                return
            findings.superseded += not is_current(record.row)
            with no_exit():
                reason = self._check_content(record, rerun=rerun)
        except (UseError, CellError) as error:
            self._problem(record, str(error))
        except Exception as error:  # a damaged or foreign file can fail in any way; go on with the other cells
            self._problem(record, f"its row or its files are not of this make: {first_line(error)}")
        if len(findings.problems) > before:
            findings.wrong += 1
        elif not reason:
            findings.confirmed += 1
        elif reason == NOT_KEPT:
            findings.recomputed += 1
        else:
            findings.unchecked[reason] += 1

    def _check_names(self, record: CellRecord, row_sha256: str) -> None:
        """Check the row's hash and the keys, which a failed cell has too."""
        if record.row_sha256() != row_sha256:
            self._problem(record, "its row was changed after it was written")
        if not (self.store.root / "cells" / f"{record.key}.json").is_file():
            self._problem(record, "its file is not named by its key")
        for text in miskeyed(record):
            self._problem(record, text)

    def _check_content(self, record: CellRecord, *, rerun: bool) -> str:
        """Check the files of a cell and their content; return why a check was impossible, empty if none was."""
        for name in self.store.unsound(record):
            advice = "`rrbench run` measures the cell again"
            self._problem(record, f"{name} does not have the SHA-256 written with the row: {advice}")
        scores = read_scores(self.store.root, record.files)
        images = torch.from_numpy(read_images(self.store.root, record.files))
        for text in miscounted(record, load_arrays(self.store.root / file_in(record.files, ATTACKS))):
            self._problem(record, text)
        self._check_metrics(record, scores)
        self._check_others(record, scores)
        absent = not_installed(record)
        if absent:
            return absent
        for text in misnamed(record):
            self._problem(record, text)
        self._check_certainty(record, scores)
        # Do all these checks, also if the first is impossible.
        hindered = (
            self._check_data(record, scores, images),
            self._check_checkpoint(record, scores, images, rerun=rerun),
            of_preset(record) if is_current(record.row) else "",
        )
        return next(filter(None, (*(text for text in hindered if text != NOT_KEPT), *hindered)), "")

    def _check_metrics(self, record: CellRecord, scores: Scores) -> None:
        rule, resamples = record.cell["tpr_rule"], record.cell["resamples"]
        metrics = vars(metrics_of(scores, rule, resamples, record.row.seed)) | distances_of(scores)._asdict()
        metrics["n"] = len(scores.labels)
        if record.row.attack == "clean" and not np.array_equal(scores.certainty, scores.clean_certainty):
            self._problem(record, "its certainties and those of the clean inputs are not the same, and it is clean")
        for name, value in metrics.items():
            stated = getattr(record.row, name)
            if (stated is None) != (value is None) or (value is not None and not np.isclose(stated, value, rtol=1e-9)):
                self._problem(record, f"{name} is {value} from the scores, and the row says {stated}")

    def _check_others(self, record: CellRecord, scores: Scores) -> None:
        """Compare certainties on clean inputs with the rejector's other rows: all rows must state the same."""
        key = clean_key(record.cell)
        first = self._cleans.setdefault(key, scores.clean_certainty)
        slack = LOGIT_TOLERANCE * max(1.0, float(np.abs(first[np.isfinite(first)]).max(initial=0.0)))
        if first.shape != scores.clean_certainty.shape or not np.allclose(first, scores.clean_certainty, 0, slack):
            self._problem(record, "its certainties of clean inputs are not those of the rejector's other rows")

    def _check_certainty(self, record: CellRecord, scores: Scores) -> None:
        """Compute certainties again, if the rejector needs only stored outputs."""
        rejector = build(Rejector, restore("rejector", record.cell["rejector"]))
        if not _is_installed(record) or "features" in rejector.needs or rejector.has_fit():
            return
        shown = len(scores.logits)
        parts = (scores.logits, scores.head, scores.labels[:shown])
        logits, head, labels = (torch.from_numpy(part) for part in parts)
        found = certainties(rejector, Outputs(logits[:, :0], logits, head), labels)
        if not np.allclose(found, scores.certainty[:shown], rtol=1e-5):
            self._problem(record, "certainties do not follow from the stored logits and head")

    def _check_data(self, record: CellRecord, scores: Scores, images: torch.Tensor) -> str:
        """Check ids, labels, the data's hash and the stored images' budget against the data set, if it is here."""
        try:
            test = self._load(record, "test")
        except UseError:
            return f"data set {record.cell['dataset'][0]} is not here"
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
        return self._check_apart(record, scores, test)

    def _check_apart(self, record: CellRecord, scores: Scores, test: Batch) -> str:
        """Check that inputs kept apart fix thresholds if the data set has such inputs, else cross-fitting."""
        try:
            calibration = self._load(record, "calibration")
        except UseError:  # they are borrowed from a data set that is not here
            return f"calibration inputs of {record.cell['dataset'][0]} are not here"
        apart = 0 if bool(torch.isin(calibration.ids, test.ids).any()) else calibration.size
        if scores.apart_certainty.size != apart:
            found = scores.apart_certainty.size
            self._problem(record, f"{found} inputs kept apart fix its threshold, and the data set has {apart}")
        return ""

    def _load(self, record: CellRecord, split: Split) -> Batch:
        """Return a split of a cell's data set, loaded once."""
        saved = record.cell["dataset"]
        if (str(saved), split) not in self._data:
            batch = build(DataSource, restore("dataset", saved)).load(split, self.roots)
            self._data[str(saved), split] = batch.to(self.device)
        return self._data[str(saved), split]

    def _check_checkpoint(self, record: CellRecord, scores: Scores, images: torch.Tensor, *, rerun: bool) -> str:
        """Judge the stored images again, if the checkpoint is here; with the data, check the clean inputs or rerun."""
        sha256 = record.row.checkpoint_sha256
        path, entry = self._find(record.checkpoint, sha256)
        if path is None:
            return f"no checkpoint {sha256[:12] or '(without a hash)'} here, and no zoo lists it"
        if entry and not entry.is_kept:
            for text in mislisted(record, entry):
                self._problem(record, text)
            return NOT_KEPT
        checkpoint = self._read(path)
        if checkpoint.sha256 != sha256:
            self._problem(record, f"checkpoint {path.name} does not have the row's SHA-256")
            return ""
        for text in (*mistrained(record, checkpoint.facts), *misheaded(record, checkpoint.facts, is_own=entry is None)):
            self._problem(record, text)
        measured = self._measured_network(record, checkpoint)
        outputs = measured.judge(images.to(self.device))
        for name, other in (("logits", "other logits"), ("head", "another head")):
            here, there = getattr(outputs, name).cpu().numpy(), getattr(scores, name)[: len(images)]
            if here.shape != there.shape:
                widths = f"{here.shape[1]} columns, and {there.shape[1]} are stored"
                self._problem(record, f"the checkpoint's {name} has {widths}")
                continue
            gap = float(np.abs(here - there).max(initial=0.0))
            if gap > LOGIT_TOLERANCE * max(1.0, float(np.abs(here).max(initial=0.0))):
                self._problem(record, f"the checkpoint gives {other} for the stored images (by {gap:.3g})")
        hindered = self._check_source(record)
        if self._lacks_data(record):
            return ""  # `_check_data` reported it
        is_repeated = rerun and is_current(record.row)
        if is_repeated and not hindered:
            self._rerun(record, measured, scores)
        elif _is_installed(record):
            rejector = build(Rejector, restore("rejector", record.cell["rejector"]))
            if rejector.has_fit():
                self.findings.unfitted += 1
                self._check_right(record, measured, scores)
            else:
                self._check_clean(record, measured.clean(rejector, REPLAYED), scores)
        return hindered if is_repeated else ""

    def _find(self, key: str, sha256: str) -> tuple[Path | None, zoo.Entry | None]:
        """Find a checkpoint in this folder, else in a zoo; a zoo may list a checkpoint without its file."""
        own = self.store.checkpoint_files(key).chosen
        if own.is_file():
            return own, None
        if sha256 not in self._zoo:
            self._zoo[sha256] = zoo.find_hash(sha256) or (None, None)
        return self._zoo[sha256]

    def _check_source(self, record: CellRecord) -> str:
        """Check the claims about a transfer's other network; return why the transfer cannot be repeated, or empty."""
        if "moved_on" not in record.cell:
            return ""
        path, entry = self._source(record)
        if path is None or (entry is not None and not entry.is_kept):
            sha256 = stated(record.row)["moved_on"][:12]
            return f"the network {sha256} that its images were moved on is not here: a transfer cannot be repeated"
        for text in mistaken_source(record, self._read(path), is_own=entry is None):
            self._problem(record, f"of the network that its images were moved on: {text}")
        return ""

    def _source(self, record: CellRecord) -> tuple[Path | None, zoo.Entry | None]:
        return self._find(record.cell["moved_on"], stated(record.row)["moved_on"])

    def _lacks_data(self, record: CellRecord) -> bool:
        return any((str(record.cell["dataset"]), split) not in self._data for split in ("test", "calibration"))

    def _check_clean(self, record: CellRecord, found: CleanScores, scores: Scores) -> None:
        """Compare the stored certainties that fix the deployed thresholds with those computed here."""
        count = len(found.certainty)
        for name, here, there in (
            ("the clean inputs", found.certainty, scores.clean_certainty[:count]),
            ("the inputs kept apart", found.apart_certainty, scores.apart_certainty),
        ):
            if here.shape != there.shape:
                continue  # `_check_apart` or `_check_data` reported it
            known = np.abs(there[np.isfinite(there)])
            # The tolerance of replayed logits, since certainties are computed from logits.
            slack = LOGIT_TOLERANCE * max(1.0, float(known.max(initial=0.0)))
            if not np.allclose(here, there, rtol=0, atol=slack):
                self._problem(record, f"its certainties of {name} are not what the rejector says of them")
        self._compare_right(record, found.correct, scores.clean_correct[:count])
        self._compare_right(record, found.apart_correct, scores.apart_correct)
        self._compare_own(record, found.own_threshold, scores)

    def _check_right(self, record: CellRecord, measured: MeasuredNetwork, scores: Scores) -> None:
        """Compare only which clean inputs are right, for a rejector whose certainties need a fit."""
        outputs, labels = measured.outputs("test", REPLAYED), scores.labels[:REPLAYED]
        found = outputs.logits.argmax(1).cpu().numpy() == labels
        self._compare_right(record, found, scores.clean_correct[:REPLAYED])
        apart = measured.apart()
        if apart is not None:
            right = measured.outputs("calibration").logits.argmax(1) == apart.labels
            self._compare_right(record, right.cpu().numpy(), scores.apart_correct)
        self._compare_own(record, build(Rejector, restore("rejector", record.cell["rejector"])).own_threshold, scores)

    def _compare_own(self, record: CellRecord, here: float | None, scores: Scores) -> None:
        """Compare the rejector's own threshold with the stored one."""
        own = scores.clean.own_threshold
        if own != here:
            self._problem(record, f"its rejector brings the threshold {here}, and the files say {own}")

    def _compare_right(self, record: CellRecord, here: NDArray[np.bool_], there: NDArray[np.bool_]) -> None:
        """Compare which inputs are right; other hardware may decide a few ties (TIES) differently."""
        if here.shape == there.shape and int((here != there).sum()) > here.size * TIES:
            self._problem(record, "other clean inputs are right than it says")

    def _read(self, path: Path) -> Checkpoint:
        """Return a checkpoint, read and hashed once."""
        if path not in self._checkpoints:
            if len(self._checkpoints) == IN_MEMORY:
                self._checkpoints.pop(next(iter(self._checkpoints)))
            self._checkpoints[path] = read_checkpoint(path)
        return self._checkpoints[path]

    def _measured_network(self, record: CellRecord, checkpoint: Checkpoint) -> MeasuredNetwork:
        """Return the network that a cell was measured on, built once for all cells of a checkpoint."""
        cell = record.cell
        said = tuple(str(cell[name]) for name in ("dataset", "network", "trained_on", "limit"))
        if build(Rejector, restore("rejector", cell["rejector"])).has_look():
            said += (str(cell["rejector"]),)
        key = (checkpoint.sha256, record.row.precision, *said)
        if key not in self._networks:
            if len(self._networks) == IN_MEMORY:
                self._networks.pop(next(iter(self._networks)))
            self._networks[key] = self._build(record, checkpoint)
        return self._networks[key]

    def _build(self, record: CellRecord, checkpoint: Checkpoint) -> MeasuredNetwork:
        cell = record.cell
        home = build(DataSource, restore("dataset", cell["trained_on"]))
        rejector = build(Rejector, restore("rejector", cell["rejector"]))
        network = build(NetworkSource, restore("network", cell["network"])).build(home.info, rejector)
        load_weights(network, checkpoint)
        precision = cast(Precision, record.row.precision)
        network = with_looks(place(network, self.device), rejector)
        return MeasuredNetwork(network, partial(self._load, record), self.device, precision, cell["limit"])

    def _rerun(self, record: CellRecord, measured: MeasuredNetwork, scores: Scores) -> None:
        """Repeat the fit, the attack and the measuring of a cell, and compare all results."""
        cell, budget = record.cell, _budget(record)
        attack = build(Attack, restore("attack", cell["attack"]))
        victim = measured.victim(
            build(Rejector, restore("rejector", cell["rejector"])), needs_scale=cell["is_adaptive"]
        )
        clean = measured.clean(victim.rejector)
        self._check_clean(record, clean, scores)
        tolerance = self._tolerance(record)
        self._check_fitted(record, victim, tolerance)
        metrics = MetricSettings(cell["tpr_rule"], cell["resamples"])
        attacked = self._attack(record, measured, victim, attack)
        again, columns = scores_and_columns(measured, victim, attack, budget, attacked, metrics, record.row.seed, clean)
        is_ensemble = _is_ensemble(record)
        for text in disagreements(record.row, scores, again, columns, tolerance, is_ensemble=is_ensemble):
            self._problem(record, text)
        self.findings.rerun += 1
        self.findings.tolerances.add(tolerance)

    def _attack(self, record: CellRecord, measured: MeasuredNetwork, victim: Victim, attack: Attack) -> Attacked:
        """Repeat an attack, once for all rejectors of a checkpoint that share it."""
        if record.attack not in self._attacked:
            attacked = self._repeated(record, measured, victim, attack)
            self._attacked.clear()
            self._attacked[record.attack] = attacked
        return self._attacked[record.attack]

    def _repeated(self, record: CellRecord, measured: MeasuredNetwork, victim: Victim, attack: Attack) -> Attacked:
        budget, seed = _budget(record), record.row.seed
        if "moved_on" in record.cell:
            return take_over(measured, self._moved_elsewhere(record), budget)
        choices = [restore("attack", saved) for saved in record.cell["members"]]
        members = fresh_members(choices, budget, seed)
        name = record.cell["attack"][0]
        return run_attack(measured, victim, attack, name, budget, seed, lambda done: None, members)

    def _moved_elsewhere(self, record: CellRecord) -> Attacked:
        """Repeat the attack behind a transfer, on the other network."""
        path, _ = self._source(record)
        assert path is not None  # else the transfer is not repeated
        checkpoint = self._read(path)
        other = elsewhere(record, checkpoint.facts)
        measured = self._measured_network(other, checkpoint)
        blind = Victim(measured.network, build(Rejector, restore("rejector", other.cell["rejector"])))
        return self._attack(other, measured, blind, build(Attack, restore("attack", other.cell["attack"])))

    def _tolerance(self, record: CellRecord) -> Tolerance:
        """Return how far a rerun may differ from a row: not at all on the same machine with the same packages.

        Exceptions: a GPU sums in no fixed order; an ensemble may have used members' answers made in other batches.
        """
        row = record.row
        here = {"device": describe(self.device), "packages": provenance.packages(), "machine": provenance.machine()}
        said = {name: getattr(row, name) for name in ("device", "precision", "version", "commit")}
        is_same = row.device == here["device"] and any(
            all(run.get(name) == value for name, value in (here | said).items()) for run in self._runs()
        )
        if is_same and self.device.type == "cpu" and not _is_ensemble(record):
            return EXACT
        return ROUNDED if row.precision == "fp32" else SHORT

    def _runs(self) -> list[dict[str, Any]]:
        """Return the runs in the folder's manifest; none if the manifest is missing or damaged."""
        try:
            return self.store.runs()
        except UseError:
            return []

    def _check_fitted(self, record: CellRecord, victim: Victim, tolerance: Tolerance) -> None:
        """Compare the stored fit of a rejector with a new fit: later runs use the stored fit without a check."""
        path = self.store.fitted_path(victim_key(record.cell))
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
        if there.keys() != learnt.keys() or not all(_is_near(there[name], learnt[name], slack) for name in learnt):
            self._problem(record, f"fitted/{path.name} is not what a fit gives: delete it, and measure again")

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
        # Compare only rows without an equal row on the other side: older versions may have sorted ties differently.
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
    """Tell whether the rejector installed here has the revision that was measured."""
    name = record.cell["rejector"][0]
    return bool(installed("rejector", name) in (None, record.cell["revisions"]["rejector"]))


def _is_near(one: torch.Tensor, other: torch.Tensor, slack: float) -> bool:
    """Compare tensors up to a share of the largest value."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    largest = float(other.double().nan_to_num().abs().amax()) if other.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=0, atol=slack * largest, equal_nan=True)


def _is_ensemble(record: CellRecord) -> bool:
    """Tell whether a row is the worst of several attacks; a transfer has one member, and its costs repeat exactly."""
    return bool(record.cell["members"]) and "moved_on" not in record.cell


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
    # Sort cells that share a network and an attack together: a rerun attacks once for all their rejectors.
    cells = sorted(store.cells(), key=lambda found: (found[0].checkpoint, found[0].attack, found[0].key))
    with report.task(f"verifying {len(cells)} cells", len(cells)) as advance:
        for record, row_sha256 in cells:
            verifier.check(record, row_sha256, rerun=rerun)
            advance(1)
    verifier.check_rows(with_weak_notes(record.row for record, _ in cells))
    return verifier.findings
