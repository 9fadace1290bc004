"""The rules that every batch of any data set must follow."""

from typing import Any

import numpy as np
import pytest
import torch

from rrbench.datasets.check import check_batch, fingerprint
from rrbench.errors import UseError
from rrbench.protocols import Batch, Split

SPLITS: tuple[Split, ...] = ("train", "calibration", "test")


def good_batch() -> Batch:
    return Batch(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 2, 1]), torch.arange(4))


def spoiled(value: float) -> torch.Tensor:
    images = torch.rand(4, 1, 2, 2)
    images[2, 0, 1, 1] = value
    return images


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"images": np.zeros((4, 1, 2, 2))}, "torch tensor, not ndarray"),
        ({"images": torch.zeros(4, 1, 2, 2, dtype=torch.uint8)}, "torch.uint8"),
        ({"images": torch.rand(4, 4)}, r"shape \(4, 4\)"),
        ({"images": torch.rand(3, 1, 2, 2)}, "3 images, 4 labels"),
        ({"images": spoiled(float("nan"))}, "NaN"),
        ({"images": spoiled(1.5)}, r"1\.5\]; normalisation"),
        ({"images": spoiled(-0.25)}, r"span \[-0\.25"),
        ({"images": spoiled(float("inf"))}, "inf"),
        ({"labels": torch.zeros(4, 3)}, r"labels .* shape \(4, 3\)"),
        ({"labels": torch.zeros(4)}, "labels .* torch.float32"),
        ({"labels": torch.ones(4, dtype=torch.bool)}, "labels .* torch.bool"),
        ({"labels": torch.tensor([0, 1, 2, 3])}, r"0\.\.2 but span 0\.\.3"),
        ({"labels": torch.tensor([-1, 1, 2, 2])}, r"span -1\.\.2"),
        ({"ids": torch.arange(5)}, "5 ids"),
    ],
)
def test_a_wrong_batch_is_refused_in_one_line_that_names_it(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UseError, match=f"^my data: .*{reason}") as caught:
        check_batch(good_batch()._replace(**changes), 3, "my data")
    assert "\n" not in str(caught.value)


def test_an_empty_batch_is_refused_and_a_good_one_is_not() -> None:
    check_batch(good_batch(), 3, "my data")
    with pytest.raises(UseError, match="my data: no images"):
        check_batch(good_batch().at(slice(0, 0)), 3, "my data")


def test_a_fingerprint_depends_on_pixels_labels_and_shape_and_on_nothing_else() -> None:
    batch = good_batch()
    same = Batch(batch.images.transpose(2, 3).contiguous().transpose(2, 3), batch.labels.clone(), batch.ids + 9)
    assert fingerprint(same) == fingerprint(batch)
    others = [
        batch._replace(images=spoiled(0.5)),
        batch._replace(labels=batch.labels.flip(0)),
        batch._replace(images=batch.images.view(4, 2, 1, 2)),
    ]
    assert len({fingerprint(other) for other in [batch, *others]}) == 4
