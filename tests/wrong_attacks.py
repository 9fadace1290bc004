"""Attacks with one author's mistake each."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from made_up_plugins import Brighter
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim


@dataclass(frozen=True)
class Peeping(Brighter):
    """Looks at the rejector, and does not say so."""

    how: str = "certainty"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        if self.how == "certainty":
            victim.certainty(victim.network(batch.images), batch.labels)
        elif self.how == "rejector":
            victim.rejector.certainty(victim.network(batch.images))
        elif self.how == "log":
            victim.log_certainty(victim.network(batch.images), batch.labels)
        elif self.how == "threshold":
            assert victim.calibration is not None
            assert victim.calibration.threshold
        elif self.how == "has calibration":
            assert bool(victim.calibration) in (True, False)
        elif self.how == "unpacked":
            _, rejector, _ = victim
            rejector.certainty(victim.network(batch.images))
        return Moved(batch.images)


@dataclass(frozen=True)
class Misanswering(Brighter):
    """Answers in a wrong form."""

    how: str = "bare"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Any:
        images = batch.images
        return {
            "bare": images,
            "tuple": (images, None, None),
            "none": None,
            "list": Moved([images]),  # type: ignore[arg-type]
            "boldest": Moved(images, images[:, :, 1:]),
            "double": Moved(images.double()),
            "reached": Moved(images, None, torch.ones(1, dtype=torch.bool)),
        }[self.how]


@dataclass(frozen=True)
class Nearest(Brighter):
    """Looks for the smallest push and does not say where it found one."""

    needs_budget = False

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        return Moved(batch.images)


@dataclass(frozen=True)
class Climbing(Attack):
    """An outsider's adaptive attack: one step up cross-entropy and certainty together."""

    is_adaptive = True
    norms = frozenset({"linf"})

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        images = batch.images.clone().requires_grad_()
        with torch.enable_grad():
            outputs = victim.network(images)
            loss = nn.functional.cross_entropy(outputs.logits, batch.labels, reduction="none")
            total = (loss + victim.certainty(outputs, batch.labels)).sum()
            (slope,) = torch.autograd.grad(total, images)
        return Moved((batch.images + budget.eps * slope.sign()).clamp(0, 1))

    def gradients_per_image(self, classes: int) -> int:
        return 1


def _zeroed(module: nn.Module, given: object, answer: object) -> object:
    return 0 * answer if isinstance(answer, Tensor) else answer


@dataclass(frozen=True)
class Meddling(Brighter):
    """Writes into the network."""

    how: str = "data"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        network = victim.network
        assert isinstance(network, nn.Module)
        if self.how == "data":
            for parameter in network.parameters():
                parameter.data.zero_()
        elif self.how == "in place":
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.add_(1.0)
        elif self.how == "buffers":
            for buffer in network.buffers():
                buffer.zero_()
        elif self.how == "replaced":
            for module in network.modules():
                for name, parameter in module.named_parameters(recurse=False):
                    setattr(module, name, nn.Parameter(torch.zeros_like(parameter)))
        elif self.how == "hook":
            for module in list(network.modules())[1:]:
                module.register_forward_hook(_zeroed)
        elif self.how == "forward":
            for module in list(network.modules())[1:]:
                module.forward = lambda images: images
        elif self.how == "module":
            for module in list(network.modules())[1:]:
                module.append_here = nn.Identity()
        elif self.how == "raising":
            for parameter in network.parameters():
                parameter.data.zero_()
            raise ValueError("halfway")
        return super().__call__(victim, batch, budget, draws)


@dataclass(frozen=True)
class Unteaching(Climbing):
    """Writes into what the rejector has learnt."""

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        for tensor in victim.rejector.fitted.values():
            tensor.data.zero_()
        return super().__call__(victim, batch, budget, draws)
