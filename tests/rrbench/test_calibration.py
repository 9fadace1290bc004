"""The scale on which an attack sees a certainty that is no probability."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rrbench.evaluation import Subject
from rrbench.protocols import Batch, Outputs, Rejector, Split


class Identity(nn.Module):
    """Three pixels are three logits."""

    def forward(self, images: Tensor) -> Outputs:
        logits = images.flatten(1)
        return Outputs(logits, logits, logits[:, :0])


@dataclass
class Largest(Rejector):
    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1).double()


@dataclass
class Fitted(Largest):
    def fit(self, clean: Outputs, labels: Tensor) -> None:
        self.fitted = {"seen": clean.logits}


def split(peaks: list[float], first_id: int) -> Batch:
    images = torch.zeros(len(peaks), 1, 1, 3)
    images[:, 0, 0, 0] = torch.tensor(peaks)
    return Batch(images, torch.zeros(len(peaks), dtype=torch.long), first_id + torch.arange(len(peaks)))


TRAIN, HELD_OUT = [0.1, 0.2, 0.3, 0.4, 0.9], [0.5, 0.6, 0.7, 0.8, 1.0]


def calibration(rejector: Rejector, *, held_out: bool = True) -> tuple[float, float]:
    batches: dict[Split, Batch | None] = {
        "train": split(TRAIN, 0),
        "calibration": split(HELD_OUT, 100) if held_out else None,
        "test": split([0.5], 200),
    }
    subject = Subject(Identity(), lambda name: batches[name], torch.device("cpu"), "fp32")
    found = subject.victim(rejector, is_attacked=True).calibration
    assert found is not None
    return found.median, found.scale


def scale_of(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.25, 0.75])
    return sorted(values)[2], high - low


def test_median_and_interquartile_range_are_of_the_training_inputs() -> None:
    assert calibration(Largest()) == pytest.approx(scale_of(TRAIN))


def test_a_rejector_that_was_fitted_on_those_is_scaled_by_held_out_inputs() -> None:
    assert calibration(Fitted()) == pytest.approx(scale_of(HELD_OUT))


def test_without_held_out_inputs_the_training_inputs_must_do() -> None:
    assert calibration(Fitted(), held_out=False) == pytest.approx(scale_of(TRAIN))
