"""The types that all parts share, and the five kinds of plugin as five small base classes.

A plugin is a dataclass and its fields are its settings: `repr` records a run.
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
        """Return a copy to lend: if a plugin writes into it, other inputs do not change."""
        return Batch(*(part.clone() for part in self))

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`."""
        return Batch(self.images.to(device), self.labels.to(device), self.ids.to(device))

    @property
    def size(self) -> int:
        """The number of inputs."""
        return self.labels.shape[0]


class Outputs(NamedTuple):
    """Everything that a network says about a batch; a rejector is a function of this."""

    features: Tensor  # (N, width); zero columns when a wrapped model gives none
    logits: Tensor  # (N, classes)
    head: Tensor  # (N, outputs of the rejector's head); zero columns without one

    def at(self, index: Tensor | slice) -> "Outputs":
        """Return the outputs at `index`."""
        return Outputs(self.features[index], self.logits[index], self.head[index])


Network = Callable[[Tensor], Outputs]  # an nn.Module, or a wrapper round one


@dataclass(frozen=True)
class Budget:
    """How far an attack may move an image; without a radius the attack looks for minimal distortion."""

    norm: Norm
    radius: Fraction | None

    @property
    def eps(self) -> float:
        """The radius as a float, for attacks that need one."""
        if self.radius is None:
            raise ValueError("a minimal-distortion budget has no radius")
        return float(self.radius)


NO_BUDGET = Budget("linf", Fraction(0))  # for an attack without any budget: it may not move images


class Calibration(NamedTuple):
    """What a deployer knows about a rejector's certainty, from clean inputs only."""

    threshold: float  # deployed: keeps 95 % of the right clean inputs; the highest if each fold has its own
    median: float  # of certainty on the correct clean training inputs
    scale: float  # fall from the median to the border between classes, or interquartile range if larger
    folds: tuple[float, ...] = ()  # the threshold of each fold, if thresholds come from cross-fitting

    def threshold_of(self, ids: Tensor) -> Tensor:
        """Return the threshold that judges each input."""
        folds = torch.tensor(self.folds or (self.threshold,), dtype=torch.float64, device=ids.device)
        return folds[ids % len(folds)]


class Draws(Protocol):
    """Random numbers tied to (seed, attack, example id, restart), never to the batch."""

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        """Return (len(ids), *shape) numbers in [0, 1)."""

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        """Return (len(ids), *shape) standard normal numbers."""


@dataclass
class Rejector(ABC):
    """Gives each input a certainty; only `certainty` must be written.

    Overriding a method declares it: a class with `fit` is fitted, one with `build_head` or `training_loss` is trained.
    """

    revision: ClassVar[int] = 1  # raise it with every change of behaviour: keys and rows hold it
    frameworks: ClassVar[tuple[str, ...]] = ()  # empty: any
    needs: ClassVar[frozenset[str]] = frozenset()  # of {"features"}: outputs that are not named cannot be read
    after_training: ClassVar[frozenset[str]] = (
        frozenset()
    )  # settings used only after training: changing them needs no new one
    inherits_training_of: ClassVar[str] = ""  # the name of the rejector whose training this class inherits unchanged
    is_oracle: ClassVar[bool] = False  # looks at the label: an upper bound, not a defence
    is_constant: ClassVar[bool] = False  # the same certainty for every input: a reference, not a defence
    own_threshold: ClassVar[float | None] = None  # accepts certainty >= this, instead of a fitted threshold
    paper: ClassVar[str] = ""  # authors, year, arXiv number
    scores: ClassVar[str] = ""  # one line: what the certainty is

    # Not a setting: `fit` writes only this; the store saves and moves it.
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
        """Ask the network again about moved images, and return (N, columns), which are appended to the head.

        Use only settings: nothing is fitted yet. Must be differentiable, so that attacks see what the rejector sees.
        """
        raise NotImplementedError

    def gradients_per_look(self) -> int:
        """Return how many gradients one look takes for an image, or at most takes; only estimates of time need it."""
        return 0

    @abstractmethod
    def certainty(self, outputs: Outputs) -> Tensor:
        """Return (N,); a higher value always means keep, a lower one reject."""

    def oracle_certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Return the certainty when the label is known; only oracles override it."""
        return self.certainty(outputs)

    @classmethod
    def has_fit(cls) -> bool:
        """Tell whether the rejector is fitted on clean training outputs."""
        return cls.fit is not Rejector.fit

    @classmethod
    def has_head(cls) -> bool:
        """Tell whether the rejector builds a head."""
        return cls.build_head is not Rejector.build_head

    @classmethod
    def has_training(cls) -> bool:
        """Tell whether the rejector changes the weights: it then has its own checkpoint."""
        return cls.has_head() or cls.training_loss is not Rejector.training_loss

    @classmethod
    def has_look(cls) -> bool:
        """Tell whether the rejector asks the network again: it then shares no attack results with other rejectors."""
        return cls.look is not Rejector.look

    def shown(self, outputs: Outputs) -> Outputs:
        """Return outputs in which this rejector can read only what it declares."""
        features, logits, head = outputs
        name = type(self).__name__
        if "features" not in self.needs:
            features = sealed(f"{name} reads features: write needs = frozenset({{'features'}})")
        elif not features.shape[1]:
            features = sealed(f"{name} needs features, and this network gives none")
        # If there is a head, this rejector built it, or the user's network brought it.
        if not head.shape[1]:
            reason = "this network gives none" if self.has_head() else "builds none: write build_head"
            head = sealed(f"{name} needs head, and {reason}")
        return Outputs(features, logits, head)


class Victim(NamedTuple):
    """Network and rejector together: attacks attack it, frameworks train it."""

    network: Network
    rejector: Rejector
    calibration: Calibration | None = None  # None while training

    def certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Return the rejector's certainty, also an oracle's; it has a gradient if the logits have one."""
        # The attack uses outputs and labels again: a write into outputs is detected, and labels are lent as a copy.
        # guards.check_alone has already looked for writes that PyTorch does not see.
        lent, versions = labels.clone(), [part._version for part in outputs]
        certainty = self.rejector.oracle_certainty(self.rejector.shown(outputs), lent)
        written = [
            part for part, tensor, at in zip(outputs._fields, outputs, versions, strict=True) if tensor._version > at
        ]
        for part in [*written, *(["labels"] if lent._version else [])]:
            raise CellError(writes_into("certainty", type(self.rejector).__name__, part))
        if outputs.logits.requires_grad and torch.is_grad_enabled() and not certainty.requires_grad:
            if self.rejector.is_constant:
                # Its slope is 0, as the class declares: the objective's other terms are all that can be climbed.
                return certainty + 0 * outputs.logits.sum(1)
            # The objective's other terms have a gradient: the ascent would ignore the rejector and still look adaptive.
            raise CellError(
                f"the certainty of {self.rejector!r} has no gradient: it cannot be attacked by following one"
            )
        return certainty

    def log_certainty(self, outputs: Outputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log R, log(1 - R)), with R the certainty brought into [0, 1], so that any rejector can be attacked.

        A certainty that is no probability becomes sigmoid((certainty - median) / scale). The scale is the fall of the
        certainty to the border between classes, or the interquartile range if larger. With that range alone, a
        confidence that was not declared a probability kept 99 % robust where PGD leaves 94.
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
        """Return the total loss of a step: the framework's loss and the rejector's."""
        return self.rejector.training_loss(self.rejector.shown(outputs), labels, classifier_loss)

    def seen_by(self, attack: "Attack") -> "Victim":
        """Return the victim as an attack may see it: a blind attack sees only the network."""
        if attack.is_adaptive:
            return self
        # Typed as Any: it replaces a rejector and a calibration, and is neither.
        hidden: Any = Hidden(f"{type(attack).__name__} reads the rejector: write is_adaptive = True")
        return Victim(self.network, hidden, hidden)


class Moved(NamedTuple):
    """An attack's answer."""

    images: Tensor  # one for every input
    boldest: Tensor | None = None  # the wrong image with the highest certainty that the attack saw, if any
    reached: Tensor | None = None  # (N,) for minimal distortion: whether the goal was reached


class Attack(ABC):
    """Moves images within a budget; a frozen dataclass.

    A fact that may depend on settings is a property; if it does not, a class may write `is_adaptive = True`.
    """

    revision: ClassVar[int] = 1  # raise it with every change of behaviour: keys and rows hold it
    packages: ClassVar[tuple[str, ...]] = ()  # distributions that compute its answers; its key holds their versions
    needs_budget: ClassVar[bool] = True  # False: minimal distortion, or no attack
    certifies: ClassVar[bool] = False  # checks its answers in float32 itself: only its search may be less precise
    expand_over: ClassVar[tuple[str, tuple[str, ...]] | None] = None  # (setting, values): if not given, a cell each
    paper: ClassVar[str] = ""  # authors, year, arXiv number
    maximises: ClassVar[str] = ""  # one line: what it does
    cost: ClassVar[str] = ""  # gradients an image, in words
    keeps_answers: ClassVar[bool] = False  # changes certainties only; attacks that do more harm do not show it weak
    is_mixture: ClassVar[bool] = False  # answers with the clean image if it fails: its scores mix both kinds
    # Settings that came after rows were published: at their defaults they are in no key, so that keys stay.
    added: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_adaptive(self) -> bool:
        """Whether it looks at the rejector; if not, it cannot, and one run serves all rejectors."""
        return False

    @property
    def norms(self) -> frozenset[str]:
        """The norms of its budgets; empty if it has no budget at all."""
        return frozenset({"linf", "l2"})

    @abstractmethod
    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Answer for every input of the batch; the harness checks budget and range again."""

    @abstractmethod
    def gradients_per_image(self, classes: int) -> int:
        """Return how many gradient evaluations one image costs."""


Member = Callable[[Victim, Batch], Moved]  # an attack with budget and draws already chosen, or its stored answers


class Ensemble(Attack):
    """Takes, for each input, the worst answer of other attacks; the harness runs these or finds them in the store."""

    is_adaptive = True

    @abstractmethod
    def combine(self, victim: Victim, batch: Batch, members: Sequence[Member]) -> Moved:
        """Choose between the members' answers for every input of the batch."""

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Refuse: an ensemble alone has no answers to choose from."""
        raise CellError("an ensemble needs the attacks that it is the worst of; `rrbench run` plans them")

    def gradients_per_image(self, classes: int) -> int:
        """Return 0: the members count their own gradients."""
        return 0


@dataclass(frozen=True)
class MovedElsewhere(Attack):
    """Uses images that a blind attack moved on another network; the harness runs it or finds them in the store."""

    source: str  # the other network, named as in trained_as: pgd-at, pgd-at+rr
    by: str  # the attack: a blind one with a budget

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Refuse: alone there is no other network."""
        raise CellError(f"images moved on another network, {self.source}, need a work folder; `rrbench run` plans them")

    def gradients_per_image(self, classes: int) -> int:
        """Return 0: the attack on the other network counts its own gradients."""
        return 0


class Framework(ABC):
    """One way to train a network; a frozen dataclass."""

    revision: ClassVar[int] = 1  # raise it with every change of behaviour: earlier checkpoints are other networks
    rejectors: ClassVar[tuple[str, ...]] = ()  # empty: any; carl's loss reads the head of the rejector carl
    chooses_epoch: ClassVar[bool] = True  # False: robust accuracy is not meaningful here, so the last epoch is taken
    paper: ClassVar[str] = ""
    minimises: ClassVar[str] = ""  # one line: its loss
    # Settings that came after checkpoints were published: at their defaults they are in no key, so that keys stay.
    added: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Return the loss of one step, including the rejector's loss; leave the network's modes as they were."""

    @abstractmethod
    def gradients_per_image(self) -> int:
        """Return how many gradient evaluations one training image costs, including the weight update.

        Where passes without gradients are many, as in CCAT's attack, each counts as half of one.
        """


@dataclass(frozen=True)
class DataInfo:
    """What networks and augmentation must know about a data set."""

    classes: int
    shape: tuple[int, int, int]  # (C, H, W)
    mean: tuple[float, ...]  # per channel, for the normalisation inside the network
    std: tuple[float, ...]
    train_size: int = 0
    calibration_size: int = 0
    test_size: int = 0
    pad: int = 0  # training images are shifted by up to this many pixels, filled with zeros
    flip: bool = False  # training images are mirrored half of the time


class DataSource(ABC):
    """A data set; a frozen dataclass."""

    revision: ClassVar[int] = 1  # raise it if the inputs change
    info: DataInfo
    uses_networks_of: str | None = None  # if it has no training images: the data set whose checkpoints are used
    about: ClassVar[str] = ""  # one line

    @abstractmethod
    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Read one split from the first of `roots` that has it; if it is missing, the error says how to get it."""

    def load_first(self, split: Split, roots: tuple[Path, ...], count: int) -> Batch:
        """Read the first inputs of a split. Override it where reading all of them takes long."""
        return self.load(split, roots).at(slice(count))

    @classmethod
    def has_load_first(cls) -> bool:
        """Tell whether the first inputs can be read without the others."""
        return cls.load_first is not DataSource.load_first

    @property
    def splits(self) -> frozenset[Split]:
        """The splits that there are; only `test` must be."""
        return frozenset({"train", "calibration", "test"})

    @property
    def is_held_out(self) -> bool:
        """Whether the calibration inputs are taken from training inputs, which a network from elsewhere has seen."""
        return False

    def splits_for(self, *, is_given: bool) -> frozenset[Split]:
        """Return the splits to measure on: a network that was trained elsewhere gets no inputs that it has seen."""
        return self.splits - {"calibration"} if is_given and self.is_held_out else self.splits

    def content(self) -> str:
        """Return a hash of the inputs if they are a user's own: keys hold it. Empty if the name says which they are."""
        return ""


class NetworkSource(ABC):
    """An architecture; a frozen dataclass."""

    revision: ClassVar[int] = 1  # raise it if the same weights give other outputs than before
    has_weights: ClassVar[bool] = False  # True: `build` gives a trained network, which is measured as it is
    about: ClassVar[str] = ""  # one line

    @abstractmethod
    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Build the network with the rejector's head, from PyTorch's current random state.

        A network may have `twin(dtype)`: it returns a module on the same weights that replaces the network in attacks
        on a GPU; its `refresh()` copies changed weights. It may also have `learn(images, twin)`: it answers a
        training batch through that twin, differentiable in the network's own weights. `Composed` has all three.
        """

    def content(self) -> str:
        """Return a hash of code and weights if they are a user's own: keys hold it. Empty if the name says it all."""
        return ""

    @property
    def architecture(self) -> str:
        """The network's name in rows if it `has_weights`; the name of other networks is that in their table."""
        return ""


# A table's value is a class, or an alias: the text of another entry, "rr(form=difference)" or "confidence@ccat".
RejectorTable = Mapping[str, type[Rejector] | str]
AttackTable = Mapping[str, type[Attack] | str]
FrameworkTable = Mapping[str, type[Framework] | str]
DataTable = Mapping[str, type[DataSource] | str]
NetworkTable = Mapping[str, type[NetworkSource] | str]
