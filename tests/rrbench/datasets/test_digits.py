"""The embedded digits: the splits are complete, disjoint, and never change."""

import sys

import numpy as np
import pytest
import torch

from rrbench.datasets import digits
from rrbench.datasets.check import check_batch, fingerprint
from rrbench.datasets.digits import Digits
from rrbench.protocols import Split

SPLITS: tuple[Split, ...] = ("train", "calibration", "test")


def test_digits_splits_are_disjoint_and_complete() -> None:
    ids = [Digits().load(split, ()).ids for split in SPLITS]
    assert [len(part) for part in ids] == [1077, 360, 360]
    assert sorted(torch.cat(ids).tolist()) == list(range(1797))


def test_digits_ids_lead_back_to_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    known, batch = load_digits(), Digits().load("test", ())
    assert np.array_equal(batch.images[:, 0].numpy() * 16, known.images[batch.ids])
    assert np.array_equal(batch.labels.numpy(), known.target[batch.ids])
    assert batch.images.dtype == torch.float32
    check_batch(batch, 10, "digits")


def test_the_split_of_digits_never_changes() -> None:
    assert Digits().load("train", ()).ids[:5].tolist() == [360, 1773, 1482, 600, 850]
    assert fingerprint(Digits().load("test", ())).startswith("792c38d74776c61c")


def test_digits_constants_are_those_of_its_training_images() -> None:
    images = Digits().load("train", ()).images
    assert Digits.info.mean[0] == pytest.approx(float(images.mean()), abs=5e-5)
    assert Digits.info.std[0] == pytest.approx(float(images.std(correction=0)), abs=5e-5)
    assert Digits.info.shape == tuple(images.shape[1:])


def test_digits_are_read_without_loading_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # to import it is an error now
    assert fingerprint(Digits().load("test", ())).startswith("792c38d74776c61c")


def test_a_scikit_learn_that_keeps_the_digits_elsewhere_is_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    assert fingerprint(Digits().load("test", ())).startswith("792c38d74776c61c")
