"""A residual backbone with its own forward and backward pass, without PyTorch's autograd tape.

It shares the backbone's weights and statistics. It gives gradients of the images, or with `learn` of the weights.
This allows three things. Convolution weights are cast once instead of at every pass. The backward pass uses forward
kernels with mirrored weights, as cuDNN's are up to a fifth faster than its backward ones. And the backbone is a chain
of `links`: each convolution is one with the shortcut, norm and ReLU after it, and the sums of a norm's backward pass
are also the gradients of the norm's weights.
Norms do not count their batches: with a fixed momentum the count is not used.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rrbench.networks.fast import norm_relu
from rrbench.networks.fast.frozen_convolution import FrozenConvolution, widen
from rrbench.networks.fast.links import Links, Side
from rrbench.networks.fast.norm_relu import Norm, Seen, Sums
from rrbench.networks.fast.replayed import Replayed, Turn


def links_for(device: torch.device, dtype: torch.dtype) -> Links:
    """Return the links that are fastest on a device."""
    if device.type != "cuda":
        return Links(norm_relu)
    # Imported here: PyTorch for CPUs comes without Triton.
    from rrbench.networks.fast.kernels import norm_relu_kernels

    is_hopper = torch.cuda.get_device_capability(device)[0] == 9
    # Gluon is experimental in Triton; a later version may drop it.
    if dtype != torch.bfloat16 or not is_hopper or find_spec("triton.experimental.gluon") is None:
        return Links(norm_relu_kernels)
    from rrbench.networks.fast.fused_links import FusedLinks

    return FusedLinks()


class FrozenBlock(NamedTuple):
    """One pre-activation block."""

    norm1: Norm
    convolution1: FrozenConvolution
    norm2: Norm
    convolution2: FrozenConvolution
    shortcut: FrozenConvolution | None


Gradients = dict[Tensor, Tensor]  # of parameters


class Passed(NamedTuple):
    """What one block stores for the backward pass."""

    first: Seen
    second: Seen
    convolved: tuple[Tensor, Tensor] | None  # inputs of its convolutions, if their weights learn


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
        self.replayed: Replayed | None = None

    def replay(self) -> None:
        """From now on replay small batches in eval mode; not for a backbone whose steps are captured as a whole."""
        self.replayed = Replayed(self)

    def refresh(self) -> None:
        """Copy convolution weights that have changed; norms are shared and need no copy."""
        self.stem.refresh()
        for block in self.blocks:
            for convolution in (block.convolution1, block.convolution2, block.shortcut):
                if convolution is not None:
                    convolution.refresh()

    def forward(self, images: Tensor) -> Tensor:
        """Return float32 features; differentiable once, and only in the images."""
        features: Tensor = _Way.apply(images, self)  # type: ignore[no-untyped-call]
        return features

    def learn(self, images: Tensor) -> Tensor:
        """Return the features of a batch in train mode; differentiable once, and only in the backbone's weights."""
        assert self.training
        features: Tensor = _Lesson.apply(images, self, *self.learned)  # type: ignore[no-untyped-call]
        return features

    def ascend(self, images: Tensor, trail: list[Passed] | None, *, learns: bool = False) -> tuple[Tensor, Seen]:
        """Go forward; store in the trail, if given, what the backward pass needs."""
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
        return active.mean((2, 3), dtype=torch.float32), seen

    def image_gradient(self, gradient: Tensor, trail: list[Passed], last: Seen, *, training: bool) -> Tensor:
        """Follow the trail back to the images."""
        return self.links.leave(self.stem, self.descend(gradient, trail, last, training=training))

    def descend(
        self, gradient: Tensor, trail: list[Passed], last: Seen, *, training: bool, learned: Gradients | None = None
    ) -> Tensor:
        """Follow the trail back to the stem's output; put gradients of weights on the way into `learned`."""
        sums = self._sums(gradient.device, training=training)

        def own(norm: Norm) -> Tensor | None:
            taken = _own(sums, norm)
            if learned is not None and taken is not None:
                learned[norm.bias], learned[norm.weight] = taken.view(2, -1)
            return taken

        area = last.maps.shape[2] * last.maps.shape[3]
        spread = torch.empty_like(last.maps).copy_((gradient / area)[:, :, None, None])
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
            # An identity shortcut carries its gradient past the norm; a convolved shortcut starts after the norm.
            side, past = (None, flow) if block.shortcut is None else (Side(block.shortcut, flow), None)
            flow = self.links.backward(
                block.convolution1, outer, passed.first, block.norm1, own(block.norm1), side=side, past=past
            )
        return flow

    def _sums(self, device: torch.device, *, training: bool) -> Sums | None:
        """Return zeros for the sums of one pass; None in eval mode."""
        norms = [self.norm, *(norm for block in self.blocks for norm in (block.norm1, block.norm2))]
        return Sums(sum(len(norm.weight) for norm in norms), device) if training else None


class _Way(torch.autograd.Function):
    """Forward and backward for gradients of the images."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, backbone: FastResidual) -> Tensor:
        ctx.backbone, ctx.training = backbone, backbone.training
        has_gradient, replayed = ctx.needs_input_grad[0], None if backbone.training else backbone.replayed
        ctx.turn = None
        # Triton launches on the current device, even if the tensors are on another.
        with torch.cuda.device_of(images), torch.autocast(images.device.type, enabled=False):
            recorded = None if replayed is None else replayed.find(images, has_gradient=has_gradient)
            if replayed is not None and recorded is not None:
                ctx.save_for_backward(images)
                features, ctx.turn = replayed.ascend(recorded, images)
            else:
                ctx.trail = [] if has_gradient else None
                features, ctx.last = backbone.ascend(images, ctx.trail)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        backbone: FastResidual = ctx.backbone
        with torch.autocast(gradients[0].device.type, enabled=False):
            turn: Turn | None = ctx.turn
            if turn is not None:
                # Looked up only if needed: PyTorch refuses images that were changed in the meantime.
                return turn.descend(gradients[0], lambda: ctx.saved_tensors[0]), None
            return backbone.image_gradient(gradients[0], ctx.trail, ctx.last, training=ctx.training), None


class _Lesson(torch.autograd.Function):
    """Forward and backward for gradients of the weights."""

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
