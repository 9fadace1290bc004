"""Plugins that count their calls, answer at random or misbehave, and a reader of their rows, for the tests of runs."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rrbench.metrics.columns import Metrics
from rrbench.networks.small_cnn import SmallCnn
from rrbench.protocols import (
    Attack,
    Batch,
    Budget,
    DataInfo,
    Draws,
    Framework,
    Moved,
    NetworkSource,
    Outputs,
    Rejector,
    Victim,
)
from rrbench.rows.row import ResultRow

METRICS = tuple(vars(Metrics()))


@dataclass(frozen=True)
class Brighter(Attack):
    """Adds eps to every pixel, and counts how often it is called."""

    norms = frozenset({"linf"})
    calls: ClassVar[list[int]] = []

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        self.calls.append(batch.size)
        return Moved((batch.images + budget.eps).clamp(0, 1))

    def gradients_per_image(self, classes: int) -> int:
        return 0


@dataclass(frozen=True)
class Watching(Brighter):
    """The same, but it says that it looks at the rejector."""

    is_adaptive = True


@dataclass(frozen=True)
class Misbehaving(Brighter):
    """Does one wrong thing."""

    how: str = ""
    works: ClassVar[bool] = False

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        images = (batch.images + budget.eps).clamp(0, 1)
        if self.works:
            return Moved(images)
        if self.how == "in place":
            batch.images.fill_(0.5)
            return Moved(batch.images)
        if self.how == "labels":
            batch.labels.copy_(victim.network(images).logits.argmax(1))
            return Moved(images)
        raising = {"value": ValueError, "attribute": AttributeError, "assertion": AssertionError, "os": OSError}
        if self.how in raising:
            raise raising[self.how]("a plugin's own trouble\nand a second line")
        wrong = {
            "far": (batch.images + 3 * budget.eps).clamp(0, 1),
            "boldly far": (batch.images + 3 * budget.eps).clamp(0, 1),
            "outside": batch.images - budget.eps,
            "nan": images * float("nan"),
            "few": images[:1],
            "flat": images.flatten(1),
        }[self.how]
        return Moved(images, wrong) if self.how == "boldly far" else Moved(wrong)


@dataclass
class Noise(Rejector):
    """Random certainty: a hash of the logits."""

    salt: int = 0

    def certainty(self, outputs: Outputs) -> Tensor:
        return (
            ((outputs.logits.double() @ torch.arange(1.0, 11, dtype=torch.float64)) * 1e4 + self.salt).sin() * 1e4 % 1
        )


@dataclass
class RejectAll(Rejector):
    """Refuses whatever it is shown."""

    own_threshold = 2.0

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.sum(1) * 0 + 1


@dataclass
class Wrong(Rejector):
    """Answers wrongly in one of several ways."""

    how: str = "nan"

    def certainty(self, outputs: Outputs) -> Tensor:
        return {
            "nan": outputs.logits.sum(1) * float("nan"),
            "shape": outputs.logits,
            "infinite": outputs.logits.sum(1) + float("inf"),
        }[self.how]


@dataclass
class Unfit(Rejector):
    """Cannot be fitted."""

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        raise ValueError("too few examples")

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1)


@dataclass(frozen=True)
class BrokenTraining(Framework):
    """Raises in its first step."""

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        raise AttributeError("a framework's own trouble")

    def gradients_per_image(self) -> int:
        return 1


class FragileNetwork(nn.Module):
    """Answers NaN for an image without a dark pixel."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Outputs:
        outputs: Outputs = self.inner(images)
        bright = images.flatten(1).amin(1, keepdim=True) >= 0.1
        return outputs._replace(logits=outputs.logits.masked_fill(bright, float("nan")))


@dataclass(frozen=True)
class Fragile(NetworkSource):
    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        return FragileNetwork(SmallCnn(width=4).build(info, rejector))


def by_attack(rows: list[ResultRow]) -> dict[str, ResultRow]:
    return {row.attack: row for row in rows}


def measured(row: ResultRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in METRICS}
