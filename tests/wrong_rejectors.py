"""Rejectors with one author's mistake each, and the correct ones from which they derive."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rrbench.protocols import Outputs, Rejector


@dataclass
class Sure(Rejector):
    """A right one, from which the wrong ones derive."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.double().softmax(1).amax(1)


@dataclass
class Calm(Sure):
    """Has a loss of its own, and says nothing more of it."""

    weight: float = 0.1
    tau: float = 1.0

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return classifier_loss + self.weight * outputs.logits.square().mean()


@dataclass
class CalmAtTau(Calm):
    after_training = frozenset({"tau"})


@dataclass
class Headed(Sure):
    """Has a head, and a loss that trains it."""

    def build_head(self, width: int, classes: int) -> nn.Module:
        return nn.Linear(width, 1)

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return classifier_loss + 0.1 * (outputs.head - 1).square().mean()

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.head[:, 0]


@dataclass
class HeadedByErrors(Headed):
    """Learns from wrong answers alone."""

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        is_wrong = outputs.logits.argmax(1) != labels
        return classifier_loss + ((1 + outputs.head[:, 0]).relu() * is_wrong).mean()


@dataclass
class Unheard(Headed):
    """Forgets its head while it trains."""

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return classifier_loss


@dataclass
class UnheardSign(Unheard):
    """The same, and no gradient tells that it reads its head."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1) + outputs.head[:, 0].detach().sign()


@dataclass
class Centred(Rejector):
    """Is fitted, and says nothing more of it."""

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        self.fitted = {"mean": clean.logits.mean(0)}

    def certainty(self, outputs: Outputs) -> Tensor:
        mean = self.fitted.get("mean", torch.full_like(outputs.logits[0], 1e9))
        return (outputs.logits - mean).double().square().sum(1)


@dataclass
class Forgetful(Centred):
    def fit(self, clean: Outputs, labels: Tensor) -> None:
        self.mean = clean.logits.mean(0)

    def certainty(self, outputs: Outputs) -> Tensor:
        return (outputs.logits - self.mean).double().square().sum(1)


@dataclass
class Untensored(Centred):
    def fit(self, clean: Outputs, labels: Tensor) -> None:
        self.fitted["mean"] = float(clean.logits.mean())  # type: ignore[assignment]


@dataclass
class Unlearnt(Centred):
    def fit(self, clean: Outputs, labels: Tensor) -> None:
        clean.logits.mean(0)


@dataclass
class Clamping(Sure):
    """Writes into the outputs, in a way that changes nothing the second time."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.clamp_(max=2.0).softmax(1).amax(1)


@dataclass
class Hoarding(Sure):
    """Keeps what it learnt in a box of its own beside `fitted`."""

    box: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        self.box["mean"] = clean.logits.mean(0)
        self.fitted = {"count": torch.tensor(len(labels))}

    def certainty(self, outputs: Outputs) -> Tensor:
        return (outputs.logits - self.box["mean"]).square().sum(1)


@dataclass
class LossOfItsOwn(Sure):
    """Sets its loss where nobody looks for it."""

    def __post_init__(self) -> None:
        setattr(self, "training_loss", lambda outputs, labels, loss: 0 * loss)  # noqa: B010


@dataclass
class Near(Sure):
    """Reads features that it did not ask for."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return -outputs.features.square().sum(1)


@dataclass
class NearInTraining(Sure):
    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return classifier_loss + outputs.features.square().mean()


@dataclass
class NearInFit(Centred):
    def fit(self, clean: Outputs, labels: Tensor) -> None:
        self.fitted = {"mean": torch.cat([clean.logits, clean.features], 1).mean(0)}


@dataclass
class Headless(Sure):
    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.head[:, 0].sigmoid()


@dataclass
class Ranked(Sure):
    """Compares inputs with one another."""

    def certainty(self, outputs: Outputs) -> Tensor:
        best = outputs.logits.amax(1)
        return (best - best.mean()) / (best.std(correction=0) + 1e-6)


@dataclass
class Crowded(Sure):
    """Compares inputs with one another if there are many."""

    def certainty(self, outputs: Outputs) -> Tensor:
        best = outputs.logits.amax(1)
        return best - best.mean() if len(best) > 8 else best


@dataclass
class Truthful(Sure):
    """Says yes or no."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1) > 1


@dataclass
class Imaginary(Sure):
    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1) * 1j


@dataclass
class Chancy(Sure):
    def certainty(self, outputs: Outputs) -> Tensor:
        return torch.rand(len(outputs.logits), dtype=torch.float64)


@dataclass
class Deaf(Sure):
    """A certainty through which no gradient comes."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return super().certainty(outputs).detach()


@dataclass
class Leaky(Calm):
    """Says of a setting that it comes after training, and uses it in the loss."""

    after_training = frozenset({"weight"})


@dataclass
class HeadTooWide(Headed):
    """The same of a setting of its head."""

    width: int = 1
    after_training = frozenset({"width"})

    def build_head(self, width: int, classes: int) -> nn.Module:
        return nn.Linear(width, self.width)


@dataclass
class Backwards(Sure):
    """Higher is rejected."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return -super().certainty(outputs)


@dataclass
class Keeping(Sure):
    """Keeps on itself what it saw first."""

    def certainty(self, outputs: Outputs) -> Tensor:
        if not hasattr(self, "mean"):
            self.mean = outputs.logits.detach().mean(0)
        away: Tensor = outputs.logits - self.mean
        return -away.square().sum(1)


@dataclass
class Replacing(Sure):
    """Sets one of its settings anew."""

    tau: float = 1.0

    def certainty(self, outputs: Outputs) -> Tensor:
        self.tau = self.tau + 1.0
        return super().certainty(outputs)


@dataclass
class Deleting(Replacing):
    """Deletes one of its settings."""

    def certainty(self, outputs: Outputs) -> Tensor:
        del self.tau
        return outputs.logits.amax(1)


class Remembering(Centred):
    """Keeps what it learnt in a place that nobody looks at."""

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        super().fit(clean, labels)
        SECRET[id(self)] = (self, float(clean.logits.mean()))

    def certainty(self, outputs: Outputs) -> Tensor:
        return super().certainty(outputs) + SECRET.get(id(self), (None, 0.0))[1]


# Holds the object too: the id of a freed one may be given to the next.
SECRET: dict[int, tuple[Rejector | None, float]] = {}


@dataclass
class Scribbling(Sure):
    """Scores rightly, and then writes into what it was lent."""

    how: str = "in place"
    needs = frozenset({"features"})

    def certainty(self, outputs: Outputs) -> Tensor:
        score, logits = super().certainty(outputs), outputs.logits
        if self.how == "data":
            logits.data.zero_()
        elif self.how == "numpy":
            logits.detach().numpy().fill(0)
        elif self.how == "features":
            outputs.features.data.zero_()
        elif self.how == "in place" or (self.how == "climb" and logits.requires_grad):
            with torch.no_grad():
                logits.zero_()
        elif self.how == "climb data" and logits.requires_grad:
            logits.data.zero_()
        return score


@dataclass
class Relabelling(Sure):
    """Writes into the labels, which an oracle is given."""

    is_oracle = True

    def oracle_certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        score = outputs.logits.double().softmax(1).gather(1, labels[:, None]).squeeze(1)
        labels.data.zero_()
        return score


@dataclass
class RelabellingFit(Centred):
    def fit(self, clean: Outputs, labels: Tensor) -> None:
        super().fit(clean, labels)
        labels.data.zero_()


@dataclass
class Drifting(Centred):
    """Goes on learning while it scores."""

    def certainty(self, outputs: Outputs) -> Tensor:
        score = super().certainty(outputs)
        if "mean" in self.fitted:
            self.fitted["mean"].data.add_(1e-3)
        return score
