import dataclasses
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rrbench.cli import app
from rrbench.errors import UseError
from rrbench.names import settings_of, show
from rrbench.plugins.catalogue import BY_SETTINGS, Card, cards
from rrbench.plugins.registry import table
from tested_plugins import OWNERS, TESTED

KINDS = ["rejector", "attack", "framework", "dataset", "network"]
UNREADABLE = "its table is not a plain dict that can be read"
Plugin = Callable[[str, str], list[Card]]


def by_name(kind: str) -> dict[str, Card]:
    return {card.name: card for card in cards(kind)}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plugin:
    """Install a package of one file and return its cards; it must not be imported for that."""

    def read(name: str, source: str) -> list[Card]:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        entry = SimpleNamespace(
            module=name, attr="REJECTORS", value=f"{name}:REJECTORS", dist=SimpleNamespace(name="theirs")
        )
        monkeypatch.setattr(metadata, "entry_points", lambda group: [entry])
        found = cards("rejector")
        assert name not in sys.modules
        return found

    return read


@pytest.mark.parametrize("kind", KINDS)
def test_the_cards_say_what_the_imported_classes_say(kind: str) -> None:
    known, found = table(kind), {card.name: card for card in cards(kind) if card.package in OWNERS}
    assert set(found) - {"outside_rrbench.broken:REJECTORS"} == set(TESTED[kind])
    for name, plugin in known.classes.items():
        if name not in found:
            continue
        expected = {
            key: "" if default is dataclasses.MISSING else show(default)
            for key, (_, default) in settings_of(plugin).items()
        }
        assert found[name].settings == expected, name
        assert list(found[name].settings) == list(expected), name
        for line in {"paper", "scores", "maximises", "minimises", "about", "cost"} - expected.keys():
            assert found[name].attributes.get(line, "") == getattr(plugin, line, ""), (name, line)
    assert {name: card.stands_for for name, card in found.items() if card.stands_for} == {
        name: target for name, target in known.aliases.items() if name in found
    }


def test_cards_tell_settings_from_class_variables() -> None:
    rr, adaptive, corrupted = by_name("rejector")["rr"], by_name("attack")["adaptive"], by_name("dataset")["cifar10-c"]
    assert rr.settings["form"] == "product"
    assert rr.settings["stop_gradient"] == "true"
    assert rr.attributes["needs"] == ""
    assert {"build_head", "training_loss"} <= rr.methods
    assert "fit" not in rr.methods
    assert {"build_head", "training_loss"} <= by_name("rejector")["coupled"].methods, "inherited"
    assert by_name("rejector")["snet"].attributes["frameworks"] == "pgd-at, standard"
    assert list(adaptive.settings)[:2] == ["objective", "eta"]
    assert adaptive.settings["objective"] == ""
    assert adaptive.settings["eta"] == "0.1:1"
    assert corrupted.settings == {"corruption": "", "severity": "none"}
    assert corrupted.attributes["uses_networks_of"] == "cifar10"
    assert by_name("framework")["pgd-at"].settings["eps"] == "8/255"


def test_a_fact_is_read_from_a_variable_or_from_a_plain_property() -> None:
    attacks = by_name("attack")
    assert attacks["pgd"].attributes["is_adaptive"] == "false"
    assert attacks["adaptive"].attributes["is_adaptive"] == "true"
    assert attacks["cw-l2"].attributes["is_adaptive"] == "goal=adaptive"
    assert attacks["pgd"].attributes["norms"] == "linf, l2"
    assert attacks["cw-l2"].attributes["norms"] == "l2"
    assert attacks["foolbox"].attributes["norms"] == BY_SETTINGS
    assert by_name("rejector")["coupled"].attributes["is_probability"] == "false"
    assert by_name("rejector")["rr"].attributes["is_probability"] == BY_SETTINGS


def test_each_card_names_its_package_and_a_broken_table_is_a_card_of_its_own() -> None:
    found = by_name("rejector")
    assert found["rr"].package == "rrbench"
    assert found["outside-gap"].package == "outside-rrbench"
    assert found["outside_rrbench.broken:REJECTORS"] == Card(
        "outside_rrbench.broken:REJECTORS", "outside-rrbench", {"about": UNREADABLE}
    )


def test_a_plugin_may_take_its_base_class_from_the_public_package(plugin: Plugin) -> None:
    found = plugin(
        "public_words",
        "from dataclasses import dataclass\n"
        "from rrbench import Rejector\n"
        "@dataclass\nclass Mine(Rejector):\n"
        "    scores = 'mine'\n    tau: float = 2.0\n"
        "REJECTORS = {'mine': Mine}\n",
    )
    (card,) = found
    assert (card.name, card.package, card.settings) == ("mine", "theirs", {"tau": "2"})
    assert card.attributes["scores"] == "mine"
    assert card.attributes["is_oracle"] == "false"


def test_a_subclass_of_another_plugin_inherits_its_settings_in_place(plugin: Plugin) -> None:
    (card,) = plugin(
        "inheriting",
        "from dataclasses import dataclass\n"
        "from rrbench_baselines.rr import RR\n"
        "@dataclass(frozen=True)\nclass Mine(RR):\n    tau: float = 3\n    mine: int = 1_000\n"
        "REJECTORS = {'mine': Mine, }\n",
    )
    assert list(card.settings.items()) == [
        ("score", "rcon"),
        ("tau", "3"),
        ("weight", "1"),
        ("form", "product"),
        ("stop_gradient", "true"),
        ("mine", "1000"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "REJECTORS = dict(mine=1)\n",
        "REJECTORS = {'mine': make()}\n",
        "REJECTORS = {name: 1}\n",
        "REJECTORS = {**others}\n",
        "REJECTORS = {'mine': Nowhere}\n",
        "OTHER = {}\n",
        "this is no Python\n",
        "from nowhere_at_all import Mine\nREJECTORS = {'mine': Mine}\n",
    ],
)
def test_a_table_that_is_not_plain_is_one_card_that_says_so(plugin: Plugin, source: str) -> None:
    name = f"not_plain_{abs(hash(source))}"
    assert plugin(name, source) == [Card(f"{name}:REJECTORS", "theirs", {"about": UNREADABLE})]


def listed(what: str) -> str:
    result = CliRunner().invoke(app, ["list", what])
    assert result.exit_code == 0, result.exception
    return result.output


def test_the_list_shows_settings_what_is_scored_and_where_it_is_from() -> None:
    shown = listed("rejectors")
    assert "lid(k=600, references=10000)\n    minus the local intrinsic dimension" in shown
    assert "\n    needs: features; brings: fit; paper: Ma et al. 2018, arXiv 1801.02613\n" in shown
    assert "r-con-sub\n    the same as rr(form=difference)\n" in shown
    assert "outside-gap(scale=1)\n    gap between the two largest logits\n    from: outside-rrbench\n" in shown
    assert "pgd(steps, restarts=1, step=none, keep=last, select=ce, until=end)\n" in listed("attacks")
    assert "quick\n    for small machines" in listed("presets")


def test_an_unknown_list_names_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["list", "things"])
    assert isinstance(result.exception, UseError)
    assert "cannot list 'things'; one of rejectors, attacks" in str(result.exception)
