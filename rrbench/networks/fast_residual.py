"""A residual backbone with its own way forward and back, without PyTorch's tape.

It shares its backbone's weights and statistics. A gradient ends at the images, or by `learn` at the weights. What that
allows: convolution weights cast once instead of at every pass, the way back by cuDNN's forward kernels with mirrored
weights (up to a fifth faster than its backward ones), in eval mode a norm worked into the convolution before it, and
one pass over memory for each sum, norm and ReLU (`norm_relu`), whose sums are the gradients of the norm's own weights.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rrbench.devices import tried_kernels
from rrbench.networks import norm_relu
from rrbench.networks.norm_relu import Norm, Seen, Sums

LANES = 8  # channels that the matrix units read at once: three would be converted on every pass


class FrozenConvolution:
    """A convolution with weights in a precision of its own; `refresh` takes over the source's.

    With stride 1 its padding keeps the size, so that the way back is a convolution of the same shape.
    """

    def __init__(self, source: nn.Conv2d, dtype: torch.dtype) -> None:
        self.source, self.stride, self.padding = source, source.stride, source.padding
        outputs, inputs, *kernel = source.weight.shape
        self.weight = self._empty(outputs, max(inputs, LANES), kernel, dtype)
        self.mirrored = self._empty(max(inputs, LANES), outputs, kernel, dtype) if self.stride == (1, 1) else None
        self.refresh()

    def _empty(self, outputs: int, inputs: int, kernel: list[int], dtype: torch.dtype) -> Tensor:
        weight = torch.zeros(outputs, inputs, *kernel, dtype=dtype, device=self.source.weight.device)
        return weight.contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the source's weights."""
        self._take(self.source.weight)

    def _take(self, weight: Tensor) -> None:
        inputs = weight.shape[1]
        self.weight[:, :inputs].copy_(weight)
        if self.mirrored is not None:
            self.mirrored.copy_(self.weight.flip(2, 3).transpose(0, 1))

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve."""
        return _lay(F.conv2d(maps, self.weight, stride=self.stride, padding=self.padding))

    def backward(self, gradient: Tensor, size: torch.Size) -> Tensor:
        """Return the gradient at the maps, whose height and width were `size`."""
        padding = (int(self.padding[0]), int(self.padding[1]))
        if self.mirrored is not None:
            # To a few channels cuDNN's guess is three times too slow.
            with tried_kernels(self.source.weight.shape[1] < LANES):
                return _lay(F.conv2d(gradient, self.mirrored, padding=padding))
        # What the stride cut off at the far edge comes back as zeros.
        reached = [
            (length - 1) * self.stride[axis] - 2 * padding[axis] + self.weight.shape[2 + axis]
            for axis, length in enumerate(gradient.shape[2:])
        ]
        rest = (size[0] - reached[0], size[1] - reached[1])
        return _lay(F.conv_transpose2d(gradient, self.weight, stride=self.stride, padding=padding, output_padding=rest))

    def weight_gradient(self, gradient: Tensor, maps: Tensor) -> Tensor:
        """Return the gradient at the source's weights, given the maps that were convolved."""
        settings = (None, self.stride, self.padding, (1, 1), False, (0, 0), 1, (False, True, False))
        _, found, _ = torch.ops.aten.convolution_backward(gradient, maps, self.weight, *settings)
        kept: Tensor = found[:, : self.source.weight.shape[1]]
        return kept.to(self.source.weight.dtype)


class FoldedConvolution(FrozenConvolution):
    """A convolution with the batch norm behind it worked into its weights, as eval mode allows, and ReLU after it."""

    def __init__(self, source: nn.Conv2d, norm: Norm, dtype: torch.dtype) -> None:
        self.norm, self.shift = norm, torch.zeros_like(norm.bias, dtype=dtype)
        super().__init__(source, dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Work the norm into the source's weights."""
        scale = self.norm.weight * (self.norm.variance + self.norm.eps).rsqrt()
        self._take(self.source.weight * scale.view(-1, 1, 1, 1))
        self.shift.copy_(self.norm.bias - self.norm.mean * scale)

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve, normalise and rectify; on a GPU in one kernel."""
        if not maps.is_cuda:
            return F.conv2d(maps, self.weight, self.shift, self.stride, self.padding).relu()
        settings = (self.stride, self.padding, (1, 1), 1)
        return _lay(torch.cudnn_convolution_relu(maps, self.weight, self.shift, *settings))  # type: ignore[arg-type]


def _lay(maps: Tensor) -> Tensor:
    """Lay maps channels-last, which they are already wherever cuDNN made them."""
    return maps.contiguous(memory_format=torch.channels_last)


class FrozenBlock(NamedTuple):
    """One pre-activation block."""

    norm1: Norm
    convolution1: FrozenConvolution
    norm2: Norm
    convolution2: FrozenConvolution
    shortcut: FrozenConvolution | None
    folded: FoldedConvolution  # the first convolution and the second norm
    rectified: Norm  # what is left of that norm on the way back: nothing but ReLU


Gradients = dict[Tensor, Tensor]  # of parameters


class Passed(NamedTuple):
    """What one block leaves for the way back."""

    first: Seen
    second: Seen
    convolved: tuple[Tensor, Tensor] | None  # what its convolutions were given, where their weights learn


def norm_relu_for(device: torch.device) -> Any:
    """Return the module that does norms and ReLU best on a device."""
    if device.type != "cuda":
        return norm_relu
    # Here, not above: PyTorch for CPUs comes without Triton.
    from rrbench.networks import norm_relu_kernels

    return norm_relu_kernels


class FastResidual(nn.Module):
    """Answers as its backbone does: a stem, blocks, a last norm, ReLU and average."""

    def __init__(self, stem: nn.Conv2d, blocks: list[nn.Module], norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.norm_relu = dtype, norm_relu_for(stem.weight.device)
        self.stem = FrozenConvolution(stem, dtype)
        self.blocks = [_freeze(block, dtype) for block in blocks]
        self.norm = Norm.of(norm)
        self.learned = [parameter for module in (stem, *blocks, norm) for parameter in module.parameters()]
        self.training = norm.training
        self._is_folded = True

    def refresh(self) -> None:
        """Take over weights that have changed; norms are shared and need no copy."""
        self.stem.refresh()
        for block in self.blocks:
            for convolution in (block.convolution1, block.convolution2, block.shortcut):
                if convolution is not None:
                    convolution.refresh()
        self._is_folded = False

    def _fold(self) -> None:
        """Fold what has changed since; only eval mode asks for it."""
        if not self._is_folded:
            for block in self.blocks:
                block.folded.refresh()
            self._is_folded = True

    def forward(self, images: Tensor) -> Tensor:
        """Return float32 features; differentiable once, in the images alone."""
        features: Tensor = _Way.apply(images, self)  # type: ignore[no-untyped-call]
        return features

    def learn(self, images: Tensor) -> Tensor:
        """Return the features of a batch in train mode; differentiable once, in the backbone's weights alone."""
        features: Tensor = _Lesson.apply(images, self, *self.learned)  # type: ignore[no-untyped-call]
        return features

    def ascend(self, images: Tensor, trail: list[Passed] | None, *, learns: bool = False) -> tuple[Tensor, Seen]:
        """Go forward; what the way back needs is left in the trail, if there is one."""
        sums = self._sums(images.device)
        if not self.training:
            self._fold()
        maps, skip = self.stem.forward(images), None
        for block in self.blocks:
            active, first = self.norm_relu.forward(maps, skip, block.norm1, sums)
            skip = first.maps if block.shortcut is None else block.shortcut.forward(active)
            if self.training:
                inner, second = self.norm_relu.forward(block.convolution1.forward(active), None, block.norm2, sums)
            else:
                inner = block.folded.forward(active)
                second = Seen(inner, block.rectified.mean, block.rectified.variance)
            maps = block.convolution2.forward(inner)
            if trail is not None:
                trail.append(Passed(first, second, (active, inner) if learns else None))
        active, last = self.norm_relu.forward(maps, skip, self.norm, sums)
        return active.float().mean((2, 3)), last

    def descend(self, gradient: Tensor, trail: list[Passed], last: Seen, learned: Gradients | None = None) -> Tensor:
        """Follow the trail back to what the stem gave; gradients of weights met on the way go into `learned`."""
        sums = self._sums(gradient.device)
        area = last.maps.shape[2] * last.maps.shape[3]
        spread = (gradient / area).to(self.dtype)[:, :, None, None].expand(last.maps.shape)
        spread = spread.contiguous(memory_format=torch.channels_last)
        flow: Tensor = self.norm_relu.backward(spread, last, self.norm, sums)
        _note_norm(learned, self.norm, sums)
        for block, passed in zip(reversed(self.blocks), reversed(trail), strict=True):
            size = passed.first.maps.shape[2:]
            inner = block.convolution2.backward(flow, passed.second.maps.shape[2:])
            norm2, convolution1 = (
                (block.norm2, block.convolution1) if self.training else (block.rectified, block.folded)
            )
            outer = self.norm_relu.backward(inner, passed.second, norm2, sums)
            _note_norm(learned, block.norm2, sums)
            inner = convolution1.backward(outer, size)
            if learned is not None and passed.convolved is not None:
                active, middle = passed.convolved
                for convolution, arrived, given in (
                    (block.convolution2, flow, middle),
                    (block.convolution1, outer, active),
                    (block.shortcut, flow, active),
                ):
                    if convolution is not None:
                        learned[convolution.source.weight] = convolution.weight_gradient(arrived, given)
            # The shortcut carries its share past the norm; a convolved one starts behind it.
            beside, past = (None, flow) if block.shortcut is None else (block.shortcut.backward(flow, size), None)
            flow = self.norm_relu.backward(inner, passed.first, block.norm1, sums, beside=beside, past=past)
            _note_norm(learned, block.norm1, sums)
        return flow

    def _sums(self, device: torch.device) -> Sums | None:
        """Return room for the sums of one pass; in eval mode there are none."""
        norms = [self.norm, *(norm for block in self.blocks for norm in (block.norm1, block.norm2))]
        return Sums(sum(len(norm.weight) for norm in norms), device) if self.training else None

    def widen(self, images: Tensor) -> Tensor:
        """Lay images out channels-last, in the working precision, with empty channels up to what a unit reads."""
        count, channels, height, width = images.shape
        wide = torch.zeros(count, max(channels, LANES), height, width, dtype=self.dtype, device=images.device)
        wide = wide.contiguous(memory_format=torch.channels_last)
        wide[:, :channels].copy_(images)
        return wide


class _Way(torch.autograd.Function):
    """There and back for a gradient that ends at the images."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, backbone: FastResidual) -> Tensor:
        ctx.backbone, ctx.channels = backbone, images.shape[1]
        ctx.trail = [] if ctx.needs_input_grad[0] else None
        with torch.autocast(images.device.type, enabled=False):
            features, ctx.last = backbone.ascend(backbone.widen(images), ctx.trail)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        backbone: FastResidual = ctx.backbone
        with torch.autocast(gradients[0].device.type, enabled=False):
            flow = backbone.descend(gradients[0], ctx.trail, ctx.last)
            return backbone.stem.backward(flow, flow.shape[2:])[:, : ctx.channels].float(), None


class _Lesson(torch.autograd.Function):
    """There and back for gradients that end at the weights."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, backbone: FastResidual, *learned: Tensor) -> Tensor:
        ctx.backbone, ctx.trail = backbone, []
        with torch.autocast(images.device.type, enabled=False):
            ctx.images = backbone.widen(images)
            features, ctx.last = backbone.ascend(ctx.images, ctx.trail, learns=True)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        backbone: FastResidual = ctx.backbone
        learned: Gradients = {}
        with torch.autocast(gradients[0].device.type, enabled=False):
            flow = backbone.descend(gradients[0], ctx.trail, ctx.last, learned)
            learned[backbone.stem.source.weight] = backbone.stem.weight_gradient(flow, ctx.images)
        return None, None, *(learned[parameter] for parameter in backbone.learned)


def _note_norm(learned: Gradients | None, norm: Norm, sums: Sums | None) -> None:
    """Put down the gradients of a norm's own weights: the sums that its way back has just used."""
    if learned is not None and sums is not None:
        learned[norm.bias], learned[norm.weight] = sums.latest.view(2, -1)


def _freeze(block: Any, dtype: torch.dtype) -> FrozenBlock:
    norm2 = Norm.of(block.norm2)
    ones, zeros = torch.ones_like(norm2.weight), torch.zeros_like(norm2.bias)
    return FrozenBlock(
        Norm.of(block.norm1),
        FrozenConvolution(block.conv1, dtype),
        norm2,
        FrozenConvolution(block.conv2, dtype),
        None if block.shortcut is None else FrozenConvolution(block.shortcut, dtype),
        FoldedConvolution(block.conv1, norm2, dtype),
        Norm(ones, zeros, zeros, ones, eps=0.0, momentum=0.0),
    )
