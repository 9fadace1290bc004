"""The network that is measured, with its data: its clean outputs, and the victims that it forms with rejectors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rrbench.compute.batching import batch_size, forward
from rrbench.compute.devices import Precision, make_twin, tf32
from rrbench.compute.eval_mode import frozen
from rrbench.compute.looking import without_looks
from rrbench.datasets.check import fingerprint
from rrbench.errors import CellError
from rrbench.lending import kept, surroundings_kept
from rrbench.measuring import probes
from rrbench.measuring.calibration import Border, find_border, scale_of
from rrbench.measuring.probes import Doubt
from rrbench.metrics.deployment import CleanScores, fold_of, fold_thresholds
from rrbench.planning.sample import ALL_INPUTS, Sample
from rrbench.plugins.guards import certainties as certainties
from rrbench.plugins.guards import check_alone, fit, threshold_of
from rrbench.protocols import (
    Batch,
    Calibration,
    Outputs,
    Rejector,
    Split,
    Victim,
)

TRAINING = "fit_data, or x_train and y_train in the .npz"  # how a user gives training data


@dataclass
class MeasuredNetwork:
    """The network that is measured, with its data on one device; its outputs on clean inputs are computed once."""

    network: nn.Module
    load: Callable[[Split], Batch | None]  # None: the user gave no such data
    device: torch.device
    precision: Precision
    sample: Sample = ALL_INPUTS
    may_have_learnt: bool = False  # the inputs that are measured: rrbench trained it on data of somebody else
    _outputs: dict[tuple[Split, int | None], Outputs] = field(default_factory=dict)
    _borders: dict[Split, Border | None] = field(default_factory=dict)
    _twins: dict[tuple[Precision, bool], nn.Module | None] = field(default_factory=dict)
    _doubts: dict[str, list[Doubt]] = field(default_factory=dict)

    def batch(self, split: Split) -> Batch | None:
        """Return a split: of the test split what is measured, of calibration inputs those that may fix thresholds."""
        batch = self.load(split)
        if batch is None or split == "train":
            return batch
        return self.sample.of(batch) if split == "test" else self.sample.held_out(batch, self.test())

    def apart(self) -> Batch | None:
        """Return the calibration inputs if none of them is measured; else None."""
        calibration = self.batch("calibration")
        if calibration is None or bool(torch.isin(calibration.ids, self.test().ids).any()):
            return None
        return calibration

    def test(self) -> Batch:
        """Return the inputs that are measured."""
        batch = self.batch("test")
        assert batch is not None
        return batch

    @cached_property
    def data_sha256(self) -> str:
        """A hash of the inputs that are measured."""
        return fingerprint(self.test())

    def outputs(self, split: Split, count: int | None = None) -> Outputs:
        """Return the outputs on a clean split, or on its first `count` inputs, in exact float32."""
        if count is not None and (split, None) in self._outputs:
            return self._outputs[split, None].at(slice(count))
        if (split, count) not in self._outputs:
            batch = self.batch(split)
            assert batch is not None
            self._outputs[split, count] = self.judge(batch.images[:count])
        return self._outputs[split, count]

    def judge(self, images: Tensor) -> Outputs:
        """Return the network's outputs in exact float32: every printed number comes from such a pass."""
        with surroundings_kept(), frozen(self.network), kept(self.network, changes_itself), tf32(False):
            outputs = forward(self.network, images, batch_size(self.device, images.shape[1:]))
        if not all(bool(part.isfinite().all()) for part in outputs):
            raise CellError("the network gives NaN or infinite outputs")
        return outputs

    def attackable(self, precision: Precision, *, is_blind: bool = False) -> nn.Module:
        """Return the network that attacks use: its twin if it has one; if `is_blind`, without a rejector's looks."""
        network = without_looks(self.network) if is_blind else self.network
        key = precision, network is self.network  # without looks, blind and other attacks share a twin
        if key not in self._twins:
            self._twins[key] = make_twin(network, precision, self.device, replays=True)
        return self._twins[key] or network

    def doubts(self, rejector: Rejector | None = None) -> list[Doubt]:
        """Return doubts about the network and its data or, if given, about a fitted rejector; computed once."""
        about = "" if rejector is None else f"{type(rejector).__name__} {rejector!r}"
        if about not in self._doubts:
            test, outputs = self.test(), self.outputs("test")
            if rejector is not None:
                self._doubts[about] = probes.of_rejector(rejector, outputs, test.labels)
                if rejector.has_fit():
                    self._doubts[about] += self._of_fit
                return self._doubts[about]
            # As many as are attacked at once: more large images may need more memory than there is.
            few = slice(batch_size(self.device, test.images.shape[1:]))
            with frozen(self.network), kept(self.network, changes_itself), tf32(False):
                found = probes.of_network(self.network, test.at(few), outputs)
            found += probes.of_answers(outputs, test.labels)
            found += probes.of_data(test, self.apart(), outputs.logits.shape[1])
            calibration = None if self.apart() is not None else self.batch("calibration")
            found += [] if calibration is None else probes.of_ids(test, calibration)
            train = self.batch("train") if self.may_have_learnt else None
            self._doubts[about] = found + ([] if train is None else probes.of_training(test, train))
        return self._doubts[about]

    @cached_property
    def _of_fit(self) -> list[Doubt]:
        """Doubts about the inputs of a fit, the same for every fitted rejector."""
        train = self.batch("train")
        return [] if train is None else probes.of_fit(self.test(), self.apart(), train)

    def victim(self, rejector: Rejector, *, needs_scale: bool) -> Victim:
        """Fit and calibrate a rejector; `needs_scale`: an adaptive attack will need the scale of its certainty."""
        train = self.batch("train") if rejector.has_fit() or needs_scale else None
        if needs_scale and train is None and not rejector.is_probability:
            raise CellError(
                f"an adaptive attack on {rejector} needs training data ({TRAINING}): its certainty has no scale"
            )
        if rejector.has_fit() and not rejector.fitted:
            if train is None:
                raise CellError(f"{rejector} must be fitted: give training data ({TRAINING})")
            rejector = fit(rejector, self.outputs("train"), train.labels)
        check_alone(rejector, self.outputs("test"), self.test().labels)
        return Victim(self.network, rejector, self.calibrate(rejector, train if needs_scale else None))

    def calibrate(self, rejector: Rejector, train: Batch | None) -> Calibration:
        """Fix a rejector's thresholds on clean inputs and, if `train` is given, the scale of its certainty."""
        folds = [math.nan if each is None else each for each in fold_thresholds(self.clean(rejector))]
        calibration = self.batch("calibration")
        median, scale = float("nan"), float("nan")
        # Differs from the paper: on the training inputs a fitted rejector meets the inputs of its own fit (lid: at
        # distance 0), and an attack on that scale would be weak. Held-out inputs show the certainty to be reached.
        split: Split = "calibration" if rejector.has_fit() and calibration is not None else "train"
        scaling = calibration if split == "calibration" else train
        if train is not None and scaling is not None:
            certainty, correct = self._clean_scores(rejector, split, scaling)
            median, scale = scale_of(certainty[correct], self._at_border(rejector, split, scaling))
        return Calibration(max(folds), median, scale, tuple(folds))

    def clean(self, rejector: Rejector, count: int | None = None) -> CleanScores:
        """Return a fitted rejector's certainties on clean inputs; with `count`, only on the first measured inputs.

        Calibration inputs fix thresholds if none of them is measured. Those of CIFAR are test images: there all
        measured inputs fix thresholds.
        """
        test, apart = self.test(), self.apart()
        certainty, correct = self._clean_scores(rejector, "test", test, count)
        others: tuple[NDArray[np.float64], NDArray[np.bool_]] = np.empty(0), np.empty(0, dtype=np.bool_)
        if apart is not None:
            others = self._clean_scores(rejector, "calibration", apart)
        return CleanScores(certainty, correct, fold_of(to_numpy(test.ids[:count])), *others, threshold_of(rejector))

    def _at_border(self, rejector: Rejector, split: Split, batch: Batch) -> NDArray[np.float64]:
        """Return certainties on the border between classes; empty for a probability, which needs no scale."""
        if rejector.is_probability:
            return np.empty(0)
        if split not in self._borders:
            self._borders[split] = find_border(self.judge, self.outputs(split), batch)
        border = self._borders[split]
        return certainties(rejector, border.outputs, border.labels) if border else np.empty(0)

    def _clean_scores(
        self, rejector: Rejector, split: Split, batch: Batch, count: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        outputs, labels = self.outputs(split, count), batch.labels[:count]
        return certainties(rejector, outputs, labels), to_numpy(outputs.logits.argmax(1) == labels)


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor to the CPU, as a NumPy array."""
    return tensor.detach().cpu().numpy()


def changes_itself(what: str) -> str:
    """Return the message for a network that writes into itself."""
    return f"the network changes its own {what} when it answers: its rows would depend on what was asked before"
