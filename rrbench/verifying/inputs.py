"""Compares a cell's inputs with the data set, if it is here: ids, labels, hashes, the budget of stored images."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from rrbench.datasets.check import fingerprint
from rrbench.errors import CellError, UseError
from rrbench.measuring.evaluation import KEPT_IMAGES
from rrbench.planning.sample import Sample
from rrbench.plugins.guards import check_budget
from rrbench.plugins.registry import build, restore
from rrbench.protocols import Batch, DataSource, Split
from rrbench.rows.record import CellRecord
from rrbench.rows.scores import Scores
from rrbench.verifying.restored import budget_of, is_given


@dataclass(frozen=True)
class Inputs:
    """The data sets of a folder's cells; each split is loaded once."""

    roots: tuple[Path, ...]
    device: torch.device
    _batches: dict[tuple[str, Split], Batch] = field(default_factory=dict)
    _hashes: dict[tuple[str, Sample], str] = field(default_factory=dict)

    def load(self, record: CellRecord, split: Split) -> Batch:
        """Return a split of a cell's data set; if it is not here, a UseError says how to get it."""
        saved = record.cell["dataset"]
        if (str(saved), split) not in self._batches:
            batch = self._source(record).load(split, self.roots)
            self._batches[str(saved), split] = batch.to(self.device)
        return self._batches[str(saved), split]

    def load_if_any(self, record: CellRecord, split: Split) -> Batch | None:
        """Return a split of a cell's data set; None if the data set has no such split."""
        return self.load(record, split) if split in self._splits(record) else None

    def _splits(self, record: CellRecord) -> frozenset[Split]:
        return self._source(record).splits_for(is_given=is_given(record))

    def _source(self, record: CellRecord) -> DataSource:
        return build(DataSource, restore("dataset", record.cell["dataset"]))

    def find(self, record: CellRecord, split: Split) -> Batch | None:
        """Return a split of a cell's data set; None if it is not here."""
        try:
            return self.load(record, split)
        except UseError:
            return None

    def absence(self, record: CellRecord) -> str:
        """Say which inputs of a cell are not here; empty if all are."""
        name = record.cell["dataset"][0]
        if self.find(record, "test") is None:
            return f"data set {name} is not here"
        has_more = "calibration" in self._splits(record)
        if has_more and self.find(record, "calibration") is None:  # they are borrowed from a data set that is not here
            return f"calibration inputs of {name} are not here"
        return ""

    def differences(self, record: CellRecord, scores: Scores, images: Tensor) -> Iterator[str]:
        """Say where a cell and its stored images differ from the data set; nothing if it is not here."""
        whole, sample = self.find(record, "test"), Sample.of_cell(record.cell)
        if whole is None:
            return
        test, data = sample.of(whole), (str(record.cell["dataset"]), sample)
        if data not in self._hashes:
            self._hashes[data] = fingerprint(test)
        if self._hashes[data] != record.row.data_sha256:
            yield "it was measured on other data than is here"
        if test.ids.tolist() != scores.ids.tolist() or test.labels.tolist() != scores.labels.tolist():
            yield "its ids or labels are not the data set's"
        if len(images) < min(KEPT_IMAGES, test.size):
            yield f"only {len(images)} of its images are stored"
        try:
            check_budget(images.to(self.device), test.images[: len(images)], budget_of(record))
        except CellError as error:
            yield f"its stored images: {error}"
        yield from self._other_apart(record, scores, test)

    def _other_apart(self, record: CellRecord, scores: Scores, test: Batch) -> Iterator[str]:
        """Check that inputs kept apart fix thresholds if the data set has such inputs, else cross-fitting."""
        has_more = "calibration" in self._splits(record)
        calibration = self.find(record, "calibration") if has_more else test
        if calibration is None:
            return
        calibration = Sample.of_cell(record.cell).held_out(calibration, test)
        apart = 0 if bool(torch.isin(calibration.ids, test.ids).any()) else calibration.size
        found = scores.apart_certainty.size
        if found != apart:
            yield f"{found} inputs kept apart fix its threshold, and the data set has {apart}"
