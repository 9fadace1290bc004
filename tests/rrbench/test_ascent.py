import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import Keep, ascend, margin, project, random_start, search, step_up
from rrbench.compute.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Moved, Norm, Outputs

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = HashedDraws(5)
NORMS = pytest.mark.parametrize("norm", get_args(Norm))
SHAPE = (1, 4, 4)


def batch_of(size: int, classes: int = 2) -> Batch:
    ids = torch.arange(size)
    images = HashedDraws(1).uniform(ids, SHAPE, 0)
    images[0] = (images[0] > 0.5).float()  # at the edge of the range
    return Batch(images, ids % classes, ids + 50)


def sizes(delta: Tensor, norm: Norm) -> Tensor:
    flat = delta.double().flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.square().sum(1).sqrt()


@dataclass(frozen=True)
class Linear:
    """Logits are linear in the image; the head repeats the first logit."""

    rows: Tensor

    def __call__(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        logits = flat @ self.rows.T
        return Outputs(flat, logits, logits[:, :1])


LINEAR = Linear(HashedDraws(2).normal(torch.arange(2), (16,), 0))


def cross_entropy(outputs: Outputs, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, reduction="none")


def head(outputs: Outputs, labels: Tensor) -> Tensor:
    return outputs.head[:, 0]


# Projection, start and step.


def test_linf_projection_clips_to_the_box_and_to_the_range() -> None:
    images = torch.tensor([0.5, 0.5, 0.5, 0.05, 0.95]).view(1, 1, 1, 5)
    moved = torch.tensor([0.9, 0.1, 0.55, -0.02, 1.02]).view(1, 1, 1, 5)
    expected = torch.tensor([0.6, 0.4, 0.55, 0.0, 1.0]).view(1, 1, 1, 5)
    torch.testing.assert_close(project(moved, images, "linf", 0.1), expected)


def test_l2_projection_shortens_long_ways_only() -> None:
    images = torch.full((2, 1, 1, 2), 0.5)
    moved = images + torch.tensor([[0.3, 0.4], [0.03, 0.04]]).view(2, 1, 1, 2)
    expected = images + torch.tensor([[0.06, 0.08], [0.03, 0.04]]).view(2, 1, 1, 2)
    torch.testing.assert_close(project(moved, images, "l2", 0.1), expected)


def test_l2_projection_clips_to_the_range_after_the_ball() -> None:
    images = torch.tensor([0.99, 0.5]).view(1, 1, 1, 2)
    moved = images + torch.tensor([0.3, 0.4]).view(1, 1, 1, 2)
    torch.testing.assert_close(project(moved, images, "l2", 0.1), torch.tensor([1.0, 0.58]).view(1, 1, 1, 2))


@NORMS
@pytest.mark.parametrize("radius", [1e-3, 8 / 255, 0.5, 3.0])
def test_a_projection_lies_in_the_ball_and_in_the_range_and_does_not_move_again(norm: Norm, radius: float) -> None:
    batch = batch_of(50)
    far = batch.images + HashedDraws(3).normal(batch.ids, SHAPE, 0)
    once = project(far, batch.images, norm, radius)
    assert sizes(once - batch.images, norm).max() <= radius + 1e-6
    assert once.min() >= 0
    assert once.max() <= 1
    torch.testing.assert_close(project(once, batch.images, norm, radius), once, atol=1e-7, rtol=0)


@NORMS
def test_radius_zero_gives_the_clean_image_bit_for_bit(norm: Norm) -> None:
    batch = batch_of(50)
    far = batch.images + HashedDraws(3).normal(batch.ids, SHAPE, 0)
    assert torch.equal(project(far, batch.images, norm, 0.0), batch.images)
    assert torch.equal(project(batch.images, batch.images, norm, 0.0), batch.images)
    assert torch.equal(random_start(batch, norm, 0.0, DRAWS, 0), batch.images)


@NORMS
def test_a_nan_is_not_projected_away(norm: Norm) -> None:
    batch = batch_of(3)
    moved = batch.images.clone()
    moved[1, 0, 0, 0] = math.nan
    assert project(moved, batch.images, norm, 0.1).flatten(1).isnan().any(1).tolist() == [False, True, False]


@NORMS
@pytest.mark.parametrize("radius", [8 / 255, 2.0])
def test_a_start_lies_in_the_ball_and_in_the_range(norm: Norm, radius: float) -> None:
    batch = batch_of(200)
    start = random_start(batch, norm, radius, DRAWS, 0)
    assert sizes(start - batch.images, norm).max() <= radius + 1e-6
    assert start.min() >= 0
    assert start.max() <= 1


def grey(size: int) -> Batch:
    return Batch(torch.full((size, *SHAPE), 0.5), torch.zeros(size, dtype=torch.long), torch.arange(size))


def test_linf_starts_fill_the_box_evenly() -> None:
    delta = random_start(grey(2000), "linf", 0.2, DRAWS, 0) - 0.5
    assert delta.mean().item() == pytest.approx(0, abs=0.003)
    assert delta.std().item() == pytest.approx(0.2 / math.sqrt(3), rel=0.02)


def test_l2_starts_have_an_even_share_of_the_radius_and_any_direction() -> None:
    delta = (random_start(grey(4000), "l2", 0.3, DRAWS, 0) - 0.5).flatten(1)
    shares = sizes(delta, "l2") / 0.3
    assert shares.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist() == pytest.approx(
        [0.25, 0.5, 0.75], abs=0.03
    )
    directions = delta / delta.norm(dim=1, keepdim=True)
    torch.testing.assert_close(directions.T @ directions / 4000, torch.eye(16) / 16, atol=0.01, rtol=0)


@NORMS
def test_a_start_belongs_to_its_image_and_restart_not_to_its_batch(norm: Norm) -> None:
    batch = batch_of(8)
    start = random_start(batch, norm, 0.1, DRAWS, 3)
    assert torch.equal(random_start(batch.at(slice(5, 6)), norm, 0.1, DRAWS, 3), start[5:6])
    assert not torch.equal(random_start(batch, norm, 0.1, DRAWS, 4), start)
    assert not torch.equal(random_start(batch, norm, 0.1, HashedDraws(6), 3), start)


def test_a_linf_step_follows_the_sign_and_stays_where_the_gradient_is_zero() -> None:
    gradient = torch.tensor([1e-9, -40.0, 0.0]).view(1, 1, 1, 3)
    expected = torch.tensor([0.75, 0.25, 0.5]).view(1, 1, 1, 3)
    assert torch.equal(step_up(torch.full((1, 1, 1, 3), 0.5), gradient, "linf", 0.25), expected)


def test_an_l2_step_has_the_length_of_the_step_whatever_the_gradient_s() -> None:
    gradient = torch.tensor([[3.0, 4.0], [3e-4, 4e-4], [0.0, 0.0]]).view(3, 1, 1, 2)
    expected = torch.tensor([[0.03, 0.04], [0.03, 0.04], [0.0, 0.0]]).view(3, 1, 1, 2)
    torch.testing.assert_close(step_up(torch.zeros(3, 1, 1, 2), gradient, "l2", 0.05), expected, atol=1e-7, rtol=1e-5)


@NORMS
def test_a_step_along_a_nan_gradient_shows_in_the_image(norm: Norm) -> None:
    gradient = torch.tensor([[1.0, 1.0], [math.nan, 1.0]]).view(2, 1, 1, 2)
    assert step_up(torch.zeros(2, 1, 1, 2), gradient, norm, 0.1).flatten(1).isnan().any(1).tolist() == [False, True]


def test_the_margin_is_the_true_logit_minus_the_best_other() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5], [0.0, 0.0, -1.0]])
    assert margin(logits, torch.tensor([0, 1, 0])).tolist() == [0.5, -2.0, 0.0]


def test_a_faint_gradient_is_followed_as_far_as_a_strong_one() -> None:
    gradient = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]).view(4, 1, 1, 2)
    gradient *= torch.tensor([1.0, 1e-12, 1e-30, 1.0]).view(4, 1, 1, 1)
    expected = torch.tensor([[0.06, 0.08]] * 3 + [[0.0, 0.0]]).view(4, 1, 1, 2)
    torch.testing.assert_close(step_up(torch.zeros(4, 1, 1, 2), gradient, "l2", 0.1), expected)


# The ascent.


def moves(steps: int, norm: Norm = "linf", step: float = 0.01, radius: float = 1.0) -> Tensor:
    batch = grey(3)
    return ascend(
        LINEAR,
        batch.images,
        batch.images,
        lambda outputs: outputs.head[:, 0],
        norm=norm,
        radius=radius,
        step=step,
        steps=steps,
    )


def test_an_ascent_takes_so_many_steps_along_the_gradient() -> None:
    rows = LINEAR.rows[0].view(1, *SHAPE)
    torch.testing.assert_close(moves(3), 0.5 + 0.03 * rows.sign().expand(3, *SHAPE))
    torch.testing.assert_close(moves(3, "l2"), 0.5 + 0.03 * (rows / rows.norm()).expand(3, *SHAPE))
    assert torch.equal(moves(0), grey(3).images)


def test_an_ascent_leaves_its_start_and_the_mode_of_autograd_as_they_were() -> None:
    batch = grey(2)
    start = batch.images.clone()
    with torch.no_grad():
        moved = ascend(LINEAR, batch.images, start, lambda o: o.head[:, 0], norm="linf", radius=1.0, step=0.1, steps=2)
        assert not torch.is_grad_enabled()
    assert not moved.requires_grad
    assert not start.requires_grad
    assert torch.equal(start, batch.images)


def test_an_objective_without_gradient_is_refused() -> None:
    batch = grey(2)
    with pytest.raises(CellError, match="no gradient"):
        ascend(
            LINEAR, batch.images, batch.images, lambda o: o.head[:, 0].round().detach(), norm="linf", radius=1.0,
            step=0.1, steps=1,
        )  # fmt: skip


def test_logits_without_gradient_are_the_network_s_fault_and_the_line_says_so() -> None:
    batch = grey(2)

    def detached(images: Tensor) -> Outputs:
        return Outputs(*(part.detach() for part in LINEAR(images)))

    with pytest.raises(CellError, match=r"the network's logits have no gradient: take no_grad\(\)"):
        ascend(detached, batch.images, batch.images, lambda o: o.head[:, 0], norm="linf", radius=1.0, step=0.1, steps=1)


# The search.


def found(
    batch: Batch, norm: Norm, radius: Fraction, *, network: Callable[[Tensor], Outputs] = LINEAR, steps: int = 20,
    keep: Keep = "last",
) -> Tensor:  # fmt: skip
    return search(
        network, batch, Budget(norm, radius), DRAWS, [cross_entropy], head, steps=steps, restarts=2,
        step=float(radius) / 4, keep=keep, select="ce",
    ).images  # fmt: skip


def test_a_linear_classifier_is_moved_to_the_best_corner_of_box_and_range() -> None:
    batch = batch_of(20)
    worse = (LINEAR.rows[1 - batch.labels] - LINEAR.rows[batch.labels]).view(-1, *SHAPE)
    best = (batch.images + 0.1 * worse.sign()).clamp(0, 1)
    torch.testing.assert_close(found(batch, "linf", Fraction(1, 10)), best, atol=1e-6, rtol=0)


def test_a_linear_classifier_is_moved_straight_along_its_weights_in_l2() -> None:
    batch = grey(20)._replace(labels=torch.arange(20) % 2)
    worse = (LINEAR.rows[1 - batch.labels] - LINEAR.rows[batch.labels]).view(-1, *SHAPE)
    best = batch.images + 0.1 * worse / worse.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    torch.testing.assert_close(found(batch, "l2", Fraction(1, 10), steps=60), best, atol=1e-5, rtol=0)


@NORMS
def test_radius_zero_finds_the_clean_images(norm: Norm) -> None:
    batch = batch_of(10)
    assert torch.equal(found(batch, norm, Fraction(0)), batch.images)


@pytest.mark.parametrize("keep", get_args(Keep))
def test_a_network_that_breaks_away_from_the_clean_image_is_an_error(keep: Keep) -> None:
    clean = grey(4)

    def breaks(images: Tensor) -> Outputs:
        outputs = LINEAR(images)
        gone = (images - 0.5).abs().flatten(1).amax(1, keepdim=True) > 0.09
        return outputs._replace(logits=outputs.logits.masked_fill(gone, math.nan))

    assert LINEAR(clean.images).logits.isfinite().all()
    with pytest.raises(CellError, match="NaN"):
        found(clean, "linf", Fraction(1, 10), network=breaks, keep=keep)


def test_a_gradient_that_is_nan_is_an_error() -> None:
    def steep(images: Tensor) -> Outputs:
        outputs = LINEAR(images)
        # The square root of 0 has no slope: its gradient is 0 times infinity.
        return outputs._replace(logits=outputs.logits + (outputs.logits.detach() - outputs.logits).square().sqrt())

    with pytest.raises(CellError, match="NaN"):
        found(grey(2), "linf", Fraction(1, 10), network=steep, steps=1)


@pytest.mark.parametrize("at_once", [2, 3, 50])
@pytest.mark.parametrize("keep", get_args(Keep))
def test_it_does_not_matter_how_many_starts_and_objectives_are_climbed_at_once(
    keep: Keep, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(7)

    def answers() -> Moved:
        return search(
            LINEAR, batch, Budget("linf", Fraction(1, 10)), DRAWS, [cross_entropy, head], head, steps=3, restarts=3,
            step=0.02, keep=keep, select="evade",
        )  # fmt: skip

    one_by_one = answers()
    monkeypatch.setattr("rrbench.ascent.copies", lambda size, wanted: at_once)
    together = answers()
    torch.testing.assert_close(together.images, one_by_one.images, atol=1e-6, rtol=0)
    torch.testing.assert_close(together.boldest, one_by_one.boldest, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("steps", "restarts"), [(-1, 1), (5, 0)])
def test_a_search_that_would_not_search_is_refused(steps: int, restarts: int) -> None:
    with pytest.raises(CellError, match=f"steps={steps}, restarts={restarts}"):
        search(
            LINEAR, batch_of(3), Budget("linf", Fraction(1, 10)), DRAWS, [cross_entropy], head, steps=steps,
            restarts=restarts, step=0.02, keep="last", select="ce",
        )  # fmt: skip


def test_a_search_that_leaves_out_every_objective_is_refused() -> None:
    with pytest.raises(CellError, match="narrow=0"):
        search(
            LINEAR, batch_of(3), Budget("linf", Fraction(1, 10)), DRAWS, [cross_entropy, head], head, steps=5,
            restarts=2, step=0.02, keep="last", select="ce", narrow=0,
        )  # fmt: skip


@pytest.mark.parametrize("narrow", [None, 1])
def test_without_any_objective_nothing_is_moved(narrow: int | None) -> None:
    batch = batch_of(3)
    moved = search(
        LINEAR, batch, Budget("linf", Fraction(1, 10)), DRAWS, [], head, steps=2, restarts=2, step=0.02, keep="last",
        select="ce", narrow=narrow,
    )  # fmt: skip
    assert torch.equal(moved.images, batch.images)


def test_every_objective_is_tried_from_every_start() -> None:
    seen: list[Tensor] = []

    def watching(images: Tensor) -> Outputs:
        seen.append(images.detach().clone())
        return LINEAR(images)

    batch = batch_of(3)
    scores = [cross_entropy, head]
    search(
        watching, batch, Budget("linf", Fraction(1, 10)), DRAWS, scores, head, steps=2, restarts=2, step=0.02,
        keep="last", select="evade",
    )  # fmt: skip
    starts = [seen[index] for index in (0, 3, 6, 9)]  # two steps and a last look each
    assert len(seen) == 12
    for restart in range(2):
        for start in starts[2 * restart : 2 * restart + 2]:
            assert torch.equal(start, random_start(batch, "linf", 0.1, DRAWS, restart))
