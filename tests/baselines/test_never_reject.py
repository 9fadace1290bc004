from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rrbench
from rrbench.ascent import best_other
from rrbench.compute.draws import HashedDraws
from rrbench.protocols import Batch, Budget, Calibration, Outputs, Victim
from rrbench_attacks.adaptive import Adaptive
from rrbench_attacks.apgd_reject import ApgdReject
from rrbench_attacks.orthogonal_pgd import SelectivePgd
from rrbench_attacks.over_reject import OverReject
from rrbench_attacks.rejection_loss import RejectionLoss
from rrbench_baselines.never_reject import NeverReject

DRAWS, LINF = HashedDraws(3), Budget("linf", Fraction(1, 10))


class Line(nn.Module):
    """Two classes on either side of a hyperplane: the worst image within a box is a corner, known in advance."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0, -4.0]))

    def forward(self, images: Tensor) -> Outputs:
        height = (images.flatten(1) - 0.5) @ self.weight
        return Outputs(images.flatten(1), torch.stack([height, -height], 1), images.new_zeros(len(images), 0))


def inputs() -> Batch:
    ids = torch.arange(12)
    images = 0.3 + 0.4 * HashedDraws(1).uniform(ids, (1, 2, 2), 0)
    return Batch(images, Line()(images).logits.argmax(1), ids)


def test_every_input_has_the_same_certainty_and_is_kept() -> None:
    outputs = Line()(inputs().images)
    rejector = NeverReject()
    assert rejector.certainty(outputs).tolist() == [1.0] * 12
    assert rejector.own_threshold is not None
    assert (rejector.certainty(outputs) >= rejector.own_threshold).all()
    assert rejector.is_constant


@pytest.mark.parametrize(
    "attack",
    [
        Adaptive("con+rcon", (1.0,), steps=12, restarts=1),
        SelectivePgd(steps=12),
        RejectionLoss("and", steps=12, restarts=1),
        ApgdReject(steps=12),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_an_adaptive_attack_on_it_is_the_attack_on_the_classifier_alone(
    attack: Adaptive | SelectivePgd | RejectionLoss | ApgdReject,
) -> None:
    """On a line the best wrong answer lies in the corner of the box, and a right one is moved there."""
    batch, network = inputs(), Line()
    victim = Victim(network, NeverReject(), Calibration(1.0, 1.0, 1e-6))
    moved = attack(victim, batch, LINF, DRAWS).images
    sign = torch.where(batch.labels == 0, -1.0, 1.0)[:, None] * network.weight.detach().sign()
    corner = (batch.images.flatten(1) + 0.1 * sign).clamp(0, 1).view_as(batch.images)
    with torch.no_grad():
        found, best = (best_other(network(images), batch.labels) for images in (moved, corner))
        wrong, can_be = (network(images).logits.argmax(1) != batch.labels for images in (moved, corner))
    assert can_be.any()
    assert torch.equal(wrong, can_be)
    torch.testing.assert_close(found[~wrong], best[~wrong], atol=1e-4, rtol=0)


def test_nobody_can_make_it_refuse() -> None:
    batch = inputs()
    victim = Victim(Line(), NeverReject(), Calibration(1.0, 1.0, 1e-6))
    moved = OverReject(steps=3, searches=2)(victim, batch, Budget("linf", None), DRAWS)
    assert moved.reached is not None
    assert not moved.reached.any()


def test_another_certainty_without_a_slope_is_still_refused() -> None:
    batch = inputs()

    class Flat(NeverReject):
        is_constant = False

    with pytest.raises(rrbench.errors.CellError, match=r"has no gradient"):
        SelectivePgd(steps=1)(Victim(Line(), Flat(), Calibration(1.0, 1.0, 1.0)), batch, LINF, DRAWS)


def test_its_worst_case_leaves_the_accuracy_under_the_strongest_attack(tmp_path: Path) -> None:
    listed = "all_attacks = ['pgd5', 'selective-pgd(steps=5)', 'adaptive(con+rcon,steps=5)', 'worst-case']"
    (tmp_path / "list.toml").write_text(f"[run]\n{listed}\n")
    rows = rrbench.run("never-reject", "all", limit=40, out=tmp_path / "runs", config=tmp_path / "list.toml")
    assert set(rows["status"]) == {"ok"}
    assert (rows["deploy_coverage"] == 100).all()
    by_attack = rows.set_index("attack")
    for column in ("deploy_robust", "deploy_acc"):
        assert by_attack[column].tolist() == pytest.approx(by_attack["acc_all"].tolist())
    worst = by_attack.loc["worst-case"]
    assert worst["acc_all"] <= by_attack["acc_all"].drop("worst-case").min()
    assert "goes without" not in str(worst["note"])
    assert not rows["note"].str.contains("gradients are zero").any(), "a constant has none: that is no fault"
