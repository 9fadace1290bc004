"""Rejectors that ask the network again: what is stored, shared, verified and hidden from blind attacks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rrbench
from line_network import Line, with_leads
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.looking import Looking, with_looks, without_looks
from rrbench.files.arrays import load_arrays
from rrbench.measuring import measured_network
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.planning.cells import attack_key
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.cpr import Cpr
from rrbench_baselines.pro import Pro

pytestmark = pytest.mark.usefixtures("own_folder")


def test_looks_come_behind_the_head_s_own_columns_and_nothing_else_changes() -> None:
    class Headed(nn.Module):
        def forward(self, images: Tensor) -> Outputs:
            flat = images.flatten(1)
            return Outputs(flat, flat[:, :3], 7 * flat[:, :1])

    images = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    plain, looked = Headed()(images), with_looks(Headed(), Pro(steps=2))(images)
    assert torch.equal(looked.features, plain.features)
    assert torch.equal(looked.logits, plain.logits)
    assert torch.equal(looked.head[:, :1], plain.head)
    assert looked.head.shape == (5, 3)


def test_blind_and_other_attacks_share_a_twin_unless_the_rejector_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[nn.Module, bool]] = []

    def make_twin(network: nn.Module, precision: str, device: torch.device, *, replays: bool) -> nn.Module:
        made.append((network, replays))
        return nn.Identity()

    monkeypatch.setattr(measured_network, "make_twin", make_twin)
    network = nn.Linear(2, 2)
    for rejector, twins in ((Confidence(), 1), (Pro(steps=2), 2)):
        made.clear()
        looked = with_looks(network, rejector)
        measured = MeasuredNetwork(looked, lambda split: None, torch.device("cpu"), "bf16")
        blind, other = (measured.attackable("bf16", is_blind=is_blind) for is_blind in (True, False))
        assert measured.attackable("bf16", is_blind=True) is blind
        assert (blind is other) == (twins == 1)
        assert made == [(network, True), (looked, True)][:twins]
        assert measured.attackable("tf32") not in (blind, other)


def test_only_who_looks_again_gets_such_a_network() -> None:
    network = nn.Linear(2, 2)
    assert with_looks(network, Confidence()) is network
    looking = with_looks(network, Pro())
    assert isinstance(looking, Looking)
    assert without_looks(looking) is network
    assert without_looks(network) is network


def test_its_attacks_are_stored_apart_and_those_of_the_others_stay_shared() -> None:
    cells = make_plan(Request(["confidence", "energy", "pro", "cpr"], ["pgd10"]), load_preset("quick")).cells
    keys = {(str(cell.rejector), str(cell.attack)): attack_key(cell.describe("checkpoint", "fp32")) for cell in cells}
    for attack in ("clean", "pgd10"):
        assert keys["confidence", attack] == keys["energy", attack]
        assert len({keys[name, attack] for name in ("confidence", "pro", "cpr")}) == 3


def test_a_run_stores_its_looks_and_is_verified(command: Any, tmp_path: Path) -> None:
    rejector = "pro(step=1/100,steps=1)"
    out = tmp_path / "runs"
    rows = rrbench.run(f"{rejector},confidence", "pgd3,selective-pgd(steps=3)", limit=6, out=out)
    assert set(rows["status"]) == {"ok"}, rows["error"].tolist()
    blind = rows[rows["attack"] == "pgd3"].set_index("rejector")
    assert len(set(blind["acc_all"])) == 1, "a blind attack finds the same images, whoever looks again"
    assert len(set(blind["gradients"])) == 1
    store = Store(out)
    mine = [record for record, _ in store.cells() if record.row.rejector == rejector]
    assert len(mine) == 3
    for record in mine:
        (name,) = (name for name in record.files if name.startswith("attacks/"))
        head = load_arrays(out / name)["head"]
        assert head.shape[1] == 1
        assert np.isfinite(head).all()
    answer = command("verify", out, "--rerun")
    assert answer.code == 0, answer.out + answer.err


def test_an_own_model_can_be_looked_at_again() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = torch.rand(40, 3, 2, 2)
    data = (images, model(images).argmax(1))
    both = [
        rrbench.evaluate(model, name, "selective-pgd(steps=5)", data, budget="linf:8/255", fit_data=data)
        for name in ("confidence", "pro(step=1/50)")
    ]
    assert [len(rows) for rows in both] == [1, 1]
    assert both[0]["status"].tolist() == both[1]["status"].tolist() == ["ok"]


@pytest.mark.parametrize(("rejector", "gradients"), [(Cpr(steps=4), 4 + 1), (Pro(steps=4), 4 + 4)], ids=["cpr", "pro"])
def test_a_look_takes_the_gradients_that_it_announces(rejector: Rejector, gradients: int) -> None:
    counting = Instrumented(Line(), "fp32")
    images = with_leads([1.0, 0.3, -0.5]).requires_grad_()
    rejector.look(counting, images, Line()(images))
    assert (rejector.gradients_per_look(), counting.gradients) == (gradients, 3 * gradients)
