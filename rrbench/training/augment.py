"""Random shifts and mirror images for training, drawn per example id and made on the batch's device."""

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.protocols import Batch, DataInfo, Draws


def augment(batch: Batch, info: DataInfo, draws: Draws) -> Batch:
    """Shift each image by up to `info.pad` pixels, filling with zeros; mirror half of them if `info.flip`."""
    if not info.pad and not info.flip:
        return batch
    down, right, mirror = draws.uniform(batch.ids, (3,), 0).unbind(1)
    height, width = batch.images.shape[-2:]
    rows = _crop(down, info.pad, height)
    columns = _crop(right, info.pad, width)
    if info.flip:
        columns = torch.where((mirror < 0.5)[:, None], columns.flip(1), columns)
    padded = F.pad(batch.images, (info.pad,) * 4)
    return batch._replace(images=_pick(padded, rows, columns))


def _crop(draw: Tensor, pad: int, length: int) -> Tensor:
    """Return (N, length) positions along one padded side: a window that starts anywhere from 0 to 2 * pad."""
    start = (draw * (2 * pad + 1)).long()
    return start[:, None] + torch.arange(length, device=draw.device)


def _pick(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Take each image's own rows and columns from all its channels."""
    each = torch.arange(images.shape[0], device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
    return images[each, channel, rows[:, None, :, None], columns[:, None, None, :]]
