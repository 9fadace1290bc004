"""The shape of every network here: normalisation, backbone, classifier and the rejector's head, in one module."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from rrbench.protocols import DataInfo, Outputs, Rejector


class GlobalAverage(nn.Module):
    """Averages each channel; unlike PyTorch's adaptive pooling, its gradient is the same on every run."""

    def forward(self, maps: Tensor) -> Tensor:
        """Return (N, channels)."""
        return maps.mean((2, 3))


class Composed(nn.Module):
    """Images in [0, 1] in, Outputs out; classifier and head see the same features."""

    mean: Tensor
    std: Tensor

    def __init__(self, info: DataInfo, backbone: nn.Module, width: int, rejector: Rejector) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(info.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(info.std).view(-1, 1, 1))
        self.backbone = backbone
        self.classifier = nn.Linear(width, info.classes)
        self.head = rejector.build_head(width, info.classes)

    def forward(self, images: Tensor) -> Outputs:
        """Return float32 outputs, whatever precision the layers work in."""
        return self._answer(self.backbone(self._normalise(images)))

    def learn(self, images: Tensor, twin: "Composed") -> Outputs:
        """Answer likewise in train mode by the twin's backbone, which knows a faster way back to these weights."""
        return self._answer(twin.backbone.learn(self._normalise(images)))  # type: ignore[operator]

    def _normalise(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def _answer(self, features: Tensor) -> Outputs:
        logits = self.classifier(features)
        head = features[:, :0] if self.head is None else self.head(features)
        return Outputs(features.float(), logits.float(), head.float())

    def twin(self, dtype: torch.dtype) -> "Composed | None":
        """Return a network on the same weights that asks for no gradient on them, where the backbone has such a twin.

        Convolution weights are copied: `refresh` takes them over anew once they have changed.
        """
        make = getattr(self.backbone, "twin", None)
        if make is None:
            return None
        twin = cast(Composed, share(self))
        twin.backbone = make(dtype)
        return twin

    def refresh(self) -> None:
        """Bring a twin up to date."""
        self.backbone.refresh()  # type: ignore[operator]


def share(module: nn.Module) -> nn.Module:
    """Copy a tree of modules on the same tensors; the copy's parameters ask for no gradient."""
    twin = copy.copy(module)
    parameters = {
        name: None if parameter is None else nn.Parameter(parameter.detach(), requires_grad=False)
        for name, parameter in module._parameters.items()
    }
    children = {name: None if child is None else share(child) for name, child in module._modules.items()}
    twin.__dict__.update(_parameters=parameters, _buffers=dict(module._buffers), _modules=children)
    return twin
