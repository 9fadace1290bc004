from fractions import Fraction

import pytest
import torch
from torch import Tensor

from line_network import WEIGHTS, Line, with_leads
from rrbench.compute.draws import HashedDraws
from rrbench.compute.looking import with_looks
from rrbench.protocols import Batch, Budget, Calibration, Outputs, Victim
from rrbench_attacks.orthogonal_pgd import SelectivePgd
from rrbench_baselines.cpr import Cpr

CPR = Cpr(eps=Fraction(1, 100), step=Fraction(1, 400), steps=10)
NETWORK = with_looks(Line(), CPR)


def test_the_certainty_is_the_lead_that_the_push_leaves() -> None:
    outputs = NETWORK(with_leads([1.0, 0.3, 0.05, -0.05, -0.5]))
    # Every pixel by 1/100 against the lead: 10 / 100 of it are lost.
    assert CPR.certainty(outputs).tolist() == pytest.approx([0.9, 0.2, -0.05, -0.05, 0.4], abs=1e-5)


def test_the_published_rule_is_its_threshold() -> None:
    images = with_leads([0.11, 0.09, -0.11, -0.09])
    assert CPR.own_threshold == 0.0
    accepted = CPR.certainty(NETWORK(images)) >= CPR.own_threshold
    worst = images - 0.01 * torch.where(Line()(images).logits.argmax(1) == 1, 1.0, -1.0)[:, None, None, None] * (
        WEIGHTS.sign().view(1, 1, 2, 2)
    )
    assert torch.equal(accepted, Line()(worst).logits.argmax(1) == Line()(images).logits.argmax(1))


def test_the_push_stays_in_its_box_and_in_range() -> None:
    seen: list[Tensor] = []

    class Watching(Line):
        def forward(self, images: Tensor) -> Outputs:
            seen.append(images.detach())
            return super().forward(images)

    edge = torch.tensor([0.0, 1.0, 1.0, 0.0]).view(1, 1, 2, 2)
    with_looks(Watching(), CPR)(edge)
    assert len(seen) == 12, "one look at the image, ten on the way, one at the end"
    for images in seen:
        assert (images - edge).abs().max() <= 0.01 + 1e-6
        assert images.min() >= 0
        assert images.max() <= 1


def test_attacks_differentiate_through_the_push() -> None:
    images = with_leads([1.0, -0.5]).requires_grad_()
    (slope,) = torch.autograd.grad(CPR.certainty(NETWORK(images)).sum(), images)
    torch.testing.assert_close(slope.flatten(1), torch.stack([WEIGHTS, -WEIGHTS]))


def test_an_adaptive_attack_passes_where_a_wrong_answer_can_be_made_steady() -> None:
    """A lead of 0.2 can be brought to -0.3 within 1/20; 0.1 of that is lost to the push, so it is accepted."""
    batch = Batch(with_leads([0.2, 0.45]), torch.tensor([1, 1]), torch.arange(2))
    victim = Victim(NETWORK, CPR, Calibration(0.0, 0.3, 0.2))
    budget = Budget("linf", Fraction(1, 20))
    moved = SelectivePgd(steps=20)(victim, batch, budget, HashedDraws(1)).images
    outputs = NETWORK(moved)
    wrong = outputs.logits.argmax(1) != batch.labels
    assert wrong.tolist() == [True, True]
    assert CPR.certainty(outputs).tolist() == pytest.approx([0.2, -0.05], abs=1e-3)


@pytest.mark.parametrize("settings", [{"eps": Fraction(0)}, {"step": Fraction(-1)}, {"steps": 0}])
def test_settings_without_meaning_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^(eps|step|steps) must be"):
        Cpr(**settings)  # type: ignore[arg-type]
