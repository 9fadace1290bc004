"""Weights in eight bits with a scale for every output channel: a quarter of the size, the same values on every machine.

Packing changes the weights, so measure after packing.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".scale"  # ending of the name of a packed tensor's scales
SMALLEST = 4096  # smaller tensors are not packed
LARGEST = 127


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round every large matrix or kernel to 255 steps; the largest weight of an output channel is the last step."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() >= SMALLEST:
            rows = tensor.detach().cpu().float()
            scale = rows.flatten(1).abs().amax(1) / LARGEST
            # A channel of zeros has no largest weight.
            steps = rows / _wide(torch.where(scale > 0, scale, 1.0), rows)
            packed[name], packed[name + SCALE] = steps.round().to(torch.int8), scale
        else:
            packed[name] = tensor
    return packed


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 weights."""
    return {
        name: tensor.float() * _wide(tensors[name + SCALE], tensor) if name + SCALE in tensors else tensor
        for name, tensor in tensors.items()
        if not (name.endswith(SCALE) and name.removesuffix(SCALE) in tensors)
    }


def _wide(scale: Tensor, tensor: Tensor) -> Tensor:
    return scale.view(-1, *[1] * (tensor.dim() - 1))
