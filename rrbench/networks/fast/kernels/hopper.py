"""What the kernels for Hopper GPUs share: tensor descriptors for the copy engine, an early start, norm and ReLU."""

from functools import cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Copies to and from shared memory; Triton 3.7 renamed them.
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


def units_of(tensor: Tensor) -> int:
    """Return how many units the tensor's GPU has; a unit runs one program or a few."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count


def blocks_of(tensor: Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    """Describe a bfloat16 tensor that is copied block by block."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block), _layout(block))


def lines_of(weight: Tensor) -> Tensor:
    """View a convolution's weights as they lie in memory: for each output channel its taps, each with all inputs."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


@cache
def _layout(block: tuple[int, ...]) -> gl.NVMMASharedLayout:
    """Return a block's layout in shared memory; cached, as finding it takes longer than a launch."""
    return gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16)


@gluon.jit
def wait_for_last():
    """Wait for the kernel before this one; see `early_start`."""
    gdc_wait()
    gdc_launch_dependents()


@gluon.jit
def normal(value, scale, shift):
    """Normalise maps, given each channel's factor and shift."""
    return value * gl.expand_dims(scale, 0) + gl.expand_dims(shift, 0)


@gluon.jit
def rectified(value):
    """Rectify; not with a maximum, which would turn NaN into 0."""
    return gl.where(value <= 0.0, 0.0, value)
