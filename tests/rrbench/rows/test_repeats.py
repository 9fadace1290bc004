"""Rows repeat one another only if they differ in nothing but the seed, and so in the training."""

import dataclasses
import json
import types
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import rrbench
from rrbench.files.fingerprints import of_network, of_object
from rrbench.protocols import Outputs, Rejector
from rrbench.report.standings import find_standings
from rrbench.report.summary import details
from rrbench.rows.repeats import gather, gather_all, row_marks
from rrbench.rows.row import ResultRow
from rrbench.rows.tables import pivot_table
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("own_folder")

NOW = {"attack": 1, "dataset": 1, "engine": 2, "network": 1, "rejector": 1}
SETTINGS = {"attack": {"steps": 10}, "rejector": {"tau": 1.0}, "framework": {}, "recipe": {"epochs": 15}}


def row(seed: int = 0, **changes: Any) -> ResultRow:
    names = ("digits", "small-cnn", "pgd-at", "pgd-at", "confidence", "pgd10", "linf", "3/20", seed, "quick", 360)
    known = ResultRow(
        *names,
        deploy_robust=90.0 + seed,
        deploy_n=300,
        acc_tpr95=80.0 + seed,
        precision="fp32",
        checkpoint_sha256=f"{seed}" * 64,
        data_sha256="d" * 64,
        settings=json.dumps(SETTINGS),
        revisions=json.dumps(NOW),
    )
    return dataclasses.replace(known, **changes)


def test_seeds_of_one_training_recipe_are_taken_together() -> None:
    rows = [row(0), row(1), row(2)]
    assert gather(rows) == [tuple(rows)]
    assert set(row_marks(rows).values()) == {""}
    (standing,) = find_standings(rows)
    assert " Mean of 3 seeds, from 90.0 to 92.0." in details(standing)


DIFFERENT = {
    "another network of the same seed": {"checkpoint_sha256": "e" * 64},
    "an edited rejector": {"revisions": json.dumps(NOW | {"rejector": "0123456789abcdef.1"})},
    "another engine": {"revisions": json.dumps(NOW | {"engine": 1})},
    "another attack": {"revisions": json.dumps(NOW | {"attack": 2})},
    "another network's code": {"revisions": json.dumps(NOW | {"network": 2})},
    "another package": {"revisions": json.dumps(NOW | {"packages": {"foolbox": "1"}})},
    "another setting of the rejector": {"settings": json.dumps(SETTINGS | {"rejector": {"tau": 2.0}})},
    "another recipe": {"settings": json.dumps(SETTINGS | {"recipe": {"epochs": 3}})},
    "another setting of the attack": {"settings": json.dumps(SETTINGS | {"attack": {"steps": 11}})},
    "other data": {"data_sha256": "f" * 64},
    "another precision": {"precision": "bf16", "checkpoint_sha256": "e" * 64},
}


@pytest.mark.parametrize("changes", DIFFERENT.values(), ids=DIFFERENT)
def test_what_shares_its_names_alone_is_never_averaged(changes: dict[str, Any]) -> None:
    rows = [row(), row(**changes, deploy_robust=50.0)]
    assert gather(rows) == [(rows[0],), (rows[1],)]
    for standing in find_standings(rows):
        assert len(standing.strongest.rows) == 1
        assert "Mean of" not in details(standing)
    # Another seed does not hide it.
    later = [row(), row(1, **{name: value for name, value in changes.items() if name != "checkpoint_sha256"})]
    if any(name not in ("checkpoint_sha256", "precision") for name in changes):
        assert len(gather(later)) == 2


@pytest.mark.parametrize("changes", DIFFERENT.values(), ids=DIFFERENT)
def test_a_pivot_gives_each_a_line_of_its_own(changes: dict[str, Any]) -> None:
    shown = pivot_table([row(), row(**changes, acc_tpr95=12.0)], "attack", "acc_tpr95", "csv")
    header, *lines = shown.splitlines()
    assert len(lines) == 2, shown
    assert sorted(line.rsplit(",", 1)[1] for line in lines) == ["12.00", "80.00"]
    assert header.split(",")[-2] in ("of", "precision", "rejector")


def test_a_pivot_sums_up_the_seeds_of_one_training_and_no_others() -> None:
    shown = pivot_table([row(0), row(1), row(1, checkpoint_sha256="e" * 64)], "attack", "acc_tpr95", "csv")
    assert "80.50" not in shown
    assert "80.50 \u00b1 0.71" in pivot_table([row(0), row(1)], "attack", "acc_tpr95", "csv")


def test_rows_on_other_inputs_of_the_same_name_and_number_are_marked_whatever_their_rejector() -> None:
    rows = [row(), row(rejector="energy", data_sha256="f" * 64)]
    assert list(row_marks(rows).values()) == ["data dddddddd", "data ffffffff"]
    assert "data dddddddd" in pivot_table(rows, "attack", "acc_tpr95", "csv")
    # A part of the inputs has another number of them, which every table shows; an older row has no hash.
    for other in ({"n": 100, "data_sha256": "f" * 64}, {"data_sha256": ""}):
        assert set(row_marks([row(), row(rejector="energy", **other)]).values()) == {""}


def test_the_clean_row_of_the_same_network_stands_beside_the_attack() -> None:
    rows = []
    for network, coverage in (("a", 95.0), ("b", 50.0)):
        mine: dict[str, Any] = {"checkpoint_sha256": network * 64}
        rows += [row(**mine), row(**mine, attack="clean", norm="", eps="", deploy_coverage=coverage)]
    coverages = [standing.clean.mean("deploy_coverage") for standing in find_standings(rows) if standing.clean]
    assert sorted(filter(None, coverages)) == [50.0, 95.0]
    assert {standing.trained_as for standing in find_standings(rows)} == {
        "pgd-at [checkpoint aaaaaaaa]",
        "pgd-at [checkpoint bbbbbbbb]",
    }


def test_two_rows_of_one_seed_and_network_count_once() -> None:
    rows = [row(device="here"), row(device="there")]
    assert gather(rows) == [(rows[0],)]
    assert gather_all(rows) == [(rows[0],), (rows[1],)]


# What `rrbench.evaluate` says of somebody's own models and functions.

IMAGES, LABELS = torch.rand(24, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


def model(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def measured(network: nn.Module, rejector: Any, seed: int = 0) -> pd.DataFrame:
    return rrbench.evaluate(network, rejector, "pgd1", (IMAGES, LABELS), budget="linf:1/50", seed=seed)


def rows_of(*frames: pd.DataFrame) -> list[ResultRow]:
    whole = pd.concat(frames).astype(object)
    records: list[dict[Any, Any]] = whole.where(whole.notna(), None).to_dict("records")
    return [ResultRow(**{str(name): value for name, value in record.items()}) for record in records]


def test_two_models_given_to_evaluate_are_not_two_seeds() -> None:
    rows = rows_of(measured(model(0), "confidence"), measured(model(1), "confidence", seed=1))
    assert rows[0].checkpoint_sha256 != rows[1].checkpoint_sha256
    assert len(gather(rows)) == 2
    same = rows_of(measured(model(0), "confidence"), measured(model(0), "confidence", seed=1))
    assert len(gather(same)) == 1


def test_two_lambdas_given_to_evaluate_are_not_two_seeds() -> None:
    first: Callable[[Outputs], Tensor] = lambda outputs: outputs.logits.softmax(1).amax(1)  # noqa: E731
    second: Callable[[Outputs], Tensor] = lambda outputs: outputs.logits.amax(1)  # noqa: E731
    rows = rows_of(measured(model(0), first), measured(model(0), second, seed=1))
    assert rows[0].rejector == rows[1].rejector == "<lambda>"
    assert len(gather(rows)) == 2
    assert len(gather(rows_of(measured(model(0), first), measured(model(0), first, seed=1)))) == 1


@dataclasses.dataclass
class Scaled(Rejector):
    """A rejector of somebody's own."""

    scale: float = 1.0

    def certainty(self, outputs: Outputs) -> Tensor:
        return self.scale * outputs.logits.amax(1)


def test_the_hash_of_an_object_follows_its_code_its_settings_and_what_it_closes_over() -> None:
    def scaled_by(factor: float) -> Callable[[Outputs], Tensor]:
        return lambda outputs: factor * outputs.logits.amax(1)

    assert of_object(scaled_by(2.0)) == of_object(scaled_by(2.0)) != of_object(scaled_by(3.0))
    assert of_object(Scaled()) == of_object(Scaled()) != of_object(Scaled(2.0))
    assert of_object(Scaled()) != of_object(Confidence())
    before = of_object(Scaled())
    with pytest.MonkeyPatch.context() as context:
        context.setattr(Scaled, "certainty", lambda self, outputs: outputs.logits.amin(1))
        assert of_object(Scaled()) != before
    fitted = Scaled()
    fitted.fitted = {"mean": torch.ones(3)}
    assert of_object(fitted) != before
    loop: list[Any] = []
    loop.append(loop)
    assert of_object(loop) == of_object(loop)


def test_the_hash_of_a_network_follows_its_weights_buffers_and_structure() -> None:
    assert of_network(model(0)) == of_network(model(0)) != of_network(model(1))
    one, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    assert of_network(one) == of_network(other)
    other.get_buffer("running_mean").add_(1)
    assert of_network(one) != of_network(other)
    assert of_network(nn.Sequential(nn.ReLU())) != of_network(nn.Sequential(nn.Tanh()))


class Turned(nn.Linear):
    """Has a number that is no tensor."""

    def __init__(self, sign: float) -> None:
        super().__init__(2, 2)
        self.sign = sign

    def forward(self, images: Tensor) -> Tensor:
        return self.sign * super().forward(images)


def test_the_hash_of_a_network_follows_its_plain_attributes() -> None:
    one, same, other = Turned(1.0), Turned(1.0), Turned(-1.0)
    for network in (same, other):
        network.load_state_dict(one.state_dict())
    assert of_network(one) == of_network(same) != of_network(other)


def made(source: str, **known: Any) -> Any:
    space = {"torch": torch, "__name__": "mine", **known}
    exec(source, space)
    return space["made"]


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("made = lambda o: (lambda: SCALE)() * o.logits.amax(1)", {}),
        ("class made:\n    @staticmethod\n    def score(o): return SCALE * o", {}),
        ("class made:\n    @property\n    def score(self): return SCALE", {}),
        ("made = lambda o: mine.SCALE * o.logits.amax(1)", {"mine": types.ModuleType("mine")}),
    ],
    ids=["inner function", "static method", "property", "module"],
)
def test_the_hash_of_code_follows_what_it_reaches(source: str, known: dict[str, Any]) -> None:
    hashes = []
    for scale in (1.0, 1.0, -1.0):
        for module in known.values():
            module.SCALE = scale
        hashes.append(of_object(made(source, SCALE=scale, **known)))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_row_of_evaluate_names_no_place_in_memory() -> None:
    (row_,) = rows_of(measured(model(0), lambda outputs: outputs.logits.amax(1)))
    assert "0x" not in row_.settings
    revisions = json.loads(row_.revisions)
    assert revisions.keys() == {"attack", "dataset", "deployment", "engine", "network", "rejector"}
    assert revisions["network"] == row_.checkpoint_sha256[:16]
