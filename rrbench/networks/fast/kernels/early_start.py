"""Kernels that start while the kernel before them ends, on Hopper GPUs and later (programmatic dependent launch).

At a batch of 128 a kernel takes 5 to 20 microseconds, and getting ready takes about one. A kernel that starts early
gets ready, then waits until the kernel before it has ended and all that it wrote can be read: so nothing it computes
changes. Every kernel that is launched so must wait, or it would read what is not written yet.
"""

from functools import cache

import torch
import triton
from torch import Tensor
from triton import language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def start_of(tensor: Tensor) -> dict[str, bool]:
    """Return the settings of a launch that say whether the kernel starts early."""
    is_early = tensor.is_cuda and _generation(tensor.get_device()) >= 9
    return {"is_early": is_early, "launch_pdl": is_early}


@cache
def _generation(device: int) -> int:
    return torch.cuda.get_device_capability(device)[0]


@triton.jit
def wait_for_last(is_early: tl.constexpr):
    """Wait for the kernel before this one; from then on the next one may get ready."""
    if is_early:
        gdc_wait()
        gdc_launch_dependents()
