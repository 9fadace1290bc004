"""Cells to measure, the trainings behind them, and the keys that tell which work is shared."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any, cast

from rrbench.files.headers import TRAINING
from rrbench.names import Choice, parse_budget, radius_text, show
from rrbench.planning.sample import Sample
from rrbench.plugins.config import MetricSettings, Recipe
from rrbench.plugins.registry import build, revision, revision_of
from rrbench.plugins.revisions import revisions_beside_plugins
from rrbench.protocols import NO_BUDGET, Attack, Budget, NetworkSource, Norm, Rejector


@dataclass(frozen=True)
class Training:
    """Everything that decides the weights of a checkpoint."""

    dataset: Choice
    network: Choice
    framework: Choice
    rejector: Choice = field(compare=False)  # builds the head and the loss; any rejector with this training key does
    training_key: str
    recipe: Recipe
    chooser: Choice  # the attack of `recipe.choose_by`
    budget: Budget  # of the chooser
    seed: int

    @property
    def trained_as(self) -> str:
        """The checkpoint's name in rows: `pgd-at`, `pgd-at+rr`."""
        return called(str(self.framework), self.framework.name, self.training_key)

    @property
    def key(self) -> str:
        """The hash of everything that made the weights."""
        return digest(
            dataset=identity(self.dataset),
            network=identity(self.network),
            framework=identity(self.framework),
            training_key=self.training_key,
            recipe=self.recipe.facts(),
            seed=self.seed,
            chooser=identity(self.chooser),
            budget=show_budget(self.budget),
            **self._revised(),
        )

    @property
    def architecture(self) -> str:
        """The network's name in rows."""
        return str(self.network)

    def is_current(self, key: str, header: Mapping[str, Any]) -> bool:
        """Tell whether a checkpoint with this key and header is of the revisions that are installed here.

        A later revision of a plugin trains another network. If all are 1, every checkpoint counts as current.
        """
        revised = self._revised()
        if not revised or key == self.key:
            return True
        return header.keys() >= set(TRAINING) and key == header_key(header, revised)

    def _revised(self) -> dict[str, object]:
        """Return the revisions behind the weights, without those that are 1: shipped checkpoints must keep their keys.

        The attack engine has no revision here: if its change changes a framework, the framework raises its own.
        """
        plugins = {"dataset": self.dataset, "network": self.network, "framework": self.framework}
        found = {kind: revision_of(kind, choice) for kind, choice in plugins.items()}
        if self.training_key:  # of the rejector that names the training: equal trainings must have equal keys
            named = build(Rejector, self.rejector).inherits_training_of
            found["rejector"] = revision("rejector", named) if named else revision_of("rejector", self.rejector)
        found["chooser"] = revision("attack", self.chooser.name)
        later = {kind: number for kind, number in found.items() if number != 1}
        return {"revisions": later} if later else {}


def called(framework: str, name: str, training_key: str) -> str:
    """Call a checkpoint by its framework, as typed and by its name alone, and by what a rejector did to its weights."""
    return framework if training_key in ("", name) else f"{framework}+{training_key}"


@dataclass(frozen=True)
class Given(Training):
    """A network that brings its weights: nothing is trained, and what says how a network is trained is not used."""

    name: str = ""  # in rows

    @classmethod
    def of(cls, dataset: Choice, network: Choice, recipe: Recipe) -> "Given":
        """Return a given network that is measured on a data set, for any seed."""
        nothing = Choice("")
        name = str(dict(network.settings).get("name") or network)
        return cls(dataset, network, nothing, nothing, "", recipe, nothing, NO_BUDGET, 0, name)

    @property
    def trained_as(self) -> str:
        """The name that the user gave the network."""
        return self.name

    @property
    def architecture(self) -> str:
        """The name of the network's class: several weights of one architecture are compared."""
        return build(NetworkSource, self.network).architecture

    @property
    def key(self) -> str:
        """The hash of the network's code and weights."""
        return build(NetworkSource, self.network).content()[:24]


@dataclass(frozen=True)
class Cell:
    """One thing to measure."""

    dataset: Choice
    training: Training
    rejector: Choice
    attack: Choice
    budget: Budget | None  # None: the attack has no budget at all
    seed: int
    sample: Sample
    preset: str
    metrics: MetricSettings
    is_adaptive: bool  # the stored attack depends on the rejector: the attack looks at it, or it asks the network again
    members: tuple[Choice, ...] = ()  # an ensemble's: the attacks it takes the worst of; a transfer's: its attack
    moved_on: Training | None = None  # of a transfer: the other network, on which the images are moved

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The trainings whose checkpoints this cell needs."""
        return (self.training,) if self.moved_on is None else (self.training, self.moved_on)

    @property
    def area(self) -> Budget:
        """Where the attack may move an image; one without any budget may not move it at all."""
        return self.budget or NO_BUDGET

    @property
    def label(self) -> str:
        """The cell in one short line."""
        return f"{self.training.trained_as} {self.rejector} {self.attack} {self.shown_budget}".rstrip()

    @property
    def shown_budget(self) -> str:
        """The budget as it is typed."""
        if self.budget is None or self.budget.radius is None:
            return show_budget(self.budget)
        return f"{self.budget.norm}:{radius_text(self.budget.radius)}"

    def revisions(self) -> dict[str, object]:
        """Return the revisions that decide the row: of plugins, the attack engine, packages that compute attacks."""
        plugins = {"attack": self.attack, "dataset": self.dataset, "network": self.training.network}
        plugins |= {"rejector": self.rejector}
        found: dict[str, object] = {kind: revision_of(kind, choice) for kind, choice in plugins.items()}
        made = 1 if isinstance(self.training, Given) else revision("framework", self.training.framework.name)
        if made != 1:  # a 1 is left out, as in the training's key
            found["framework"] = made
        return found | revisions_beside_plugins(
            is_moving=self.budget is not None,
            is_scaled=self.is_adaptive and not build(Rejector, self.rejector).is_probability,
            members=[revision_of("attack", member) for member in self.members],
            packages=dict.fromkeys(name for attack in (self.attack, *self.members) for name in _packages(attack)),
        )

    def describe(self, checkpoint: str, precision: str, moved_on: str = "") -> dict[str, Any]:
        """Return everything that decides the row, as plain values; the cell's keys are hashes of these values alone.

        `moved_on` is the checkpoint of a transfer's other network. Other cells leave it out, so their keys stay.
        """
        elsewhere = {} if self.moved_on is None else {"moved_on": moved_on}
        return {
            "checkpoint": checkpoint,
            "dataset": identity(self.dataset),
            "trained_on": identity(self.training.dataset),  # differs from `dataset` if that has no training images
            "network": identity(self.training.network),
            "framework": identity(self.training.framework),
            "rejector": identity(self.rejector),
            "attack": identity(self.attack),
            "members": [identity(member) for member in self.members],
            "is_adaptive": self.is_adaptive,
            "budget": show_budget(self.budget),
            "seed": self.seed,
            **self.sample.facts(),
            "precision": precision,
            "preset": self.preset,
            **asdict(self.metrics),
            "revisions": self.revisions(),
            **elsewhere,
        }

    def attack_key(self, checkpoint: str, precision: str) -> str:
        """Hash everything that decides the moved images; equal keys share one run of the attack."""
        return attack_key(self.describe(checkpoint, precision))

    def member(self, attack: Choice) -> "Cell":
        """Return the cell of an ensemble's attack, or the cell of a transfer's attack on the other network."""
        network, rejector = self.training, self.rejector
        if self.moved_on is not None:
            network, rejector = self.moved_on, self.moved_on.rejector
        return replace(
            self,
            training=network,
            rejector=rejector,
            attack=attack,
            members=(),
            moved_on=None,
            is_adaptive=depends(attack, rejector),
        )

    def victim_key(self, checkpoint: str) -> str:
        """Hash everything that decides the fitted, calibrated rejector."""
        return victim_key(self.describe(checkpoint, ""))

    def key(self, checkpoint: str, precision: str) -> str:
        """Hash everything that decides the row."""
        return cell_key(self.describe(checkpoint, precision))


@dataclass(frozen=True)
class Plan:
    """The cells in the order of work, and one line for each pair that was left out."""

    cells: tuple[Cell, ...]
    dropped: tuple[str, ...]

    def checkpoints(self) -> dict[Training, list[Cell]]:
        """Group the cells by checkpoint."""
        groups: dict[Training, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.training, []).append(cell)
        return groups

    def trainings(self) -> list[Training]:
        """Return every training that is needed: of measured networks, then of those that images are only moved on."""
        return list(dict.fromkeys([*self.checkpoints(), *all_trainings(self.cells)]))


def all_trainings(cells: Iterable[Cell]) -> Iterator[Training]:
    """Return the trainings that cells need; a training comes once for each cell that needs it."""
    return (training for cell in cells for training in cell.trainings)


def depends(attack: Choice, rejector: Choice) -> bool:
    """Tell whether the stored results of an attack depend on the rejector."""
    return build(Attack, attack).is_adaptive or build(Rejector, rejector).has_look()


def cell_key(cell: Mapping[str, Any]) -> str:
    """Return the key of a cell that `Cell.describe` describes."""
    return digest(**cell)


# The parts of a cell's description that decide the moved images.
_MOVING = ("checkpoint", "dataset", "attack", "members", "budget", "seed", "precision")


def attack_key(cell: Mapping[str, Any]) -> str:
    """Return the key of the attack of a cell that `Cell.describe` describes."""
    is_adaptive, revisions = cell["is_adaptive"], cell["revisions"]
    moving = (*_MOVING, "moved_on") if "moved_on" in cell else _MOVING  # only transfers have moved_on
    return digest(
        **{name: cell[name] for name in moving},
        **Sample.of_cell(cell).facts(),
        rejector=cell["rejector"] if is_adaptive else None,
        revisions={
            kind: found for kind, found in revisions.items() if is_adaptive or kind not in ("rejector", "deployment")
        },
    )


def data_key(cell: Mapping[str, Any]) -> str:
    """Return the key of the measured inputs of a cell that `Cell.describe` describes."""
    sample = Sample.of_cell(cell).facts()
    return digest(dataset=cell["dataset"], **sample, revision=cell["revisions"]["dataset"])


def victim_key(cell: Mapping[str, Any]) -> str:
    """Return the key of the fitted, calibrated rejector of a cell that `Cell.describe` describes."""
    return digest(
        **{name: cell[name] for name in ("checkpoint", "dataset", "rejector")},
        **Sample.of_cell(cell).facts(),
        is_attacked=cell["is_adaptive"],  # the word in the keys of stored fits: the fit has a scale of its certainty
        revisions={
            kind: found
            for kind, found in cell["revisions"].items()
            if kind in ("dataset", "network", "rejector", "calibration", "deployment")
        },
    )


def clean_key(cell: Mapping[str, Any]) -> str:
    """Return the key of the scores on clean inputs, for the rejector of a cell that `Cell.describe` describes."""
    kinds = ("dataset", "network", "rejector", "deployment")
    return digest(
        **{name: cell[name] for name in ("checkpoint", "dataset", "rejector")},
        **Sample.of_cell(cell).facts(),
        revisions={kind: cell["revisions"][kind] for kind in kinds},
    )


def header_key(facts: Mapping[str, Any], revised: Mapping[str, object] | None = None) -> str:
    """Return the key of the training that a checkpoint's header describes; `revised` has revisions that are not 1."""
    return digest(**{name: facts[name] for name in TRAINING}, **(revised or {}))


@cache
def _packages(attack: Choice) -> tuple[str, ...]:
    """Return the packages that compute an attack's answers."""
    return build(Attack, attack).packages


def identity(choice: Choice) -> list[object]:
    """Return a choice as plain values, for hashing and for the row's settings."""
    return [choice.name, {key: plain(value) for key, value in choice.settings}]


def plain(value: object) -> object:
    """Return a setting's value as JSON can hold it."""
    if isinstance(value, Fraction):
        return str(value)
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def training_key(rejector: Rejector, name: str) -> str:
    """Name what a rejector does to the weights; equal keys share one checkpoint. `name` is its name in the table.

    Empty if the rejector does nothing to the weights. Else its name with every setting that differs from the class's
    default, without the settings in `after_training`.
    """
    if not rejector.has_training():
        return ""
    after = _after_training(type(rejector))
    differ = [
        f"{item.name}={show(value)}"
        for item in sorted(fields(rejector), key=lambda item: item.name)
        if item.init and item.name not in after and (value := getattr(rejector, item.name)) != item.default
    ]
    name = rejector.inherits_training_of or name
    return f"{name}({','.join(differ)})" if differ else name


def _after_training(plugin: type[Rejector]) -> frozenset[str]:
    """Return the settings that do not change the training; a class that overrides the training must list them again."""
    for base in plugin.__mro__:
        if "after_training" in vars(base):
            return plugin.after_training
        if vars(base).keys() & {"build_head", "training_loss"}:
            break
    return frozenset()


def digest(**parts: object) -> str:
    """Hash named values."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def show_budget(budget: Budget | None) -> str:
    """Print a budget for keys and files, its radius in lowest terms."""
    if budget is None:
        return ""
    return budget.norm if budget.radius is None else f"{budget.norm}:{budget.radius}"


def read_budget(text: str) -> Budget | None:
    """Read `show_budget` back."""
    if ":" not in text:
        return Budget(cast(Norm, text), None) if text else None
    norm, radius = parse_budget(text)
    return Budget(cast(Norm, norm), radius)
