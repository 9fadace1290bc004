"""Verifies a work folder: asks every module of this room about each cell, and counts what they find."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rrbench.errors import CellError, UseError, first_line, no_exit
from rrbench.files.arrays import load_arrays
from rrbench.files.checkpoints import Checkpoint
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.planning.cells import clean_key
from rrbench.plugins.registry import build, restore
from rrbench.progress import Report
from rrbench.protocols import NetworkSource, Outputs
from rrbench.rows.currency import is_current
from rrbench.rows.published import check_scores
from rrbench.rows.record import CellRecord, read_sound_cells
from rrbench.rows.row import ResultRow, order, read_rows, stated
from rrbench.rows.scores import ATTACKS, CLEAN, Scores, file_in, files_in, read_images, read_scores
from rrbench.rows.tables import budget_text
from rrbench.rows.weak_attacks import with_weak_notes
from rrbench.verifying.claims import (
    OF_ATTACK,
    given_objects,
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
from rrbench.verifying.inputs import Inputs
from rrbench.verifying.networks import Networks
from rrbench.verifying.recompute import other_clean_certainties, wrong_certainties, wrong_metrics
from rrbench.verifying.replay import REPLAYED, other_clean_scores, other_outputs, other_right_inputs
from rrbench.verifying.rerun import Reruns
from rrbench.verifying.restored import is_given, is_installed, rejector_of

NOT_KEPT = "not kept"  # the network's weights: only the row's metrics are recomputed
IN_PYTHON = "given in Python"  # the network, the data, the rejector or the attack: the same
OLDER = "of an older version, which stored no clean scores: measure them again"


@dataclass(frozen=True)
class Verifier:
    """Checks one work folder."""

    store: Store
    roots: tuple[Path, ...]
    device: torch.device
    findings: Findings = field(default_factory=Findings)
    _cleans: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # on clean inputs, by their file's key
    _asked: list[tuple[MeasuredNetwork, Tensor, Outputs]] = field(default_factory=list)  # the last, or none

    @cached_property
    def inputs(self) -> Inputs:
        """The data sets of the cells."""
        return Inputs(self.roots, self.device)

    @cached_property
    def networks(self) -> Networks:
        """The networks of the cells."""
        return Networks(self.store, self.inputs)

    @cached_property
    def reruns(self) -> Reruns:
        """The attacks that are repeated."""
        return Reruns(self.networks)

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
            self._add(record, [str(error)])
        except Exception as error:  # a damaged or foreign file can fail in any way; go on with the other cells
            self._add(record, [f"its row or its files are not of this make: {first_line(error)}"])
        if len(findings.problems) > before:
            findings.wrong += 1
        elif not reason:
            findings.confirmed += 1
        elif reason in (NOT_KEPT, IN_PYTHON):
            findings.recomputed += 1
            findings.in_python += reason == IN_PYTHON
        else:
            findings.unchecked[reason] += 1

    def _check_names(self, record: CellRecord, row_sha256: str) -> None:
        """Check the row's hash and the keys, which a failed cell has too."""
        if record.row_sha256() != row_sha256:
            self._add(record, ["its row was changed after it was written"])
        if not (self.store.root / "cells" / f"{record.key}.json").is_file():
            self._add(record, ["its file is not named by its key"])
        self._add(record, miskeyed(record))

    def _check_content(self, record: CellRecord, *, rerun: bool) -> str:
        """Check the files of a cell and their content; return why a check was impossible, empty if none was."""
        for name in self.store.unsound(record):
            advice = "`rrbench run` measures the cell again"
            self._add(record, [f"{name} does not have the SHA-256 written with the row: {advice}"])
        scores = read_scores(self.store.root, record.files)
        images = torch.from_numpy(read_images(self.store.root, record.files))
        attack = load_arrays(self.store.root / file_in(record.files, ATTACKS), OF_ATTACK)
        self._add(record, miscounted(record, attack))
        self._add(record, wrong_metrics(record, scores))
        first = self._cleans.setdefault(clean_key(record.cell), scores.clean_certainty)
        self._add(record, other_clean_certainties(scores, first))
        absent = not_installed(record)
        if absent:
            return absent
        self._add(record, misnamed(record))
        given = given_objects(record)
        if "rejector" not in given:
            self._add(record, wrong_certainties(record, scores))
        if "dataset" not in given:
            self._add(record, self.inputs.differences(record, scores, images))
        if given:
            for kind, name in given.items():
                self.findings.objects.setdefault(kind, set()).add(name)
            return (of_preset(record) if is_current(record.row) else "") or IN_PYTHON
        # Do all these checks, also if the first is impossible.
        hindered = (
            self.inputs.absence(record),
            self._check_network(record, scores, images, rerun=rerun),
            of_preset(record) if is_current(record.row) else "",
        )
        return next(filter(None, (*(text for text in hindered if text != NOT_KEPT), *hindered)), "")

    def _check_network(self, record: CellRecord, scores: Scores, images: Tensor, *, rerun: bool) -> str:
        """Check the checkpoint and, if it is here, ask its network again; return why a check was impossible."""
        sha256 = record.row.checkpoint_sha256
        if is_given(record):
            return self._check_given(record, scores, images, rerun=rerun)
        path, entry = self.networks.find(record)
        if path is None:
            return f"no checkpoint {sha256[:12] or '(without a hash)'} here, and no zoo lists it"
        if entry and not entry.is_kept:
            self._add(record, mislisted(record, entry))
            return NOT_KEPT
        checkpoint = self.networks.read(path)
        if checkpoint.sha256 != sha256:
            self._add(record, [f"checkpoint {path.name} does not have the row's SHA-256"])
            return ""
        self._add(record, mistrained(record, checkpoint.facts))
        self._add(record, misheaded(record, checkpoint.facts, is_own=entry is None))
        return self._ask(record, self.networks.measured(record, checkpoint), scores, images, rerun=rerun)

    def _check_given(self, record: CellRecord, scores: Scores, images: Tensor, *, rerun: bool) -> str:
        """Find a network again that brought its weights, and ask it; return why a check was impossible."""
        if self.inputs.absence(record):
            return ""  # `_check_content` reports it; without inputs nothing says what shape the network's are
        try:
            source = build(NetworkSource, restore("network", record.cell["network"]))
            found = source.content()
        except UseError as error:
            return f"its network is not here: {error}"
        if found != record.row.checkpoint_sha256:
            return f"{record.row.trained_as} is not the network any more that was measured"
        if source.architecture != record.row.network:
            self._add(record, [f"its row says network {record.row.network}, and it is {source.architecture}"])
        checkpoint = Checkpoint(Path(record.row.trained_as), found, {}, {})
        return self._ask(record, self.networks.measured(record, checkpoint), scores, images, rerun=rerun)

    def _ask(
        self, record: CellRecord, measured: MeasuredNetwork, scores: Scores, images: Tensor, *, rerun: bool
    ) -> str:
        """Replay the stored images on a cell's network, or repeat the attack; return why that was impossible."""
        self._add(record, other_outputs(self._outputs(measured, images), scores))
        hindered = self._check_source(record)
        if self.inputs.absence(record):
            return ""  # `_check_content` reports it
        is_repeated = rerun and is_current(record.row)
        if is_repeated and not hindered:
            self._rerun(record, measured, scores)
        elif is_installed(record):
            self._replay(record, measured, scores)
        return hindered if is_repeated else ""

    def _outputs(self, measured: MeasuredNetwork, images: Tensor) -> Outputs:
        """Return a network's outputs on stored images; it is asked once for all rejectors that judge one attack."""
        if self._asked:
            network, known, outputs = self._asked[0]
            if network is measured and known.dtype == images.dtype and torch.equal(known, images):
                return outputs
        outputs = measured.judge(images.to(self.device))
        self._asked[:] = [(measured, images, outputs)]
        return outputs

    def _check_source(self, record: CellRecord) -> str:
        """Check the claims about a transfer's other network; return why the transfer cannot be repeated, or empty."""
        if "moved_on" not in record.cell:
            return ""
        path, entry = self.networks.find_source(record)
        if path is None or (entry is not None and not entry.is_kept):
            sha256 = stated(record.row)["moved_on"][:12]
            return f"the network {sha256} that its images were moved on is not here: a transfer cannot be repeated"
        found = mistaken_source(record, self.networks.read(path), is_own=entry is None)
        self._add(record, (f"of the network that its images were moved on: {text}" for text in found))
        return ""

    def _replay(self, record: CellRecord, measured: MeasuredNetwork, scores: Scores) -> None:
        """Ask the network and, if it needs no fit, the rejector again about clean inputs."""
        rejector = rejector_of(record)
        if rejector.has_fit():
            self.findings.unfitted += 1
            self._add(record, other_right_inputs(measured, rejector, scores))
        else:
            self._add(record, other_clean_scores(measured.clean(rejector, REPLAYED), scores))

    def _rerun(self, record: CellRecord, measured: MeasuredNetwork, scores: Scores) -> None:
        """Measure the cell again."""
        self._add(record, self.reruns.differences(record, measured, scores))
        self.findings.rerun += 1
        self.findings.new_notes = self.reruns.new_notes
        self.findings.tolerances.add(self.reruns.tolerance(record))

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

    def _add(self, record: CellRecord, found: Iterable[str]) -> None:
        """Add what was found wrong with a cell to the findings; lines found before an error stay."""
        row = record.row
        attack = f"{row.attack} {budget_text(row)}".strip()
        for text in found:
            self.findings.problems.append(f"{row.trained_as} {row.rejector} {attack} seed {row.seed}: {text}")


def verify_folder(
    folder: Path, roots: tuple[Path, ...], device: torch.device, *, rerun: bool, report: Report
) -> Findings:
    """Verify every cell of a work folder and its rows.csv."""
    store = Store(folder)
    if not (folder / "cells").is_dir():
        check_scores(folder, what="verify")
        raise UseError(f"{folder} is no work folder: it has no cells/")
    verifier = Verifier(store, roots, device)
    # Sort cells that share a network and an attack together: a rerun attacks once for all their rejectors.
    sound, broken = read_sound_cells(folder)
    cells = sorted(sound, key=lambda found: (found[0].checkpoint, found[0].attack, found[0].key))
    verifier.findings.cells += len(broken)
    verifier.findings.wrong += len(broken)
    verifier.findings.problems += broken.values()
    with report.task(f"verifying {len(cells)} cells", len(cells)) as advance:
        for record, row_sha256 in cells:
            verifier.check(record, row_sha256, rerun=rerun)
            advance(1)
    if broken:  # the notes of the other rows may depend on those that are lost
        verifier.findings.problems.append("rows.csv was not compared, as not every cell file can be read")
    else:
        verifier.check_rows(with_weak_notes(record.row for record, _ in cells))
    try:
        store.runs()
    except UseError as error:
        verifier.findings.problems.append(str(error))
    return verifier.findings
