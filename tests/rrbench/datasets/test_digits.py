"""The embedded digits: the splits are complete, disjoint, and never change."""

import numpy as np
import pytest
import torch

from rrbench.datasets import digits as digits_module
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

    digits, batch = load_digits(), Digits().load("test", ())
    assert np.array_equal(batch.images[:, 0].numpy() * 16, digits.images[batch.ids])
    assert np.array_equal(batch.labels.numpy(), digits.target[batch.ids])
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


def test_digits_are_the_same_if_scikit_learn_moves_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Digits().load("train", ())
    monkeypatch.setattr(digits_module, "find_spec", lambda name: None)
    asked = Digits().load("train", ())
    assert torch.equal(batch.images, asked.images)
    assert torch.equal(batch.labels, asked.labels)
