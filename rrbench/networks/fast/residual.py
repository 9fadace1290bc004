"""A residual backbone with its own way forward and back, without PyTorch's tape.

It shares its backbone's weights and statistics. A gradient ends at the images, or by `learn` at the weights. What that
allows: convolution weights cast once instead of at every pass, the way back by forward kernels with mirrored weights
(cuDNN's are up to a fifth faster than its backward ones), and a chain of `links`: each convolution with the shortcut,
norm and ReLU behind it as one, and the sums of a norm's way back for the gradients of the norm's own weights.
Norms do not count their batches: with a fixed momentum nobody asks.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rrbench.networks.fast.chosen_links import links_for
from rrbench.networks.fast.frozen_convolution import FrozenConvolution, widen
from rrbench.networks.fast.links import Side
from rrbench.networks.fast.norm_relu import Norm, Seen, Sums


class FrozenBlock(NamedTuple):
    """One pre-activation block."""

    norm1: Norm
    convolution1: FrozenConvolution
    norm2: Norm
    convolution2: FrozenConvolution
    shortcut: FrozenConvolution | None


Gradients = dict[Tensor, Tensor]  # of parameters


class Passed(NamedTuple):
    """What one block leaves for the way back."""

    first: Seen
    second: Seen
    convolved: tuple[Tensor, Tensor] | None  # what its convolutions were given, where their weights learn


class FastResidual(nn.Module):
    """Answers as its backbone does: a stem, blocks, a last norm, ReLU and average."""

    def __init__(self, stem: nn.Conv2d, blocks: list[nn.Module], norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.links = dtype, links_for(stem.weight.device, dtype)
        self.stem = FrozenConvolution(stem, dtype)
        self.blocks = [_freeze(block, dtype) for block in blocks]
        self.norm = Norm.of(norm)
        self.learned = [parameter for module in (stem, *blocks, norm) for parameter in module.parameters()]
        self.training = norm.training

    def refresh(self) -> None:
        """Take over weights that have changed; norms are shared and need no copy."""
        self.stem.refresh()
        for block in self.blocks:
            for convolution in (block.convolution1, block.convolution2, block.shortcut):
                if convolution is not None:
                    convolution.refresh()

    def forward(self, images: Tensor) -> Tensor:
        """Return float32 features; differentiable once, in the images alone."""
        features: Tensor = _Way.apply(images, self)  # type: ignore[no-untyped-call]
        return features

    def learn(self, images: Tensor) -> Tensor:
        """Return the features of a batch in train mode; differentiable once, in the backbone's weights alone."""
        assert self.training
        features: Tensor = _Lesson.apply(images, self, *self.learned)  # type: ignore[no-untyped-call]
        return features

    def ascend(self, images: Tensor, trail: list[Passed] | None, *, learns: bool = False) -> tuple[Tensor, Seen]:
        """Go forward; what the way back needs is left in the trail, if there is one."""
        sums = self._sums(images.device, training=self.training)
        following = [*(block.norm1 for block in self.blocks[1:]), self.norm]
        is_skipped = [*(block.shortcut is None for block in self.blocks[1:]), False]
        first = self.blocks[0].norm1
        total, active, seen = self.links.enter(self.stem, images, first, _own(sums, first))
        for block, norm, keeps_total in zip(self.blocks, following, is_skipped, strict=True):
            _, inner, second = self.links.forward(
                block.convolution1, active, block.norm2, _own(sums, block.norm2), keeps_total=False
            )
            if trail is not None:
                trail.append(Passed(seen, second, (active, inner) if learns else None))
            skip, side = (total, None) if block.shortcut is None else (None, Side(block.shortcut, active))
            total, active, seen = self.links.forward(
                block.convolution2, inner, norm, _own(sums, norm), skip=skip, side=side, keeps_total=keeps_total
            )
        return active.float().mean((2, 3)), seen

    def descend(
        self, gradient: Tensor, trail: list[Passed], last: Seen, *, training: bool, learned: Gradients | None = None
    ) -> Tensor:
        """Follow the trail back to what the stem gave; gradients of weights met on the way go into `learned`."""
        sums = self._sums(gradient.device, training=training)

        def own(norm: Norm) -> Tensor | None:
            taken = _own(sums, norm)
            if learned is not None and taken is not None:
                learned[norm.bias], learned[norm.weight] = taken.view(2, -1)
            return taken

        area = last.maps.shape[2] * last.maps.shape[3]
        spread = (gradient / area).to(self.dtype)[:, :, None, None].expand(last.maps.shape)
        spread = spread.contiguous(memory_format=torch.channels_last)
        flow = self.links.norm_relu.backward(spread, last, self.norm, own(self.norm))
        for block, passed in zip(reversed(self.blocks), reversed(trail), strict=True):
            outer = self.links.backward(block.convolution2, flow, passed.second, block.norm2, own(block.norm2))
            if learned is not None and passed.convolved is not None:
                active, inner = passed.convolved
                for convolution, arrived, given in (
                    (block.convolution2, flow, inner),
                    (block.convolution1, outer, active),
                    (block.shortcut, flow, active),
                ):
                    if convolution is not None:
                        learned[convolution.source.weight] = convolution.weight_gradient(arrived, given)
            # An identity carries its share past the norm; a convolved shortcut starts behind it.
            side, past = (None, flow) if block.shortcut is None else (Side(block.shortcut, flow), None)
            flow = self.links.backward(
                block.convolution1, outer, passed.first, block.norm1, own(block.norm1), side=side, past=past
            )
        return flow

    def _sums(self, device: torch.device, *, training: bool) -> Sums | None:
        """Return room for the sums of one pass; in eval mode there are none."""
        norms = [self.norm, *(norm for block in self.blocks for norm in (block.norm1, block.norm2))]
        return Sums(sum(len(norm.weight) for norm in norms), device) if training else None


class _Way(torch.autograd.Function):
    """There and back for a gradient that ends at the images."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, backbone: FastResidual) -> Tensor:
        ctx.backbone, ctx.training = backbone, backbone.training
        ctx.trail = [] if ctx.needs_input_grad[0] else None
        # Triton launches on the device that is current, whichever its tensors are on.
        with torch.cuda.device_of(images), torch.autocast(images.device.type, enabled=False):
            features, ctx.last = backbone.ascend(images, ctx.trail)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        backbone: FastResidual = ctx.backbone
        with torch.autocast(gradients[0].device.type, enabled=False):
            flow = backbone.descend(gradients[0], ctx.trail, ctx.last, training=ctx.training)
            return backbone.links.leave(backbone.stem, flow), None


class _Lesson(torch.autograd.Function):
    """There and back for gradients that end at the weights."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, backbone: FastResidual, *learned: Tensor) -> Tensor:
        ctx.backbone, ctx.trail = backbone, []
        ctx.save_for_backward(images)
        with torch.cuda.device_of(images), torch.autocast(images.device.type, enabled=False):
            features, ctx.last = backbone.ascend(images, ctx.trail, learns=True)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        backbone: FastResidual = ctx.backbone
        (images,) = ctx.saved_tensors
        learned: Gradients = {}
        with torch.autocast(gradients[0].device.type, enabled=False):
            flow = backbone.descend(gradients[0], ctx.trail, ctx.last, training=True, learned=learned)
            stem = backbone.stem
            learned[stem.source.weight] = stem.weight_gradient(flow, widen(images, stem))
        return None, None, *(learned[parameter] for parameter in backbone.learned)


def _own(sums: Sums | None, norm: Norm) -> Tensor | None:
    return None if sums is None else sums.take(len(norm.weight))


def _freeze(block: Any, dtype: torch.dtype) -> FrozenBlock:
    return FrozenBlock(
        Norm.of(block.norm1),
        FrozenConvolution(block.conv1, dtype),
        Norm.of(block.norm2),
        FrozenConvolution(block.conv2, dtype),
        None if block.shortcut is None else FrozenConvolution(block.shortcut, dtype),
    )
