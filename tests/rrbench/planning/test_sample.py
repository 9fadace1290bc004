"""Which test inputs a run measures, and which others may fix its thresholds."""

import pytest
import torch

from rrbench.errors import UseError
from rrbench.planning.sample import ALL_INPUTS, Sample
from rrbench.protocols import Batch


def batch(*ids: int) -> Batch:
    """Return inputs whose pixel and label are their id."""
    values = torch.tensor(ids)
    return Batch(values.float().view(-1, 1, 1, 1), values, values)


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (ALL_INPUTS, list(range(25))),
        (Sample(limit=3), [0, 1, 2]),
        (Sample(limit=99), list(range(25))),
        (Sample(every=10), [0, 10, 20]),
        (Sample(every=24), [0, 24]),
        (Sample(every=25), [0]),
    ],
)
def test_a_sample_is_the_first_inputs_or_every_so_many_th_from_the_first_on(
    sample: Sample, expected: list[int]
) -> None:
    found = sample.of(batch(*range(25)))
    assert found.ids.tolist() == found.labels.tolist() == found.images.flatten().tolist() == expected
    assert found.images.is_contiguous()
    assert sample.size(25) == len(expected)


def test_every_first_input_is_all_of_them() -> None:
    assert Sample.asked(None, 1) == ALL_INPUTS


def test_facts_of_a_run_without_it_are_those_of_older_keys() -> None:
    assert ALL_INPUTS.facts() == {"limit": None}
    assert Sample(limit=7).facts() == {"limit": 7}
    assert Sample(every=7).facts() == {"limit": None, "every": 7}
    for sample in (ALL_INPUTS, Sample(limit=7), Sample(every=7)):
        assert Sample.of_cell(sample.facts()) == sample


def test_calibration_inputs_between_the_measured_ones_fix_thresholds() -> None:
    """The last 1,000 test images of CIFAR are calibration inputs; of these, every tenth run measures 100."""
    sample, calibration = Sample(every=10), batch(*range(9_000, 10_000))
    held_out = sample.held_out(calibration, sample.of(batch(*range(10_000))))
    assert held_out.ids.tolist() == [index for index in range(9_000, 10_000) if index % 10]


def test_other_calibration_inputs_stay_as_they_are() -> None:
    apart = batch(*range(100, 110))
    assert Sample(every=2).held_out(apart, batch(0, 2, 4)).ids.tolist() == apart.ids.tolist()
    assert ALL_INPUTS.held_out(apart, batch(100)).ids.tolist() == apart.ids.tolist()
    assert Sample(every=2).held_out(batch(2, 4), batch(0, 2, 4)).ids.tolist() == [2, 4], "all of them are measured"


@pytest.mark.parametrize("every", [5, 10])
def test_a_step_that_leaves_all_inputs_in_one_fold_needs_calibration_inputs(every: int) -> None:
    line = f"--every {every} leaves no inputs of own to fix thresholds: .*such as {every - 1}"
    with pytest.raises(UseError, match=line):
        Sample(every=every).check_folds({"test"}, "own")
    Sample(every=every).check_folds({"test", "calibration"}, "own")
    Sample(every=every - 1).check_folds({"test"}, "own")


def test_a_row_says_which_inputs_it_has() -> None:
    assert Sample(every=10).note == "only every 10th test input"
    assert Sample(limit=10).note == ALL_INPUTS.note == ""
