"""The form of every network here: normalisation, backbone, classifier and the rejector's head, in one module."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from rrbench.protocols import DataInfo, Outputs, Rejector


class GlobalAverage(nn.Module):
    """Averages each channel; unlike PyTorch's adaptive pooling, its gradient is the same in every run."""

    def forward(self, maps: Tensor) -> Tensor:
        """Return (N, channels)."""
        return maps.mean((2, 3))


class Composed(nn.Module):
    """Takes images in [0, 1] and returns Outputs; classifier and head see the same features."""

    mean: Tensor
    std: Tensor
    replays = False  # small batches, on a GPU

    def __init__(self, info: DataInfo, backbone: nn.Module, width: int, rejector: Rejector) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(info.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(info.std).view(-1, 1, 1))
        self.backbone = backbone
        self.classifier = nn.Linear(width, info.classes)
        self.head = rejector.build_head(width, info.classes)

    def forward(self, images: Tensor) -> Outputs:
        """Return float32 outputs, whatever precision the layers use."""
        features = self.backbone((images - self.mean) / self.std)
        if _has_autocast(features.device.type):
            # Not in bf16: with logits of 8 bits an attack that compares two answers would not see a small step.
            features = features.to(next(self.classifier.parameters(), features).dtype)
            with torch.autocast(features.device.type, enabled=False):
                logits, head = self._answers(features)
        else:
            logits, head = self._answers(features)
        return Outputs(features.float(), logits.float(), head.float())

    def _answers(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.classifier(features), features[:, :0] if self.head is None else self.head(features)

    def twin(self, dtype: torch.dtype) -> "Composed | None":
        """Return a network on the same weights for gradients of images; None if the backbone has no twin.

        Convolution weights are copied: `refresh` copies them again after they have changed.
        """
        make = getattr(self.backbone, "twin", None)
        if make is None:
            return None
        twin = cast(Composed, share(self))
        twin.backbone = make(dtype)
        return twin

    def learn(self, images: Tensor, twin: "Composed") -> Outputs:
        """Answer a training batch; the twin's backbone does it if it has a faster way to these weights' gradients."""
        own = self.backbone
        # Only PyTorch's modules handle norms that are frozen one by one.
        in_training = all(module.training for module in (*own.modules(), twin.backbone))
        if not hasattr(twin.backbone, "learn") or not in_training:
            return cast(Outputs, self(images))
        self.backbone = _Lesson(twin.backbone)
        try:
            return cast(Outputs, self(images))
        finally:
            self.backbone = own

    def refresh(self) -> None:
        """Update a twin after the weights have changed."""
        self.backbone.refresh()  # type: ignore[operator]

    def replay(self) -> None:
        """Let a twin replay small batches, if its backbone can."""
        replay = getattr(self.backbone, "replay", None)
        if replay is not None:
            replay()
            self.replays = True


def _has_autocast(kind: str) -> bool:
    return torch.amp.autocast_mode.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


class _Lesson(nn.Module):
    """Replaces the backbone while a network learns, so that the network's own `forward` is used."""

    def __init__(self, fast: nn.Module) -> None:
        super().__init__()
        self.fast = fast

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.fast.learn(images))  # type: ignore[operator]


def share(module: nn.Module) -> nn.Module:
    """Copy a tree of modules on the same tensors; the copy's parameters need no gradient."""
    twin = copy.copy(module)
    parameters = {
        name: None if parameter is None else nn.Parameter(parameter.detach(), requires_grad=False)
        for name, parameter in module._parameters.items()
    }
    children = {name: None if child is None else share(child) for name, child in module._modules.items()}
    twin.__dict__.update(_parameters=parameters, _buffers=dict(module._buffers), _modules=children)
    return twin
