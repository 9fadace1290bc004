"""Makes a gradient of images that training differentiates again, such as CARL's penalty, affordable on a GPU.

For the second derivative of a convolution PyTorch calls a convolution whose kernel is as large as the image, and for
that of a batch norm some forty passes over the maps: correct, but slow on a GPU. Here the same numbers come from the
kernels that first derivatives use.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

How = tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


class FastSecondDerivatives(TorchFunctionMode):
    """Inside the block, convolutions and training batch norms allow a fast second derivative.

    The first derivative, taken with `create_graph`, must be one of images; the second may be of images and weights.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace plain 2d convolutions and batch norms, as layers call them; leave everything else alone."""
        if func is F.conv2d and not kwargs and len(args) == 7 and not isinstance(args[4], str):
            images, weight, bias, stride, padding, dilation, groups = args
            images, weight = (_as_autocast(each) for each in (images, weight))
            how = [*stride], [*padding], [*dilation], groups
            found: Tensor = _Convolution.apply(images, weight, how)  # type: ignore[no-untyped-call]
            return found if bias is None else found + _as_autocast(bias).view(-1, 1, 1)
        if func is F.batch_norm and _is_plain_training(*args, **(kwargs or {})):
            return _normalised(*args, **(kwargs or {}))
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


def _is_plain_training(
    maps: Tensor, *_: Any, weight: Tensor | None, bias: Tensor | None, training: bool, **__: Any
) -> bool:
    """Tell whether a batch norm uses the batch's statistics, of more than one value, and has a weight and a bias."""
    has_both = weight is not None and bias is not None
    return training and has_both and maps.dim() == 4 and maps.numel() > maps.shape[1]


def _normalised(
    maps: Tensor, mean: Tensor, variance: Tensor, *, weight: Tensor, bias: Tensor, momentum: float, eps: float, **_: Any
) -> Tensor:
    found: Tensor = _BatchNorm.apply(maps, weight, bias, mean, variance, momentum, eps)  # type: ignore[no-untyped-call]
    return found


class Sent(NamedTuple):
    """A gradient sent back through a batch norm; the sums are over all but the channels."""

    maps: Tensor
    along: Tensor  # sum of gradient * standardised maps: the gradient of the weight
    total: Tensor  # sum of the gradient: the gradient of the bias


def _send_back(gradient: Tensor, maps: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, eps: float) -> Sent:
    """Send a gradient back; `mean` was subtracted, `inverse` is 1 / the deviation."""
    return Sent(
        *torch.ops.aten.native_batch_norm_backward(
            gradient, maps, weight, None, None, mean, inverse, True, eps, [True, True, True]
        )
    )


class _BatchNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        momentum: float,
        eps: float,
    ) -> Tensor:
        found, *seen = torch.native_batch_norm(maps, weight, bias, mean, variance, True, momentum, eps)
        ctx.save_for_backward(maps, weight, *seen)
        ctx.eps = eps
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with `create_graph` only the gradient of images is wanted
            first: Tensor = _NormGradient.apply(gradient, *ctx.saved_tensors, ctx.eps)  # type: ignore[no-untyped-call]
            return first, *[None] * 6
        maps, weight, mean, inverse = ctx.saved_tensors
        return *_send_back(gradient, maps, weight, mean, inverse, ctx.eps), *[None] * 4


class _NormGradient(Function):
    """A batch norm's gradient with respect to its maps.

    Per channel it is D(g) = w s P(g), where s is 1 / the deviation, z the standardised maps, and P(g) what is left of g
    without its mean and its part along z: g - mean(g) - z mean(g z). P is symmetric, so a second gradient v comes back
    to g as D(v). With a = mean(g z), b = mean(v z) and c = mean(v P(g)), it comes back to the maps as
    -w s^2 (c z + b P(g) + a P(v)), and to the weight as the sum of c s.
    """

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, maps: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, eps: float
    ) -> Tensor:
        sent = _send_back(gradient, maps, weight, mean, inverse, eps)
        ctx.save_for_backward(gradient, maps, weight, mean, inverse, *sent)
        ctx.eps = eps
        return sent.maps

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a batch norm inside FastSecondDerivatives has no third derivative")
        gradient, maps, weight, mean, inverse, *sent = ctx.saved_tensors
        one, two = Sent(*sent), _send_back(second, maps, weight, mean, inverse, ctx.eps)
        rows = maps.numel() // maps.shape[1]
        products = (gradient.to(mean.dtype) * second).sum((0, 2, 3))
        left = products - (one.total * two.total + one.along * two.along) / rows  # rows * c
        of_z = -weight * inverse**2 * left / rows
        found = one.maps * _wide(-inverse * two.along / rows)
        found.addcmul_(two.maps, _wide(-inverse * one.along / rows))
        found.addcmul_(maps, _wide(of_z * inverse)).sub_(_wide(of_z * inverse * mean))
        return two.maps, found.to(maps.dtype), inverse * left, None, None, None


def _wide(values: Tensor) -> Tensor:
    """Shape one value per channel so that it broadcasts over maps."""
    return values.view(1, -1, 1, 1)
