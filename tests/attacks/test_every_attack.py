"""The contract of an attack, for every attack of rrbench and of the outside package that the tests install."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from rrbench.names import settings_of
from rrbench.plugins.registry import is_ours, table
from rrbench.protocols import Attack, Ensemble, MovedElsewhere
from rrbench.testing import Check, attack_checks
from tested_plugins import TESTED

pytestmark = pytest.mark.usefixtures("one_thread")

# What takes images of others has nothing to answer alone: test_worst_case.py, tests/rrbench/measuring/test_transfer.py.
ATTACKS: dict[str, type[Attack]] = {
    name: cast(type[Attack], table("attack").classes[name])
    for name in TESTED["attack"]
    if not issubclass(table("attack").classes[name], Ensemble | MovedElsewhere)
}

# Settings that make an attack small, wherever it has them; a few attacks need a value of their own.
SMALL = {"steps": 2, "restarts": 2, "searches": 2, "queries": 10, "eta": (0.1, 1.0)}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "foolbox": [{"name": "LinfPGD(steps:2)"}, {"name": "L2PGD(steps:2)"}],
    "cw-l2": [{"goal": "normal"}, {"goal": "adaptive"}],
    "cw-linf": [{"goal": "normal"}, {"goal": "adaptive"}],
}


def attacks() -> Iterator[tuple[str, Attack]]:
    for name, kind in ATTACKS.items():
        setting, values = kind.expand_over or ("", ())
        small = {key: value for key, value in SMALL.items() if key in settings_of(kind)}
        for settings in EXAMPLES.get(name) or [{setting: value} for value in values] or [{}]:
            yield "-".join([name, *map(str, settings.values())]), kind(**small | settings)


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, id=f"{label}: {check}") for label, attack in attacks() for check in attack_checks(attack)],
)
def test_it_keeps_the_contract(check: Check) -> None:
    check()


@pytest.mark.parametrize("attack", [pytest.param(attack, id=label) for label, attack in attacks()])
def test_an_adaptive_attack_shows_the_boldest_image_it_saw(attack: Attack) -> None:
    from rrbench.testing.attacks import AttackCase

    if attack.is_adaptive and "refused" not in attack.maximises:  # where the goal is a right answer, none is bold
        assert AttackCase(attack, "linf" if "linf" in attack.norms else "l2").usual[0].boldest is not None


@pytest.mark.parametrize("name", [name for name in ATTACKS if is_ours("attack", name)])
def test_ours_say_what_they_do_and_what_they_cost(name: str) -> None:
    kind = ATTACKS[name]
    assert "gradients" in kind.cost or "steps" in kind.cost
    assert kind.paper or name in ("clean", "over-reject")  # these two are nobody's idea in particular
    assert kind.__hash__ is not None  # frozen


def test_the_installed_plugin_is_among_them() -> None:
    assert {"clean", "pgd", "adaptive", "outside-corner"} <= set(ATTACKS)
