"""A residual backbone with its own way forward and back, without PyTorch's tape.

It shares its backbone's weights and statistics. A gradient ends at the images, or by `learn` at the weights. What that
allows: convolution weights cast once instead of at every pass, the way back by cuDNN's forward kernels with mirrored
weights (up to a fifth faster than its backward ones), in eval mode a norm worked into the convolution before it, and
one pass over memory for each sum, norm and ReLU (`norm_relu`), whose sums are the gradients of the norm's own weights.
Norms do not count their batches: with a fixed momentum nobody asks.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rrbench.networks import norm_relu
from rrbench.networks.frozen_convolution import LANES, FoldedConvolution, FrozenConvolution
from rrbench.networks.norm_relu import Norm, Seen, Sums


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
        sums = self._sums(images.device, training=self.training)
        if not self.training:
            self._fold()
        maps, skip = self.stem.forward(images), None
        for block in self.blocks:
            active, first = self.norm_relu.forward(maps, skip, block.norm1, _own(sums, block.norm1))
            skip = first.maps if block.shortcut is None else block.shortcut.forward(active)
            if self.training:
                maps = block.convolution1.forward(active)
                inner, second = self.norm_relu.forward(maps, None, block.norm2, _own(sums, block.norm2))
            else:
                inner = block.folded.forward(active)
                second = Seen(inner, block.rectified.mean, block.rectified.variance)
            maps = block.convolution2.forward(inner)
            if trail is not None:
                trail.append(Passed(first, second, (active, inner) if learns else None))
        active, last = self.norm_relu.forward(maps, skip, self.norm, _own(sums, self.norm))
        return active.float().mean((2, 3)), last

    def descend(
        self, gradient: Tensor, trail: list[Passed], last: Seen, *, training: bool, learned: Gradients | None = None
    ) -> Tensor:
        """Follow the trail back to what the stem gave; gradients of weights met on the way go into `learned`."""
        sums = self._sums(gradient.device, training=training)

        def through(norm: Norm, gradient: Tensor, seen: Seen, **more: Tensor | None) -> Tensor:
            own = _own(sums, norm)
            found: Tensor = self.norm_relu.backward(gradient, seen, norm, own, **more)
            if learned is not None and own is not None:
                learned[norm.bias], learned[norm.weight] = own.view(2, -1)
            return found

        area = last.maps.shape[2] * last.maps.shape[3]
        spread = (gradient / area).to(self.dtype)[:, :, None, None].expand(last.maps.shape)
        flow = through(self.norm, spread.contiguous(memory_format=torch.channels_last), last)
        for block, passed in zip(reversed(self.blocks), reversed(trail), strict=True):
            size = passed.first.maps.shape[2:]
            norm2, convolution1 = (block.norm2, block.convolution1) if training else (block.rectified, block.folded)
            outer = through(norm2, block.convolution2.backward(flow, passed.second.maps.shape[2:]), passed.second)
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
            flow = through(block.norm1, inner, passed.first, beside=beside, past=past)
        return flow

    def _sums(self, device: torch.device, *, training: bool) -> Sums | None:
        """Return room for the sums of one pass; in eval mode there are none."""
        norms = [self.norm, *(norm for block in self.blocks for norm in (block.norm1, block.norm2))]
        return Sums(sum(len(norm.weight) for norm in norms), device) if training else None

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
        ctx.backbone, ctx.training, ctx.channels = backbone, backbone.training, images.shape[1]
        ctx.trail = [] if ctx.needs_input_grad[0] else None
        with torch.autocast(images.device.type, enabled=False):
            features, ctx.last = backbone.ascend(backbone.widen(images), ctx.trail)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        backbone: FastResidual = ctx.backbone
        with torch.autocast(gradients[0].device.type, enabled=False):
            flow = backbone.descend(gradients[0], ctx.trail, ctx.last, training=ctx.training)
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
            flow = backbone.descend(gradients[0], ctx.trail, ctx.last, training=True, learned=learned)
            learned[backbone.stem.source.weight] = backbone.stem.weight_gradient(flow, ctx.images)
        return None, None, *(learned[parameter] for parameter in backbone.learned)


def _own(sums: Sums | None, norm: Norm) -> Tensor | None:
    return None if sums is None else sums.take(len(norm.weight))


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
