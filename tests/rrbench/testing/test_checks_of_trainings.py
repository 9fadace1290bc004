"""The checks of frameworks, losses, networks and data sets: each mistake breaks the check for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from failing_checks import failures
from made_up_plugins import BrokenTraining
from rrbench.datasets.digits import Digits
from rrbench.networks.small_cnn import SmallCnn
from rrbench.protocols import Batch, DataInfo, NetworkSource, Rejector, Split
from rrbench.testing import dataset_checks, framework_checks, network_checks, rejector_checks
from rrbench_baselines.snet import Snet
from short_trainings import Leaving
from wrong_frameworks import Mistaken, WrongLoss
from wrong_rejectors import (
    Sure,
)

# Frameworks and losses.


LABELS = "use each image's own label"


@pytest.mark.parametrize(
    ("how", "broken"),
    [
        ("", {}),
        ("first images", {"the label of every image is in its loss": "of 10 of 20 images, the first at place 10"}),
        ("first answers", {"the label of every image is in its loss": "of 10 of 20 images, the first at place 10"}),
        (
            "other labels",
            {
                "a network learns the labels by it": LABELS,
                "the rejector is given each image's own label": LABELS,
            },
        ),
        ("other labels for the rejector", {"the rejector is given each image's own label": LABELS}),
        (
            "forgetful",
            {"the rejector's share is in its loss": "return victim.training_loss(outputs, labels, loss)"},
        ),
    ],
)
def test_a_framework_s_mistake_breaks_the_checks_that_are_about_it(how: str, broken: dict[str, str]) -> None:
    found = failures(framework_checks(Mistaken(how=how)))
    assert found.keys() == broken.keys()
    for sentence, line in broken.items():
        assert line in found[sentence]


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        (Mistaken(how="own step"), "return only the loss, and rrbench takes the step"),
        (Mistaken(how="no_grad"), "Mistaken returns a loss without a gradient"),
        (Mistaken(how="each"), "return one number, as loss.mean() is"),
        (Leaving(how="eval"), "it leaves the network in eval mode: put it back before returning the loss"),
        (BrokenTraining(), "a framework's own trouble"),
    ],
)
def test_a_framework_that_gives_no_loss_breaks_all_but_that_of_its_class(framework: Any, line: str) -> None:
    found = failures(framework_checks(framework))
    found.pop("its class says what it is", "")
    assert len(found) == 6
    assert all(line in why for why in found.values())


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("forgetful", "training_loss of WrongLoss leaves out classifier_loss: add it, or name in frameworks those"),
        ("zero times", "training_loss of WrongLoss leaves out classifier_loss: add it, or name in frameworks those"),
        ("minus", "training_loss subtracts classifier_loss: add it"),
        ("each", "training_loss returns a loss of shape (100,): return one number, as loss.mean() is"),
    ],
)
def test_a_rejector_that_leaves_the_framework_s_loss_out_breaks_a_check(how: str, line: str) -> None:
    sentence = "the framework's loss is in its loss, or it names those whose loss it replaces"
    assert line in failures(rejector_checks(WrongLoss(how=how)))[sentence]


def test_a_loss_that_replaces_the_framework_s_must_teach_the_labels() -> None:
    @dataclass
    class Selective(WrongLoss):
        frameworks = ("standard",)

    found = failures(rejector_checks(Selective(how="forgetful")))
    assert list(found.values()) == ["training_loss replaces classifier_loss and does not teach the labels"]
    assert failures(rejector_checks(Snet())) == {}


# Networks and data sets.


def test_a_network_that_forgets_the_head_breaks_the_check_that_is_about_it() -> None:
    @dataclass(frozen=True)
    class Forgetting(NetworkSource):
        def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
            return SmallCnn().build(info, Sure())

    assert failures(network_checks(SmallCnn())) == {}
    found = failures(network_checks(Forgetting()))
    assert list(found) == ["it gives features, logits and the rejector's head"]
    assert "call rejector.build_head" in found["it gives features, logits and the rejector's head"]


@dataclass(frozen=True)
class Mixed(Digits):
    """The digits, but for `how`."""

    how: str = ""

    def load(self, split: Split, roots: tuple[Path, ...] = ()) -> Batch:
        batch = super().load(split, roots)
        if self.how == f"{split} labels":
            return batch._replace(labels=batch.labels + 5)
        if self.how == f"{split} range":
            return batch._replace(images=16 * batch.images)
        if self.how == f"{split} size":
            return batch.at(slice(300))
        if self.how == f"{split} drawn":
            return batch.at(torch.randperm(batch.size))
        return batch

    @property
    def splits(self) -> Any:
        others = {"splits": {"validation"}, "test alone": set()}.get(self.how, {"train", "calibration"})
        return frozenset({"test"} | others)


@pytest.mark.parametrize(
    ("how", "sentence", "line"),
    [
        ("train labels", "its train images, where they are here, are what it says", "train: labels must lie in 0..9"),
        ("train range", "its train images, where they are here, are what it says", "images must lie in [0, 1]"),
        (
            "calibration size",
            "its calibration images, where they are here, are what it says",
            "it has 300 calibration images, and its info says 360",
        ),
        ("test size", "its test images, where they are here, are what it says", "it has 300 test images"),
        ("test drawn", "the same test images come each time", "draw splits from a fixed seed"),
        ("splits", "its class says what it is", "its splits are test, validation: they must be of train, calibration"),
    ],
)
def test_a_data_set_s_mistake_breaks_the_check_that_is_about_it(how: str, sentence: str, line: str) -> None:
    found = failures(dataset_checks(Mixed(how)))
    assert list(found) == [sentence]
    assert line in found[sentence]


def test_a_right_data_set_keeps_them_all_and_one_without_training_images_has_no_check_of_them() -> None:
    assert failures(dataset_checks(Mixed())) == {}
    assert failures(dataset_checks(Mixed("test alone"))) == {}
    assert not any("train" in str(check) for check in dataset_checks(Mixed("test alone")))
