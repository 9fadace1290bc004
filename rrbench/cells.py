"""What a plan is made of: a cell to measure, the training behind it, and the keys by which work is shared."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from typing import cast

from rrbench.config import MetricSettings, Recipe
from rrbench.names import Choice, parse_budget, radius_text, show
from rrbench.protocols import Attack, Budget, Norm, Rejector
from rrbench.registry import build, code, is_ours


@dataclass(frozen=True)
class Training:
    """All that decides a checkpoint's weights."""

    dataset: Choice
    network: Choice
    framework: Choice
    rejector: Choice = field(compare=False)  # any rejector with this training key: it builds the head and the loss
    training_key: str
    recipe: Recipe
    chooser: Choice  # the attack of `recipe.choose_by`
    budget: Budget  # of that attack
    seed: int

    @property
    def trained_as(self) -> str:
        """The checkpoint's name in rows: `pgd-at`, `pgd-at+rr`."""
        is_implied = self.training_key in ("", self.framework.name)
        return str(self.framework) if is_implied else f"{self.framework}+{self.training_key}"

    @property
    def key(self) -> str:
        """The hash of everything that made the weights."""
        return digest(
            dataset=identity(self.dataset),
            network=identity(self.network),
            framework=identity(self.framework),
            training_key=self.training_key,
            recipe=asdict(self.recipe),
            seed=self.seed,
            chooser=identity(self.chooser),
            budget=show_budget(self.budget),
            **self._outside_code(),
        )

    def _outside_code(self) -> dict[str, object]:
        """Hash outsiders' code alone: ours has a version, and a comment must not cost the shipped checkpoints."""
        plugins = [("framework", self.framework), ("network", self.network)]
        plugins += [("rejector", self.rejector)] if self.training_key else []
        outside = [code(kind, choice.name) for kind, choice in plugins if not is_ours(kind, choice.name)]
        return {"code": outside} if outside else {}


@dataclass(frozen=True)
class Cell:
    """One thing to measure."""

    dataset: Choice
    training: Training
    rejector: Choice
    attack: Choice
    budget: Budget | None  # None: the attack has no budget at all
    seed: int
    limit: int | None
    preset: str
    metrics: MetricSettings
    is_adaptive: bool
    members: tuple[Choice, ...] = ()  # of an ensemble: the attacks it is the worst of

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

    def describe(self) -> dict[str, object]:
        """Return all that is needed to measure the cell again, as plain values."""
        return {
            "dataset": identity(self.dataset),
            "trained_on": identity(self.training.dataset),
            "network": identity(self.training.network),
            "framework": identity(self.training.framework),
            "rejector": identity(self.rejector),
            "attack": identity(self.attack),
            "budget": show_budget(self.budget),
            "limit": self.limit,
            "members": [identity(member) for member in self.members],
            **asdict(self.metrics),
        }

    def attack_key(self, checkpoint: str, precision: str) -> str:
        """Hash everything that decides the moved images; equal keys share one run of the attack."""
        return digest(
            checkpoint=checkpoint,
            dataset=identity(self.dataset),
            limit=self.limit,
            attack=identity(self.attack),
            budget=show_budget(self.budget),
            seed=self.seed,
            precision=precision,
            rejector=identity(self.rejector) if self.is_adaptive else None,
            members=[identity(member) for member in self.members],
            code=[code("attack", choice.name) for choice in (self.attack, *self.members)]
            + ([code("rejector", self.rejector.name)] if self.is_adaptive else []),
        )

    def member(self, attack: Choice) -> "Cell":
        """Return the cell of one attack of an ensemble."""
        return replace(self, attack=attack, members=(), is_adaptive=build(Attack, attack).is_adaptive)

    def victim_key(self, checkpoint: str) -> str:
        """Hash everything that decides the fitted, calibrated rejector."""
        return digest(
            checkpoint=checkpoint,
            dataset=identity(self.dataset),
            rejector=identity(self.rejector),
            is_attacked=self.is_adaptive,
            code=code("rejector", self.rejector.name),
        )

    def key(self, checkpoint: str, precision: str) -> str:
        """Hash everything that decides the row."""
        return digest(
            attack=self.attack_key(checkpoint, precision),
            rejector=identity(self.rejector),
            metrics=asdict(self.metrics),
            preset=self.preset,
            code=code("rejector", self.rejector.name),
        )


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


def identity(choice: Choice) -> list[object]:
    """Return a choice as plain values, for hashing and for the row's settings."""
    return [choice.name, {key: plain(value) for key, value in choice.settings}]


def plain(value: object) -> object:
    """Return a setting's value as JSON can hold it."""
    if isinstance(value, Fraction):
        return str(value)
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def training_key(rejector: Rejector, name: str) -> str:
    """Name what a rejector, `name` in its table, does to the weights; equal keys share one checkpoint.

    Empty: nothing. Else its name and every setting that is not the class's default, but those of `after_training`.
    """
    if not rejector.has_training():
        return ""
    after = _after_training(type(rejector))
    differ = [
        f"{item.name}={show(value)}"
        for item in sorted(fields(rejector), key=lambda item: item.name)
        if item.init and item.name not in after and (value := getattr(rejector, item.name)) != item.default
    ]
    name = rejector.trains_as or name
    return f"{name}({','.join(differ)})" if differ else name


def _after_training(plugin: type[Rejector]) -> frozenset[str]:
    """Return the settings that do not matter; who overrides a training must say anew which these are."""
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
