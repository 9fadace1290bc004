import math
from fractions import Fraction

import pytest
import torch

from line_network import WEIGHTS, Line, with_leads
from rrbench.compute.looking import with_looks
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.pro import Pro


def probability(lead: float) -> float:
    return 1 / (1 + math.exp(-lead))


PRO = Pro(step=Fraction(1, 100), steps=3)
NETWORK = with_looks(Line(), PRO)


def test_the_certainty_is_the_lowest_confidence_on_the_way_down() -> None:
    # Each step takes 0.1 of the lead. From 0.15 it crosses to -0.05, and the third step comes back to 0.05:
    # the lowest on the way is 0.05.
    outputs = NETWORK(with_leads([1.0, -0.8, 0.15]))
    expected = [probability(lead) for lead in (0.7, 0.5, 0.05)]
    assert PRO.certainty(outputs).tolist() == pytest.approx(expected, abs=1e-5)
    assert outputs.head.shape == (3, 3)


def test_the_image_itself_counts_too() -> None:
    """At the bottom already: a step of 0.1 leads from 0.04 to -0.06, which is surer."""
    pro = Pro(step=Fraction(1, 100), steps=1)
    network = with_looks(Line(), pro)
    assert pro.certainty(network(with_leads([0.04]))).item() == pytest.approx(probability(0.04), abs=1e-6)


def test_it_is_never_above_confidence() -> None:
    outputs = NETWORK(torch.rand(30, 1, 2, 2, generator=torch.Generator().manual_seed(0)))
    assert (PRO.certainty(outputs) <= Confidence().certainty(outputs) + 1e-9).all()


def test_sure_answers_do_not_tie() -> None:
    outputs = NETWORK(with_leads([5.0]))._replace(
        logits=torch.tensor([[0.0, gap] for gap in (30.0, 31.0, 33.0)]), head=torch.full((3, 3), 100.0)
    )
    assert (PRO.certainty(outputs).diff() > 0).all()


def test_attacks_differentiate_through_the_steps() -> None:
    images = with_leads([1.0, -0.8]).requires_grad_()
    certainty = PRO.certainty(NETWORK(images))
    (slope,) = torch.autograd.grad(certainty.sum(), images)
    for row, (lead, sign) in enumerate([(0.7, 1.0), (0.5, -1.0)]):
        p = probability(lead)
        torch.testing.assert_close(slope.flatten(1)[row], sign * p * (1 - p) * WEIGHTS, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"step": Fraction(0)}, {"steps": 0}])
def test_settings_without_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^(tau|step|steps) must be"):
        Pro(**settings)  # type: ignore[arg-type]
