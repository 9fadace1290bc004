"""Mistakes that the class alone shows: refused when its table is loaded; the error names the class and the remedy."""

from dataclasses import dataclass
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from rrbench.datasets.cifar10_c import Cifar10C
from rrbench.errors import UseError
from rrbench.frameworks.pgd_at import PgdAt
from rrbench.plugins.contract import check_class, check_inherited
from rrbench.plugins.registry import find, table
from rrbench.protocols import Attack, Outputs, Rejector
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.coupled import Coupled
from rrbench_baselines.rr import RR
from wrong_rejectors import Sure


@dataclass
class WithKey(Sure):
    def training_key(self) -> str:
        return "mine"


@dataclass
class WithFit(Sure):
    needs = frozenset({"features", "fit"})


@dataclass
class WithText(Sure):
    needs = "features"  # type: ignore[assignment]


@dataclass
class WithUnknown(Sure):
    after_training = frozenset({"temperature"})


@dataclass
class WithLabels(Sure):
    def oracle_certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        return outputs.logits.gather(1, labels[:, None]).squeeze(1)


class Undecorated(Sure):
    tau: float = 1.0


@dataclass
class WithTypedFact(Sure):
    is_probability: bool = True


@dataclass(frozen=True)
class TypedAdaptive(Pgd):
    is_adaptive: bool = True


@dataclass(frozen=True)
class OneNorm(Pgd):
    norms = "linf"  # type: ignore[assignment]


@dataclass(frozen=True)
class OtherNorm(Pgd):
    norms = frozenset({"l1"})


@dataclass(frozen=True)
class AddedText(PgdAt):
    added = "steps"  # type: ignore[assignment]


@dataclass(frozen=True)
class AddedUnknown(PgdAt):
    added = frozenset({"steps", "stride"})


@dataclass(frozen=True)
class AddedToPgd(Pgd):
    added = frozenset({"until", "steps"})  # steps have no default


class OldWord(Coupled):
    trains_as = "rr"


class OldWordOfData(Cifar10C):
    trains_as = "cifar10"


@pytest.mark.parametrize(
    ("plugin", "line"),
    [
        (OldWord, "OldWord.trains_as has another name now: write inherits_training_of instead"),
        (OldWordOfData, "OldWordOfData.trains_as has another name now: write uses_networks_of instead"),
        (
            WithKey,
            "WithKey writes training_key, which rrbench makes itself now: delete it, and name in after_training "
            "the settings that change neither the head nor the loss",
        ),
        (WithFit, "WithFit.needs holds 'fit': delete it, only 'features' is declared; methods say the rest"),
        (WithText, "WithText.needs must be a set of names: write needs = frozenset({...})"),
        (WithUnknown, "WithUnknown.after_training holds 'temperature', which is none of its settings"),
        (
            WithLabels,
            "WithLabels.oracle_certainty is given the labels: write is_oracle = True, or certainty instead",
        ),
        (Undecorated, "Undecorated has settings (tau) and is no dataclass: write @dataclass above"),
        (
            WithTypedFact,
            "WithTypedFact.is_probability has a type, which makes it a setting: write is_probability = ... without one",
        ),
        (
            TypedAdaptive,
            "TypedAdaptive.is_adaptive has a type, which makes it a setting: write is_adaptive = ... without one",
        ),
        (AddedText, "AddedText.added must be a set of names: write added = frozenset({...})"),
        (AddedUnknown, "AddedUnknown.added holds 'stride', which is none of its settings with a default"),
        (AddedToPgd, "AddedToPgd.added holds 'steps', which is none of its settings with a default"),
        (OneNorm, "OneNorm.norms must be of linf and l2: write norms = frozenset({'linf'})"),
        (OtherNorm, "OtherNorm.norms must be of linf and l2: write norms = frozenset({'linf'})"),
    ],
)
def test_a_class_that_would_be_misunderstood_is_refused(plugin: type, line: str) -> None:
    with pytest.raises(TypeError) as refused:
        check_class(plugin)
    assert str(refused.value) == line


def test_the_right_ones_pass() -> None:
    for kind in ("rejector", "attack", "framework", "dataset", "network"):
        for plugin in table(kind).classes.values():
            check_class(plugin)


@dataclass
class Half(RR):
    """Says that it trains as rr, and has a loss of its own."""

    inherits_training_of = "rr"

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return classifier_loss


def test_who_trains_as_another_must_have_its_methods() -> None:
    check_inherited({"rr": RR, "coupled": Coupled}, "coupled")
    for classes in ({"rr": RR, "half": Half}, {"half": Half}):
        with pytest.raises(
            TypeError, match=r"^Half trains as 'rr' but not by its methods: delete inherits_training_of$"
        ):
            check_inherited(classes, "half")


@pytest.mark.parametrize(
    ("classes", "line"),
    [
        ({"old": WithKey}, "plugin 'theirs' is disabled: theirs:REJECTORS: TypeError: WithKey writes training_key"),
        ({"rr": RR, "half": Half}, "plugin 'theirs' goes without 'half': Half trains as 'rr' but not by its methods"),
    ],
)
def test_the_table_is_loaded_without_it_and_says_so(
    classes: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SimpleNamespace(dist=SimpleNamespace(name="theirs"), value="theirs:REJECTORS", load=lambda: classes)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry])
    table.cache_clear()
    try:
        with pytest.warns(UserWarning, match="^plugin 'theirs'") as caught:
            table("rejector")
        (message,) = (str(warning.message) for warning in caught)
        assert message.startswith(line)
        with pytest.raises(UseError, match="unknown rejector"):
            find("rejector", "old" if "old" in classes else "half")
    finally:
        table.cache_clear()


def test_a_fact_is_a_property_that_a_class_may_overwrite() -> None:
    class Plain(Sure):
        is_probability = True

    assert isinstance(vars(Rejector)["is_probability"], property)
    assert all(isinstance(vars(Attack)[fact], property) for fact in ("is_adaptive", "norms"))
    assert Plain().is_probability
    assert not Sure().is_probability
