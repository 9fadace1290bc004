"""Users' own networks: their answers become Outputs, or a one-line error says why they cannot."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from rrbench.compute.eval_mode import mode
from rrbench.errors import UseError, reason
from rrbench.files.fingerprints import of_network
from rrbench.lending import surroundings_kept
from rrbench.protocols import Batch, DataInfo, NetworkSource, Outputs, Rejector

_EXPECTED = "expected logits (N, classes), or (features, logits), or rrbench Outputs"


def wrap(model: nn.Module) -> "Wrapped":
    """Make a network from a module that takes images in [0, 1] and returns logits, (features, logits) or Outputs."""
    if not isinstance(model, nn.Module):
        raise UseError(f"a network must be a torch.nn.Module, not {type(model).__name__}")
    if any(isinstance(weight, UninitializedParameter) for weight in model.parameters()):
        raise UseError("the network has weights that are not made yet, as LazyLinear's: ask it for an answer first")
    return Wrapped(model.network if isinstance(model, Classifier) and model.is_plain else model)


class Wrapped(nn.Module):
    """A user's module whose answers become Outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = getattr(model, "training", False)  # frozen TorchScript has no mode, and answers as in eval

    def forward(self, images: Tensor) -> Outputs:
        """Return float32 outputs; parts that the module does not give have zero columns."""
        outputs = _to_outputs(self.model(images))
        _check_parts(outputs, len(images))
        return Outputs(*(part.float() for part in outputs))


class Classifier(nn.Module):
    """A network that returns its logits alone; `outputs` returns features and head, too."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        return self.outputs(images).logits

    def outputs(self, images: Tensor) -> Outputs:
        """Return features, logits and head."""
        return cast(Outputs, self.network(images))

    @property
    def is_plain(self) -> bool:
        """Whether nothing but its network answers; then rejectors can be shown the features and head that it hides."""
        hooks = self._forward_hooks or self._forward_pre_hooks
        return type(self) is Classifier and not hooks and "forward" not in vars(self) and "outputs" not in vars(self)


@dataclass(frozen=True)
class OwnNetwork(NetworkSource):
    """A network that the user has, with its weights; it is measured where it is, and never moved."""

    has_weights = True

    network: Wrapped
    sha256: str  # computed once: of a large network it takes a while

    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Return the network itself."""
        return self.network

    def content(self) -> str:
        """Return the hash of code and weights."""
        return self.sha256

    @property
    def architecture(self) -> str:
        """The name of the module's class."""
        return type(self.network.model).__name__


def hash_network(network: nn.Module) -> str:
    """Hash a network's code and weights, whatever mode it is in: it is measured in eval mode."""
    with mode(network, "eval"):
        return of_network(network)


def _to_outputs(answer: object) -> Outputs:
    """Convert the three kinds of answer."""
    if isinstance(answer, Outputs):
        return answer
    if isinstance(answer, Tensor):
        nothing = answer[..., :0]
        return Outputs(nothing, answer, nothing)
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Tensor):
        return Outputs(answer[0], answer[1], answer[1][..., :0])
    raise UseError(f"the network returns {_describe(answer)}; {_EXPECTED}")


def _check_parts(outputs: Outputs, count: int) -> None:
    for name in ("logits", "features", "head"):
        part = getattr(outputs, name)
        if not isinstance(part, Tensor) or not part.is_floating_point():
            raise UseError(f"the network's {name} are {getattr(part, 'dtype', _describe(part))} instead of floats")
        if part.dim() != 2 or len(part) != count:
            raise UseError(f"the network's {name} have shape {tuple(part.shape)} for {count} images; {_EXPECTED}")


def _describe(answer: object) -> str:
    if isinstance(answer, tuple | list):
        return f"a {type(answer).__name__} of {len(answer)}"
    return f"a {type(answer).__name__}"


def _answer(network: nn.Module, images: Tensor) -> object:
    """Return what the user's own module says: Outputs no longer tell whether it was a pair."""
    return _answer(network.model, images) if isinstance(network, Wrapped) else network(images)


def check_network(network: nn.Module, batch: Batch, classes: int | None, *, in_data: int | None = None) -> int:
    """Refuse a module that is no network of `classes` classes (None: any) on these images; its mode does not change.

    A user's network may have more classes than the data, `in_data`; these tell only a pair in the wrong order.
    Return the number of its classes.
    """
    if not isinstance(network, nn.Module):
        raise UseError(f"a network must be a torch.nn.Module, not {type(network).__name__}")
    try:
        with surroundings_kept(), mode(network, "eval"), torch.no_grad():
            answer = _answer(network, batch.images.clone())
            outputs = _to_outputs(answer) if isinstance(network, Wrapped) else answer
    except UseError:
        raise
    except Exception as problem:  # somebody else's code may raise anything
        shape = tuple(batch.images.shape)
        raise UseError(f"the network fails on images of shape {shape}: {reason(problem)}") from None
    if not isinstance(outputs, Outputs):
        raise UseError(f"the network returns {_describe(outputs)}; rrbench.wrap makes Outputs of logits")
    _check_parts(outputs, batch.size)
    if not isinstance(answer, Outputs) and in_data == outputs.features.shape[1] != outputs.logits.shape[1]:
        raise UseError(
            f"the network seems to return (logits, features): the first has {in_data} columns, as many as there are "
            f"classes, and the second {outputs.logits.shape[1]}; return (features, logits), or, if these are that, "
            "rrbench.Outputs, which names its parts"
        )
    if classes is not None and outputs.logits.shape[1] != classes:
        raise UseError(f"the network has {outputs.logits.shape[1]} logits, but there are {classes} classes")
    return outputs.logits.shape[1]
