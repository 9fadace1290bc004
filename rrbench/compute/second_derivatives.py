"""Makes a gradient of images that training differentiates again, such as CARL's penalty, affordable on a GPU.

For the second derivative of a convolution PyTorch calls a convolution whose kernel is as large as the image: correct,
but slow on a GPU. Here the same numbers come from the kernels that first derivatives use.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

How = tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


class FastSecondDerivatives(TorchFunctionMode):
    """Inside the block, convolutions allow a fast second derivative.

    The first derivative, taken with `create_graph`, must be one of images; the second may be of images and weights.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace plain 2d convolutions, as layers call them; leave everything else alone."""
        if func is F.conv2d and not kwargs and len(args) == 7 and not isinstance(args[4], str):
            images, weight, bias, stride, padding, dilation, groups = args
            images, weight = (_as_autocast(each) for each in (images, weight))
            how = [*stride], [*padding], [*dilation], groups
            found: Tensor = _Convolution.apply(images, weight, how)  # type: ignore[no-untyped-call]
            return found if bias is None else found + _as_autocast(bias).view(-1, 1, 1)
        return func(*args, **(kwargs or {}))


def _as_autocast(tensor: Tensor) -> Tensor:
    """Cast as autocast does; inside a Function it would not reach the way back."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def _gradient(of: int, gradient: Tensor, images: Tensor, weight: Tensor, how: How) -> Tensor:
    """Return a convolution's gradient with respect to its images (0) or its weight (1)."""
    stride, padding, dilation, groups = how
    wanted = [of == 0, of == 1, False]
    found = torch.ops.aten.convolution_backward(
        gradient, images, weight, None, stride, padding, dilation, False, [0, 0], groups, wanted
    )
    return cast(Tensor, found[of])


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, how: How) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.how = how
        return F.conv2d(images, weight, None, *how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        images, weight = ctx.saved_tensors
        of_images: Tensor | None = None
        if ctx.needs_input_grad[0]:
            of_images = _ImageGradient.apply(gradient, images, weight, ctx.how)  # type: ignore[no-untyped-call]
        # With `create_graph` gradients are enabled here, and only the one of images is wanted.
        is_second = not torch.is_grad_enabled()
        wants_weight = is_second and ctx.needs_input_grad[1]
        return of_images, _gradient(1, gradient, images, weight, ctx.how) if wants_weight else None, None


class _ImageGradient(Function):
    """A convolution's gradient with respect to its images; it is linear in both arguments, like the convolution."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, images: Tensor, weight: Tensor, how: How) -> Tensor:
        ctx.save_for_backward(gradient, weight)
        ctx.how = how
        return _gradient(0, gradient, images, weight, how)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor, None, Tensor, None]:
        gradient, weight = ctx.saved_tensors
        return F.conv2d(second, weight, None, *ctx.how), None, _gradient(1, gradient, second, weight, ctx.how), None
