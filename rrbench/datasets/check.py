"""Checks a batch before anything is measured on it, and hashes it. For users' own data too."""

import hashlib

import torch
from torch import Tensor

from rrbench.errors import UseError
from rrbench.protocols import Batch


def check_batch(batch: Batch, classes: int | None, what: str) -> None:
    """Refuse a batch on which a network of `classes` classes cannot be measured; `what` names it in the message.

    None: how many classes there are is not known yet.
    """
    problem = _wrong_kind(batch) or _wrong_images(batch.images)
    if not problem and classes is not None:
        problem = _wrong_labels(batch.labels, classes)
    if problem:
        raise UseError(f"{what}: {problem}")


def wrong_tensor(tensor: Tensor, name: str) -> str:
    """Refuse a tensor that does not simply hold its values: what follows would fail on it in PyTorch's words."""
    if tensor.is_meta:
        kind = "meta, which holds no values"
    elif tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantized"
    else:
        kind = "" if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")
    return kind and f"{name} must be a plain dense tensor, not {kind}"


def _wrong_kind(batch: Batch) -> str:
    for name, part in batch._asdict().items():
        if not isinstance(part, Tensor):
            return f"{name} must be a torch tensor, not {type(part).__name__}"
        if wrong := wrong_tensor(part, name):
            return wrong
    images, labels, ids = batch
    if not images.is_floating_point() or images.dim() != 4:
        return f"images must be floats of shape (N, C, H, W), not {images.dtype} of shape {tuple(images.shape)}"
    if labels.dim() != 1 or labels.dtype != torch.int64:
        return f"labels must be int64 of shape (N,), not {labels.dtype} of shape {tuple(labels.shape)}"
    if ids.dim() != 1 or ids.dtype != torch.int64:
        return f"ids must be int64 of shape (N,), not {ids.dtype} of shape {tuple(ids.shape)}"
    if not len(images) == len(labels) == len(ids):
        return f"{len(images)} images, {len(labels)} labels and {len(ids)} ids; there must be one of each per input"
    return "" if images.numel() else "no images"


def _wrong_images(images: Tensor) -> str:
    low, high = (float(value) for value in torch.aminmax(images))
    if low != low or high != high:
        return "images hold NaN"
    if low < 0 or high > 1:
        return f"images must lie in [0, 1] but span [{low:g}, {high:g}]; normalisation belongs inside the network"
    return ""


def _wrong_labels(labels: Tensor, classes: int) -> str:
    low, high = (int(value) for value in torch.aminmax(labels))
    if low < 0 or high >= classes:
        return f"labels must lie in 0..{classes - 1} but span {low}..{high}"
    return ""


def fingerprint(batch: Batch) -> str:
    """Return the SHA-256 of shape, image bytes and labels: equal data have equal fingerprints, from any source."""
    digest = hashlib.sha256(repr(tuple(batch.images.shape)).encode())
    for part in (batch.images, batch.labels):
        digest.update(part.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
