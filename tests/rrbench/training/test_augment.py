"""Augmentation against a plain loop over images with the same draws."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.protocols import Batch, DataInfo
from rrbench.training.augment import augment

DRAWS = HashedDraws(7)


def make_batch(count: int = 50, height: int = 6, width: int = 9) -> Batch:
    images = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))
    return Batch(images, torch.arange(count) % 10, torch.arange(count) * 3 + 1)


def make_info(pad: int, flip: bool) -> DataInfo:
    return DataInfo(classes=10, shape=(3, 6, 9), mean=(0.0,) * 3, std=(1.0,) * 3, pad=pad, flip=flip)


def one_by_one(batch: Batch, pad: int, flip: bool) -> Tensor:
    moved = []
    for image, draw in zip(batch.images, DRAWS.uniform(batch.ids, (3,), 0), strict=True):
        top, left = int(draw[0] * (2 * pad + 1)), int(draw[1] * (2 * pad + 1))
        height, width = image.shape[1:]
        window = F.pad(image, (pad, pad, pad, pad))[:, top : top + height, left : left + width]
        moved.append(window.flip(2) if flip and draw[2] < 0.5 else window)
    return torch.stack(moved)


@pytest.mark.parametrize(("pad", "flip"), [(4, True), (2, False), (0, True)])
def test_it_equals_a_loop_that_pads_crops_and_flips_each_image(pad: int, flip: bool) -> None:
    batch = make_batch()
    moved = augment(batch, make_info(pad, flip), DRAWS)
    assert torch.equal(moved.images, one_by_one(batch, pad, flip))
    assert moved.images.is_contiguous()
    assert moved.labels is batch.labels
    assert moved.ids is batch.ids


def test_without_padding_and_flip_the_batch_is_returned_as_it_is() -> None:
    batch = make_batch()
    assert augment(batch, make_info(0, False), DRAWS) is batch


def test_an_image_moves_alike_whatever_else_is_in_its_batch() -> None:
    batch, info = make_batch(), make_info(4, True)
    whole = augment(batch, info, DRAWS).images
    chosen = torch.tensor([40, 3, 17])
    assert torch.equal(augment(batch.at(chosen), info, DRAWS).images, whole[chosen])


def test_every_shift_comes_and_half_of_the_images_are_mirrored() -> None:
    count, pad = 4000, 2
    marked = torch.zeros(count, 1, 9, 9)
    marked[:, :, 4, 3] = 1.0
    batch = Batch(marked, torch.zeros(count, dtype=torch.long), torch.arange(count))
    moved = augment(batch, DataInfo(10, (1, 9, 9), (0.0,), (1.0,), pad=pad, flip=True), DRAWS).images
    rows, columns = moved.amax((1, 3)).argmax(1), moved.amax((1, 2)).argmax(1)
    assert set(rows.tolist()) == {2, 3, 4, 5, 6}
    assert set(columns.tolist()) == set(range(1, 8))  # 3 +- 2, or mirrored 5 +- 2
    assert float((columns == 1).sum() / (columns == 7).sum()) == pytest.approx(1.0, abs=0.2)


def test_another_stream_moves_the_images_in_another_way() -> None:
    batch, info = make_batch(), make_info(4, True)
    assert not torch.equal(augment(batch, info, DRAWS).images, augment(batch, info, HashedDraws(8)).images)
