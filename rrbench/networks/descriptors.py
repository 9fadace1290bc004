"""Tensors as a Hopper GPU's copy engine wants to know them."""

from functools import cache

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def describe(tensor: Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    """Describe a bfloat16 tensor that is copied block by block."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block), _layout(block))


@cache
def _layout(block: tuple[int, ...]) -> gl.NVMMASharedLayout:
    """Return how a block lies in shared memory; finding out takes longer than a launch."""
    return gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16)
