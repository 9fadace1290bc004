"""Plugins that write into lent tensors: their cell fails with the plugin's name, and no other row changes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rrbench
from made_up_plugins import Brighter, measured
from own_network import Featured, Linear, inputs
from rrbench import Outputs, UseError, api
from rrbench.compute.batching import in_batches
from rrbench.compute.draws import HashedDraws
from rrbench.datasets.digits import Digits
from rrbench.errors import CellError
from rrbench.measuring.evaluation import fresh_member, run_attack
from rrbench.measuring.materials import Materials
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.names import Choice
from rrbench.plugins.registry import table
from rrbench.protocols import NO_BUDGET, Batch, Budget, DataSource, Split, Victim
from rrbench.rows.row import ResultRow
from rrbench_baselines.kd import Kd
from wrong_attacks import Climbing, Meddling, Unteaching
from wrong_rejectors import (
    Centred,
    Deleting,
    Drifting,
    Keeping,
    Relabelling,
    RelabellingFit,
    Replacing,
    Scribbling,
)

pytestmark = pytest.mark.usefixtures("own_folder")

WRITES = "writes into the {} that it is given: work on a copy"
KEEPS = (
    "writes self.{}, so rows would depend on what was asked before: "
    "compute it in __post_init__, or in fit as self.fitted['{}']"
)
LOGITS = f"certainty of Scribbling {WRITES.format('logits')}"
WAYS = {
    "scribbling": LOGITS,
    "scribbling(how=data)": LOGITS,
    "scribbling(how=numpy)": LOGITS,
    "scribbling(how=climb)": LOGITS,
    "scribbling(how=climb data)": LOGITS,
    "scribbling(how=features)": f"certainty of Scribbling {WRITES.format('features')}",
    "relabelling": f"certainty of Relabelling {WRITES.format('labels')}",
    "relabellingfit": f"fit of RelabellingFit {WRITES.format('labels')}",
    "drifting": "certainty of Drifting changes self.fitted['mean']: only fit may write there",
    "keeping": f"certainty of Keeping {KEEPS.format('mean', 'mean')}",
    "replacing": f"certainty of Replacing {KEEPS.format('tau', 'tau')}",
    "deleting": f"certainty of Deleting {KEEPS.format('tau', 'tau')}",
}
MEDDLED = ("data", "in place", "buffers", "replaced", "hook", "forward", "module", "raising")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for plugin in (Scribbling, Relabelling, RelabellingFit, Drifting, Centred, Keeping, Replacing, Deleting):
        monkeypatch.setitem(table("rejector").classes, plugin.__name__.lower(), plugin)
    for attack in (Meddling, Climbing, Unteaching, Brighter):
        monkeypatch.setitem(table("attack").classes, attack.__name__.lower(), attack)


def run(out: Path, rejectors: str, attacks: str) -> list[ResultRow]:
    return api.execute(api.prepare(api.RunOptions(rejectors, attacks, out=out, device="cpu", limit=24)), ["a test"])


def numbers(rows: list[ResultRow]) -> dict[tuple[str, str], dict[str, object]]:
    return {(row.rejector, row.attack): measured(row) for row in rows if row.status == "ok"}


ATTACKS = "pgd2,adaptive(ce+rcon,steps=2,restarts=1)"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, object]]:
    """The rows of a run without a culprit."""
    rows = run(tmp_path_factory.mktemp("undisturbed"), "confidence,kd,t-con", ATTACKS)
    assert {row.status for row in rows} == {"ok"}
    return numbers(rows)


def test_a_rejector_that_writes_fails_by_name_and_changes_no_other_row(tmp_path: Path, undisturbed: Any) -> None:
    # The culprits come first: what they spoil would be found by those that follow.
    rows = run(tmp_path, ",".join([*WAYS, "confidence,kd,t-con"]), ATTACKS)
    assert numbers(rows) == undisturbed
    failed = [row for row in rows if row.status == "failed"]
    assert len(failed) == 3 * len(WAYS)
    assert {row.rejector: row.error for row in failed} == WAYS


def test_an_attack_that_writes_into_the_network_fails_by_name_and_changes_no_other_row(
    tmp_path: Path, undisturbed: Any
) -> None:
    meddling = [f"meddling(how={how})" for how in MEDDLED]
    rows = run(tmp_path, "confidence,kd,t-con", ",".join([*meddling, ATTACKS]))
    assert numbers(rows) == undisturbed
    errors = {row.attack: row.error for row in rows if row.status == "failed"}
    assert len(errors) == len(MEDDLED)
    assert errors.pop("meddling(how=raising)") == "ValueError: halfway"
    assert all(error.startswith("Meddling changes the network's ") for error in errors.values())


# Networks.


class Writer(Featured):
    """Writes into its images, or into itself."""

    calls: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override] # as its base's
        answer = super().forward(images)
        if self.how == "in place":
            with torch.no_grad():
                images.fill_(0.5)
        elif self.how == "data" or (self.how == "climb" and torch.is_grad_enabled()):
            images.data.fill_(0.5)
        elif self.how == "numpy":
            images.detach().numpy().fill(0.5)
        elif self.how == "buffer":
            self.calls.add_(1)
        elif self.how == "weight":
            self.weight.data.mul_(0.99)
        return answer


NETWORKS = {
    "in place": "the network writes into the images that it is given: work on a copy",
    "data": "the network writes into the images that it is given: work on a copy",
    "numpy": "the network writes into the images that it is given: work on a copy",
    "climb": "the network writes into the images that it is given: work on a copy",
    "buffer": "the network changes its own buffer 'model.calls' when it answers",
    "weight": "the network changes its own weight 'model.weight' when it answers",
}


@pytest.mark.parametrize("how", NETWORKS)
def test_a_network_that_writes_is_refused_and_the_user_s_data_stay(how: str) -> None:
    images, labels = inputs(20)
    array = images.numpy().copy()
    network = Writer(how)
    with pytest.raises(UseError) as refused:
        rrbench.evaluate(network, "confidence", "pgd2", (torch.from_numpy(array), labels), budget="linf:1/50")
    assert str(refused.value).startswith(NETWORKS[how])
    assert np.array_equal(array, images.numpy())
    assert torch.equal(network.weight, Linear().weight)
    assert network.calls == 0


# The user's own things.


def _unteach(weight: Tensor) -> Callable[[Outputs], Tensor]:
    def certainty(outputs: Outputs) -> Tensor:
        score = outputs.logits.amax(1)
        weight.data.zero_()
        return score

    return certainty


@pytest.mark.parametrize("calls", [12, 14])
def test_a_certainty_that_changes_later_on_is_refused(calls: int) -> None:
    asked: list[int] = []

    def tired(outputs: Outputs) -> Tensor:
        asked.append(len(outputs.logits))
        return outputs.logits.amax(1) * (1 if len(asked) < calls else -1)

    try:
        frame = rrbench.evaluate(Linear(), tired, ["clean", "pgd2", "pgd3", "pgd4"], inputs(20), budget="linf:1/50")
        errors = set(frame.error)
    except UseError as error:  # no row is left
        errors = {str(error)}
    assert len(asked) > calls
    assert any("has changed since the clean inputs were scored" in error for error in errors)


@pytest.mark.parametrize("how", MEDDLED)
def test_the_user_s_network_is_put_back_when_an_attack_writes_into_it(how: str) -> None:
    network, data = Linear(), inputs(20)
    network.register_buffer("unused", torch.ones(3))
    weight, answers = network.weight, network(data[0])
    with pytest.raises((UseError, ValueError), match=r"Meddling changes the network's|halfway"):
        rrbench.evaluate(network, "confidence", Meddling(how=how), data, budget="linf:1/50")
    assert network.weight is weight
    assert torch.equal(weight, Linear().weight)
    assert torch.equal(network(data[0]), answers)
    assert list(network.modules()) == [network]
    assert torch.equal(network.get_buffer("unused"), torch.ones(3))


def test_the_user_s_network_is_put_back_when_a_certainty_writes_into_it() -> None:
    network = Linear()
    with pytest.raises(
        UseError, match=r"the network's weight 'model\.weight' was changed while certainty was measured"
    ):
        rrbench.evaluate(network, _unteach(network.weight), "clean", inputs(20))
    assert torch.equal(network.weight, Linear().weight)


def test_what_a_rejector_learnt_is_safe_from_an_attack() -> None:
    data = inputs(40)
    honest = rrbench.evaluate(Featured(), Centred(), Climbing(), data, budget="linf:1/50", fit_data=data)
    fitted = Centred()
    fitted.fitted = {"mean": torch.tensor([0.5, -0.5])}
    with pytest.raises(UseError, match=r"Unteaching changes what Centred has learnt \(self\.fitted\['mean'\]\)"):
        rrbench.evaluate(Featured(), fitted, Unteaching(), data, budget="linf:1/50", fit_data=data)
    assert torch.equal(fitted.fitted["mean"], torch.tensor([0.5, -0.5]))
    again = rrbench.evaluate(Featured(), Centred(), Climbing(), data, budget="linf:1/50", fit_data=data)
    assert honest.drop(columns="seconds").equals(again.drop(columns="seconds"))


# Data sources and members of an ensemble.


@dataclass(frozen=True)
class Spoiling(DataSource):
    """Writes into the images that it gave before."""

    info = Digits().info
    given: ClassVar[list[Tensor]] = []

    def load(self, split: Split, roots: tuple[Path, ...] = ()) -> Batch:
        for images in self.given:
            images.zero_()
        batch = Digits().load(split, roots)
        self.given.append(batch.images)
        return batch


def test_a_source_cannot_change_what_it_gave_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table("dataset").classes, "spoiling", Spoiling)
    monkeypatch.setattr(Spoiling, "given", [])
    supply = Materials(Store(tmp_path), torch.device("cpu"), "fp32", ())
    spoiling = Choice("spoiling", ())
    test = supply.data(spoiling, "test")
    supply.data(spoiling, "calibration")
    assert torch.equal(test.images, Digits().load("test").images)


@dataclass(frozen=True)
class Greying(Brighter):
    """Works in its batch."""

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Any) -> Any:
        moved = super().__call__(victim, batch, budget, draws)
        batch.images.fill_(0.5)
        batch.labels.zero_()
        return moved


def test_a_member_of_an_ensemble_cannot_spoil_the_batch_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table("attack").classes, "greying", Greying)
    images, labels = inputs(4)
    batch = Batch(images.clone(), labels.clone(), torch.arange(4))
    fresh_member(Choice("greying", ()), Budget("linf", NO_BUDGET.radius), 0)(Victim(Linear(), Kd()), batch)
    assert torch.equal(batch.images, images)
    assert torch.equal(batch.labels, labels)


def test_a_member_that_writes_into_the_network_is_lost_alone() -> None:
    network = rrbench.wrap(Linear())
    images, labels = inputs(4)
    member = fresh_member(Choice("meddling", (("how", "data"),)), Budget("linf", NO_BUDGET.radius), 0)
    with pytest.raises(CellError, match=r"Meddling changes the network's weight 'model\.weight'"):
        member(Victim(network, Kd()), Batch(images, labels, torch.arange(4)))
    assert torch.equal(network.get_parameter("model.weight"), Linear().weight)


class Reusing(nn.Module):
    """Answers in the same memory every time, as a captured graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = torch.empty(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        return torch.mm(images.flatten(1)[:, :2], torch.eye(2), out=self.answer)


def test_a_network_that_answers_in_the_same_memory_is_read_in_time() -> None:
    images = HashedDraws(0).uniform(torch.arange(8), (1, 4, 4), 0)
    network = Reusing()
    (joined,) = in_batches(8, 4, lambda piece: [network(images[piece])])
    assert joined is not None
    assert torch.equal(joined, images.flatten(1)[:, :2])


def test_an_attack_on_a_measured_network_leaves_its_data_alone() -> None:
    images, labels = inputs(8)
    batch = Batch(images.clone(), labels.clone(), torch.arange(8))
    measured = MeasuredNetwork(rrbench.wrap(Linear()), lambda split: batch, torch.device("cpu"), "fp32")
    victim = Victim(measured.network, Kd())
    run_attack(measured, victim, Greying(), "greying", Budget("linf", NO_BUDGET.radius), 0, lambda done: None)
    assert torch.equal(batch.images, images)
    assert torch.equal(batch.labels, labels)
