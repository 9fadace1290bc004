"""A training framework with one author's mistake at a time, and a rejector whose loss has one."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.frameworks.standard import Standard
from rrbench.protocols import Batch, Draws, Outputs, Rejector, Victim
from rrbench_baselines.rr import RR

kept: list[object] = []  # copies of the network that a teacher's framework made


@dataclass(frozen=True)
class Mistaken(Standard):
    """Standard training, but for `how`."""

    how: str = ""

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        images, labels = batch.images, batch.labels
        if self.how == "first images":
            images, labels = images[:10], labels[:10]
        if self.how == "teacher":
            teacher = copy.deepcopy(victim.network)
            with torch.no_grad():
                teacher(images[:10])
            kept.append(teacher)
        if self.how == "there and back":
            assert isinstance(victim.network, nn.Module)
            for weight in victim.network.parameters():
                push = 0.01 * weight.data.abs().max() + 0.001
                weight.data += push
                weight.data -= push
        with torch.set_grad_enabled(self.how != "no_grad"):
            outputs = victim.network(images)
            if self.how == "first answers":
                outputs, labels = outputs.at(slice(10)), labels[:10]
            if self.how == "other labels":
                labels = (labels + 1) % outputs.logits.shape[1]
            own = F.cross_entropy(outputs.logits, labels)
            given = labels.flip(0) if self.how == "other labels for the rejector" else labels
            loss = own if self.how == "forgetful" else victim.training_loss(outputs, given, own)
        if self.how in ("own step", "own step on other weights"):
            assert isinstance(victim.network, nn.Module)
            loss.backward(retain_graph=True)
            torch.optim.SGD(victim.network.parameters(), lr=0.1).step()
            if self.how == "own step on other weights":
                return super().__call__(victim, batch, draws)
        if self.how == "backward":
            loss.backward()
        wrong: dict[str, object] = {
            "deaf": own,
            "detached": loss.detach(),
            "each": F.cross_entropy(outputs.logits, labels, reduction="none"),
            "nan": loss * torch.nan,
            "tuple": (loss, outputs),
            "nothing": None,
            "number": loss.item(),
            "whole": outputs.logits.argmax(),
            "images alone": images.clone().requires_grad_().mean(),
        }
        return wrong.get(self.how, loss)  # type: ignore[return-value]


@dataclass
class WrongLoss(RR):
    """RR, but for `how` in its loss."""

    how: str = ""

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        loss = super().training_loss(outputs, labels, classifier_loss)
        wrong: dict[str, object] = {
            "detached": loss.detach(),
            "each": classifier_loss + outputs.logits.square().mean(1),
            "nan": loss * torch.nan,
            "tuple": (loss, classifier_loss),
            "forgetful": loss - classifier_loss,
            "zero times": loss - classifier_loss + 0 * classifier_loss,
            "minus": loss - 2 * classifier_loss,
            "headless": classifier_loss + outputs.logits.square().mean(),
        }
        return wrong.get(self.how, loss)  # type: ignore[return-value]


@dataclass
class ThreeColumns(Rejector):
    """Has a head of three columns; the loss reaches some, and the certainty reads some."""

    taught: ClassVar[tuple[int, ...]] = ()
    read: ClassVar[tuple[int, ...]] = ()

    def build_head(self, width: int, classes: int) -> nn.Module:
        return nn.Linear(width, 3)

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        right = (outputs.logits.argmax(1) == labels).float()[:, None].expand(-1, len(self.taught))
        own = F.binary_cross_entropy_with_logits(outputs.head[:, list(self.taught)], right)
        return classifier_loss + own

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1) + outputs.head[:, list(self.read)].sum(1)
