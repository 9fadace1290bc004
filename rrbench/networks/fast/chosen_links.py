"""Chooses the links for a device."""

from importlib.util import find_spec

import torch

from rrbench.networks.fast import norm_relu as plain
from rrbench.networks.fast.links import Links


def links_for(device: torch.device, dtype: torch.dtype) -> Links:
    """Return the links that are fastest on a device."""
    if device.type != "cuda":
        return Links(plain)
    # Imported here: PyTorch for CPUs comes without Triton.
    from rrbench.networks.fast import norm_relu_kernels

    is_hopper = torch.cuda.get_device_capability(device)[0] == 9
    # Gluon is experimental in Triton; a later version may drop it.
    if dtype != torch.bfloat16 or not is_hopper or find_spec("triton.experimental.gluon") is None:
        return Links(norm_relu_kernels)
    from rrbench.networks.fast.fused_links import FusedLinks

    return FusedLinks()
