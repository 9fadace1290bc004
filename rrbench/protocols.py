"""The types every part shares, and the five kinds of plugin as five small base classes.

A plugin is a dataclass whose fields are its settings: `repr` is the record of a run.
No plugin sees the configuration, the store or another plugin.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.errors import CellError
from rrbench.lending import writes_into
from rrbench.seals import Hidden, sealed

Norm = Literal["linf", "l2"]
Split = Literal["train", "calibration", "test"]


class Batch(NamedTuple):
    """Some inputs of a data set."""

    images: Tensor  # (N, C, H, W) in [0, 1]
    labels: Tensor  # (N,)
    ids: Tensor  # (N,) position in the data set

    def at(self, index: Tensor | slice) -> "Batch":
        """Return the inputs at `index`."""
        return Batch(self.images[index], self.labels[index], self.ids[index])

    def repeated(self, count: int) -> "Batch":
        """Return `count` copies one after the other."""
        return Batch(*(part.repeat(count, *[1] * (part.dim() - 1)) for part in self))

    def copied(self) -> "Batch":
        """Return a copy to lend: whoever writes into it changes nobody else's inputs."""
        return Batch(*(part.clone() for part in self))

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`."""
        return Batch(self.images.to(device), self.labels.to(device), self.ids.to(device))

    @property
    def size(self) -> int:
        """The number of inputs."""
        return self.labels.shape[0]


class Outputs(NamedTuple):
    """All that a network says about a batch; a rejector is a function of this."""

    features: Tensor  # (N, width); zero columns when a wrapped model gives none
    logits: Tensor  # (N, classes)
    head: Tensor  # (N, outputs of the rejector's head); zero columns without one

    def at(self, index: Tensor | slice) -> "Outputs":
        """Return the outputs at `index`."""
        return Outputs(self.features[index], self.logits[index], self.head[index])


Network = Callable[[Tensor], Outputs]  # an nn.Module, or a wrapper round one


@dataclass(frozen=True)
class Budget:
    """How far an attack may move an image; no radius means minimal distortion."""

    norm: Norm
    radius: Fraction | None

    @property
    def eps(self) -> float:
        """The radius as a float, for attacks that need one."""
        if self.radius is None:
            raise ValueError("a minimal-distortion budget has no radius")
        return float(self.radius)


NO_BUDGET = Budget("linf", Fraction(0))  # of an attack that has no budget at all: it may not move


class Calibration(NamedTuple):
    """What a deployer knows of a rejector's certainty, from clean inputs alone."""

    threshold: float  # deployed: keeps 95 % of the right clean inputs; the highest where each fold has its own
    median: float  # of certainty over the correct clean training inputs
    scale: float  # how far it falls from there to the border between classes, or their interquartile range if wider
    folds: tuple[float, ...] = ()  # the threshold of each fold, where inputs fix those of others

    def threshold_of(self, ids: Tensor) -> Tensor:
        """Return the threshold by which each input is judged."""
        folds = torch.tensor(self.folds or (self.threshold,), dtype=torch.float64, device=ids.device)
        return folds[ids % len(folds)]


class Draws(Protocol):
    """Randomness tied to (seed, attack, example id, restart), never to the batch."""

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        """Return (len(ids), *shape) numbers in [0, 1)."""

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        """Return (len(ids), *shape) standard normal numbers."""


@dataclass
class Rejector(ABC):
    """Gives each input a certainty; only `certainty` must be written.

    Overriding is the declaration: what has a `fit` is fitted, what has a `build_head` or a `training_loss` is trained.
    """

    revision: ClassVar[int] = 1  # raised with every change of behaviour: keys and rows hold it
    frameworks: ClassVar[tuple[str, ...]] = ()  # empty: any
    needs: ClassVar[frozenset[str]] = frozenset()  # of {"features"}: what is not named cannot be read
    after_training: ClassVar[frozenset[str]] = (
        frozenset()
    )  # settings used only after training: changing them needs no new one
    trains_as: ClassVar[str] = ""  # the name of the rejector whose training this class inherits unchanged
    is_oracle: ClassVar[bool] = False  # looks at the label: a bound, not a defence
    is_constant: ClassVar[bool] = False  # the same certainty for every input: a reference, not a defence
    own_threshold: ClassVar[float | None] = None  # accepts certainty >= this, instead of a fitted threshold
    paper: ClassVar[str] = ""  # authors, year, arXiv number
    scores: ClassVar[str] = ""  # one line: what the certainty is

    # Not a setting: the only thing `fit` writes; saved and moved by the store.
    fitted: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_probability(self) -> bool:
        """Whether certainty lies in [0, 1]; a subclass may write `is_probability = True`."""
        return False

    def build_head(self, width: int, classes: int) -> nn.Module | None:
        """Build the extra head fed by the features, if the rejector has one."""
        return None

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        """Return the total loss of a training step on the framework's inputs."""
        return classifier_loss

    def fit(self, clean: Outputs, labels: Tensor) -> None:  # noqa: B027  (nothing to fit is the common case)
        """Learn from all clean training outputs, in file order and unaugmented, into `fitted`."""

    def look(self, network: Network, images: Tensor, outputs: Outputs) -> Tensor:
        """Ask the network again, about images moved at will, and return (N, columns), which are added to the head.

        From the settings alone: nothing is fitted yet. Differentiable, so that attacks see what the rejector sees.
        """
        raise NotImplementedError

    @abstractmethod
    def certainty(self, outputs: Outputs) -> Tensor:
        """Return (N,); higher is kept, lower is rejected, always."""

    def oracle_certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Return the certainty when the label is known; only oracles override it."""
        return self.certainty(outputs)

    @classmethod
    def has_fit(cls) -> bool:
        """Tell whether it is fitted on clean training outputs."""
        return cls.fit is not Rejector.fit

    @classmethod
    def has_head(cls) -> bool:
        """Tell whether it builds a head."""
        return cls.build_head is not Rejector.build_head

    @classmethod
    def has_training(cls) -> bool:
        """Tell whether it changes the weights: such a rejector has a checkpoint of its own."""
        return cls.has_head() or cls.training_loss is not Rejector.training_loss

    @classmethod
    def has_look(cls) -> bool:
        """Tell whether it asks the network again: attacks then share no answers with other rejectors."""
        return cls.look is not Rejector.look

    def shown(self, outputs: Outputs) -> Outputs:
        """Return outputs of which this rejector can read what it declares, and nothing else."""
        features, logits, head = outputs
        name = type(self).__name__
        if "features" not in self.needs:
            features = sealed(f"{name} reads features: write needs = frozenset({{'features'}})")
        elif not features.shape[1]:
            features = sealed(f"{name} needs features, and this network gives none")
        # A head that is there was built by this rejector, or by whoever brought the network.
        if not head.shape[1]:
            reason = "this network gives none" if self.has_head() else "builds none: write build_head"
            head = sealed(f"{name} needs head, and {reason}")
        return Outputs(features, logits, head)


class Victim(NamedTuple):
    """Network and rejector together: what an attack attacks, and what a framework trains."""

    network: Network
    rejector: Rejector
    calibration: Calibration | None = None  # None while training

    def certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Return the rejector's certainty, an oracle's included, with a gradient wherever the logits have one."""
        # The attack goes on with both: in outputs a write is noticed, and of labels a copy is lent. A write that
        # PyTorch does not see was looked for before (guards.check_alone).
        lent, versions = labels.clone(), [part._version for part in outputs]
        certainty = self.rejector.oracle_certainty(self.rejector.shown(outputs), lent)
        written = [
            part for part, tensor, at in zip(outputs._fields, outputs, versions, strict=True) if tensor._version > at
        ]
        for part in [*written, *(["labels"] if lent._version else [])]:
            raise CellError(writes_into("certainty", type(self.rejector).__name__, part))
        if outputs.logits.requires_grad and torch.is_grad_enabled() and not certainty.requires_grad:
            if self.rejector.is_constant:
                # Its slope is 0 by its own word: what else an objective climbs is all that there is to climb.
                return certainty + 0 * outputs.logits.sum(1)
            # An objective's other terms have one: the ascent would go on without the rejector and look adaptive.
            raise CellError(
                f"the certainty of {self.rejector!r} has no gradient: it cannot be attacked by following one"
            )
        return certainty

    def log_certainty(self, outputs: Outputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log R, log(1 - R)), R the certainty brought into [0, 1] so that any rejector can be attacked.

        A certainty that is no probability becomes sigmoid((certainty - median) / scale), the scale its fall to the
        border between classes: by interquartile range an undeclared confidence kept 99 % robust where PGD leaves 94.
        """
        certainty = self.certainty(outputs, labels)
        if self.rejector.is_probability:
            tiny = torch.finfo(certainty.dtype).tiny
            return certainty.clamp_min(tiny).log(), (1 - certainty).clamp_min(tiny).log()
        if self.calibration is None:
            raise ValueError("a certainty outside [0, 1] needs a calibration")
        standard = (certainty - self.calibration.median) / self.calibration.scale
        return F.logsigmoid(standard), F.logsigmoid(-standard)

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        """Return the total loss of a step: the framework's own, with the rejector's share."""
        return self.rejector.training_loss(self.rejector.shown(outputs), labels, classifier_loss)

    def seen_by(self, attack: "Attack") -> "Victim":
        """Return the victim as an attack may see it: of a blind one's, the network alone."""
        if attack.is_adaptive:
            return self
        # Typed as anything: it stands in both places, and is none of the two.
        hidden: Any = Hidden(f"{type(attack).__name__} reads the rejector: write is_adaptive = True")
        return Victim(self.network, hidden, hidden)


class Moved(NamedTuple):
    """What an attack answers."""

    images: Tensor  # its answer for every input
    boldest: Tensor | None = None  # the wrong image it saw with the highest certainty, where it saw one
    reached: Tensor | None = None  # (N,) of minimal distortion: where the goal was reached


class Attack(ABC):
    """Moves images within a budget; a frozen dataclass.

    What may depend on settings is a property here; a class for which it does not writes `is_adaptive = True`.
    """

    revision: ClassVar[int] = 1  # raised with every change of behaviour: keys and rows hold it
    packages: ClassVar[tuple[str, ...]] = ()  # distributions that compute its answers; their versions enter its key
    needs_budget: ClassVar[bool] = True  # False: minimal distortion, or no attack
    expand_over: ClassVar[tuple[str, tuple[str, ...]] | None] = None  # (setting, values): left out, one cell for each
    paper: ClassVar[str] = ""  # authors, year, arXiv number
    maximises: ClassVar[str] = ""  # one line: what it does
    cost: ClassVar[str] = ""  # gradients an image, in words
    keeps_answers: ClassVar[bool] = False  # changes no prediction, so that others do more harm without making it weak
    is_mixture: ClassVar[bool] = False  # answers with the clean image where it fails: its scores mix both kinds

    @property
    def is_adaptive(self) -> bool:
        """Whether it looks at the rejector; otherwise it cannot, and one run serves all rejectors."""
        return False

    @property
    def norms(self) -> frozenset[str]:
        """The norms of its budgets; empty: it has no budget at all."""
        return frozenset({"linf", "l2"})

    @abstractmethod
    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Answer for every input of the batch; the harness re-checks budget and range."""

    @abstractmethod
    def gradients_per_image(self, classes: int) -> int:
        """Count the gradient evaluations one image costs."""


Member = Callable[[Victim, Batch], Moved]  # an attack with budget and draws already chosen, or its stored answers


class Ensemble(Attack):
    """Takes, per input, the worst of other attacks' answers, which the harness runs or finds in the store."""

    is_adaptive = True

    @abstractmethod
    def combine(self, victim: Victim, batch: Batch, members: Sequence[Member]) -> Moved:
        """Choose between the members' answers for every input of the batch."""

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Refuse: alone it has nothing to choose from."""
        raise CellError("an ensemble needs the attacks that it is the worst of; `rrbench run` plans them")

    def gradients_per_image(self, classes: int) -> int:
        """Return 0: its members count theirs."""
        return 0


@dataclass(frozen=True)
class MovedElsewhere(Attack):
    """Takes over images that a blind attack moved on another network, which the harness runs or finds in the store."""

    source: str  # that network, as rows name it in trained_as: pgd-at, pgd-at+rr
    by: str  # that attack: one blind one with a budget

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Refuse: alone it has no other network."""
        raise CellError(f"images moved on another network, {self.source}, need a work folder; `rrbench run` plans them")

    def gradients_per_image(self, classes: int) -> int:
        """Return 0: the attack on the other network counts its own."""
        return 0


class Framework(ABC):
    """One way to train a network; a frozen dataclass."""

    revision: ClassVar[int] = 1  # raised with every change of behaviour: what was trained before is another checkpoint
    rejectors: ClassVar[tuple[str, ...]] = ()  # empty: any; carl's loss reads the head of the rejector carl
    chooses_epoch: ClassVar[bool] = True  # False: robust accuracy says nothing here, the last epoch is taken
    paper: ClassVar[str] = ""
    minimises: ClassVar[str] = ""  # one line: its loss

    @abstractmethod
    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Return the loss of one step, the rejector's share included."""

    @abstractmethod
    def gradients_per_image(self) -> int:
        """Count the gradient evaluations one training image costs, the weight update included."""


@dataclass(frozen=True)
class DataInfo:
    """What a network and an augmentation must know of a data set."""

    classes: int
    shape: tuple[int, int, int]  # (C, H, W)
    mean: tuple[float, ...]  # per channel, for the normalisation inside the network
    std: tuple[float, ...]
    train_size: int = 0
    calibration_size: int = 0
    test_size: int = 0
    pad: int = 0  # training images are shifted by up to this many pixels, zeros coming in
    flip: bool = False  # training images are mirrored half of the time


class DataSource(ABC):
    """A data set; a frozen dataclass."""

    revision: ClassVar[int] = 1  # raised when it gives other inputs than before
    info: DataInfo
    trains_as: str | None = None  # the data set whose checkpoints are used, where it has no training images
    about: ClassVar[str] = ""  # one line

    @abstractmethod
    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Read one split from the first of `roots` that has it; a missing data set says how to get it."""


class NetworkSource(ABC):
    """An architecture; a frozen dataclass."""

    revision: ClassVar[int] = 1  # raised when the same weights give other outputs than before
    about: ClassVar[str] = ""  # one line

    @abstractmethod
    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Build the network with the head that the rejector asks for, in PyTorch's current random state.

        A network may bring `twin(dtype)`: a module on the same weights that is attacked in its place on a GPU, and that
        takes weights over anew when its `refresh()` is called; and `learn(images, twin)`, which answers a training
        batch by way of that twin, differentiable in the network's own weights. `Composed` has all three.
        """


# A table's value is a class, or the text of another entry: "rr(form=difference)", "confidence@ccat".
RejectorTable = Mapping[str, type[Rejector] | str]
AttackTable = Mapping[str, type[Attack] | str]
FrameworkTable = Mapping[str, type[Framework] | str]
DataTable = Mapping[str, type[DataSource] | str]
NetworkTable = Mapping[str, type[NetworkSource] | str]
