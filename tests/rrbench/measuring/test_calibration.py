"""The scale on which an attack sees a certainty that is no probability."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.planning.sample import Sample
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
    measured = MeasuredNetwork(Identity(), lambda name: batches[name], torch.device("cpu"), "fp32")
    found = measured.victim(rejector, needs_scale=True).calibration
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


def test_calibration_inputs_that_are_test_inputs_fix_one_threshold_where_they_lie_between_the_measured() -> None:
    """All ids of every fifth input are in one fold, so that cross-fitting could find no threshold."""
    peaks = [(1 + index) / 100 for index in range(40)]
    test = split(peaks, 0)
    batches: dict[Split, Batch | None] = {"train": None, "calibration": test.at(slice(20, None)), "test": test}
    measured = MeasuredNetwork(Identity(), batches.get, torch.device("cpu"), "fp32", Sample(every=5))
    assert measured.test().ids.tolist() == [0, 5, 10, 15, 20, 25, 30, 35]
    apart = measured.apart()
    assert apart is not None
    assert apart.ids.tolist() == [index for index in range(20, 40) if index % 5]
    # Of 16 right inputs the lowest is at the quantile 16 * 5 // 100 = 0: that of id 21.
    found = measured.victim(Largest(), needs_scale=False).calibration
    assert found is not None
    assert found.threshold == pytest.approx(peaks[21])


# Three pixels are three logits, so that the way from one class to another is known.


def between(peaks: list[float], *, halves: int = 2) -> Batch:
    """Return inputs sorted by class: the first of class 0, the others of class 1, 2 ..."""
    images = torch.zeros(len(peaks), 1, 1, 3)
    labels = torch.arange(len(peaks)) * halves // len(peaks)
    images[torch.arange(len(peaks)), 0, 0, labels] = torch.tensor(peaks)
    return Batch(images, labels, torch.arange(len(peaks)))


def scaled(rejector: Rejector, batch: Batch) -> tuple[float, float]:
    measured = MeasuredNetwork(
        Identity(), {"train": batch, "calibration": None, "test": batch}.get, torch.device("cpu"), "fp32"
    )
    found = measured.victim(rejector, needs_scale=True).calibration
    assert found is not None
    return found.median, found.scale


def test_a_certainty_that_hardly_varies_is_scaled_by_its_fall_to_the_border_between_two_classes() -> None:
    """From (1, 0, 0) to (0, 1, 0) the answer changes at (1/2, 1/2, 0), where the certainty is 1/2."""
    peaks = [1.0, 0.9999, 0.9998, 0.9999]
    median, scale = scaled(Largest(), between(peaks))
    assert median == pytest.approx(0.9999)
    assert scale == pytest.approx(0.5, abs=0.01)
    assert scale > 1000 * np.subtract(*np.quantile(peaks, [0.75, 0.25]))


def test_the_border_is_found_wherever_it_lies() -> None:
    """From (0.9, 0, 0) to (0, 0.3, 0) the answer changes three quarters of the way, at 0.225."""
    _, scale = scaled(Largest(), between([0.9, 0.9, 0.9, 0.3, 0.3]))
    # Both ways of a pair have the same border: median 0.9, and 0.9 - 0.225.
    assert scale == pytest.approx(0.675, abs=0.02)


def test_a_certainty_that_does_not_fall_there_keeps_its_interquartile_range() -> None:
    @dataclass
    class Unsure(Largest):
        def certainty(self, outputs: Outputs) -> Tensor:
            return -super().certainty(outputs)

    peaks = [0.2, 0.4, 0.6, 0.8]
    assert scaled(Unsure(), between(peaks))[1] == pytest.approx(0.3)


def test_a_certainty_that_never_changes_has_a_scale_all_the_same() -> None:
    @dataclass
    class Constant(Largest):
        def certainty(self, outputs: Outputs) -> Tensor:
            return super().certainty(outputs) * 0 + 7

    assert scaled(Constant(), between([0.2, 0.4, 0.6, 0.8]))[1] > 0


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_an_attack_does_not_care_in_which_unit_a_certainty_is_given(unit: float) -> None:
    @dataclass
    class Measured(Largest):
        def certainty(self, outputs: Outputs) -> Tensor:
            return unit * super().certainty(outputs)

    assert scaled(Measured(), between([1.0, 0.9999, 0.9998, 0.9999]))[1] == pytest.approx(0.5 * unit, rel=0.02)


def test_the_border_is_looked_for_once_for_all_rejectors_and_not_for_a_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    judge = MeasuredNetwork.judge

    def counted(self: MeasuredNetwork, images: Tensor) -> Outputs:
        asked.append(len(images))
        return judge(self, images)

    @dataclass
    class Sure(Largest):
        is_probability = True

    monkeypatch.setattr(MeasuredNetwork, "judge", counted)
    batch = between([1.0, 0.9, 0.8, 0.7])
    measured = MeasuredNetwork(Identity(), {"train": batch, "test": batch}.get, torch.device("cpu"), "fp32")
    measured.victim(Sure(), needs_scale=True)
    before = len(asked)
    assert asked == [4, 4]
    measured.victim(Largest(), needs_scale=True)
    after = len(asked)
    assert after > before
    measured.victim(Fitted(), needs_scale=True)
    assert len(asked) == after
