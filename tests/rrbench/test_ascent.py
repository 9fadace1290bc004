import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import Keep, Select, Tracker, ascend, margin, project, random_start, search, step_up
from rrbench.draws import HashedDraws
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


# What is kept.


@dataclass
class Shown:
    """A tracker of two inputs, both of class 0, shown one-pixel candidates that are named by their value."""

    tracker: Tracker

    def see(
        self, name: float, logits: list[float], certainty: float = 0.0, objective: float = 0.0, is_last: bool = True
    ) -> "Shown":
        """Show the first input this candidate; the second always gets the same dull one."""
        images = torch.tensor([name, 0.5]).view(2, 1, 1, 1)
        outputs = Outputs(
            torch.zeros(2, 0), torch.tensor([logits, [9.0, 0.0, 0.0]]), torch.tensor([[certainty], [0.0]])
        )
        self.tracker.see(images, outputs, torch.tensor([objective, 0.0]), is_last=is_last)
        return self

    @property
    def answer(self) -> float:
        moved = self.tracker.moved()
        assert moved.images[1].item() in (0.5, pytest.approx(0.2))
        return round(moved.images[0].item(), 4)

    @property
    def boldest(self) -> float:
        boldest = self.tracker.moved().boldest
        assert boldest is not None
        assert boldest[1].item() == pytest.approx(0.2)  # never wrong: the clean image
        return round(boldest[0].item(), 4)


def shown(keep: Keep = "best", select: Select = "evade") -> Shown:
    batch = Batch(torch.tensor([0.1, 0.2]).view(2, 1, 1, 1), torch.tensor([0, 0]), torch.arange(2))
    return Shown(Tracker(batch, head, keep, select))


SURE = [4.0, 0.0, 0.0]
CLOSE = [2.0, 1.5, 0.0]
WRONG = [0.0, 3.0, 0.0]
BARELY_WRONG = [1.0, 1.1, 1.0]


def test_evade_prefers_a_wrong_image_to_any_right_one() -> None:
    assert shown().see(0.3, CLOSE, certainty=9).see(0.4, WRONG, certainty=-9).see(0.5, CLOSE, 9).answer == 0.4


def test_evade_prefers_the_most_certain_of_the_wrong_images() -> None:
    seen = shown().see(0.3, WRONG, certainty=1).see(0.4, BARELY_WRONG, certainty=2).see(0.5, WRONG, certainty=1.5)
    assert seen.answer == 0.4


def test_evade_prefers_the_nearest_to_being_wrong_of_the_right_images() -> None:
    seen = shown().see(0.3, SURE, certainty=5).see(0.4, CLOSE, certainty=-5).see(0.5, SURE, certainty=7)
    assert seen.answer == 0.4


def test_a_tie_of_logits_counts_as_the_first_class() -> None:
    assert shown().see(0.3, [1.0, 1.0, 0.0], certainty=9).see(0.4, WRONG, certainty=-9).answer == 0.4


def test_ce_select_looks_at_cross_entropy_alone() -> None:
    seen = shown(select="ce").see(0.3, [0.0, 0.1, 0.0], certainty=9, objective=9).see(0.4, [0.0, 0.0, 3.0], -9, -9)
    assert seen.see(0.5, SURE, certainty=99, objective=99).answer == 0.4


def test_objective_select_looks_at_the_objective_alone() -> None:
    seen = shown(select="objective").see(0.3, WRONG, certainty=9, objective=1).see(0.4, SURE, certainty=-9, objective=2)
    assert seen.see(0.5, WRONG, certainty=9, objective=-3).answer == 0.4


def test_a_faint_gradient_is_followed_as_far_as_a_strong_one() -> None:
    gradient = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]).view(4, 1, 1, 2)
    gradient *= torch.tensor([1.0, 1e-12, 1e-30, 1.0]).view(4, 1, 1, 1)
    expected = torch.tensor([[0.06, 0.08]] * 3 + [[0.0, 0.0]]).view(4, 1, 1, 2)
    torch.testing.assert_close(step_up(torch.zeros(4, 1, 1, 2), gradient, "l2", 0.1), expected)


@pytest.mark.parametrize("select", get_args(Select))
def test_of_equal_candidates_the_later_is_kept(select: Select) -> None:
    assert shown(select=select).see(0.3, WRONG, 1, 1).see(0.4, WRONG, 1, 1).answer == 0.4


@pytest.mark.parametrize("select", get_args(Select))
def test_the_first_candidate_beats_none(select: Select) -> None:
    assert shown(select=select).see(0.3, [80.0, 0.0, 0.0], -1e30, -1e30).answer == 0.3


def test_keep_last_chooses_between_last_images_only() -> None:
    seen = shown(keep="last").see(0.3, WRONG, certainty=9, is_last=False)
    assert seen.answer == 0.1  # nothing but the clean image yet
    assert seen.see(0.4, CLOSE).see(0.5, WRONG, certainty=2, is_last=False).see(0.6, SURE).answer == 0.4


def test_the_boldest_is_the_most_certain_wrong_image_seen_whatever_is_kept() -> None:
    for keep in get_args(Keep):
        for select in get_args(Select):
            seen = shown(keep, select).see(0.3, WRONG, certainty=1).see(0.4, WRONG, certainty=3, is_last=False)
            assert seen.see(0.5, SURE, certainty=99, objective=99).see(0.6, WRONG, certainty=2).boldest == 0.4


def test_without_a_wrong_image_the_boldest_is_the_clean_one() -> None:
    assert shown().see(0.3, SURE, certainty=9).boldest == 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["logits", "certainty", "objective"])
@pytest.mark.parametrize("keep", get_args(Keep))
@pytest.mark.parametrize("select", get_args(Select))
def test_a_nan_anywhere_on_the_way_is_an_error_and_never_a_robust_image(
    bad: float, place: str, keep: Keep, select: Select
) -> None:
    seen = shown(keep, select).see(0.3, SURE)
    logits = [1.0, bad, 0.0] if place == "logits" else SURE
    certainty, objective = (bad if place == "certainty" else 0.0), (bad if place == "objective" else 0.0)
    seen.see(0.4, logits, certainty, objective, is_last=False).see(0.5, SURE)
    with pytest.raises(CellError, match="NaN or infinite scores on 1 attacked"):
        seen.tracker.moved()


@pytest.mark.parametrize("keep", get_args(Keep))
@pytest.mark.parametrize("select", get_args(Select))
def test_what_is_kept_of_copies_is_what_would_be_kept_of_one_after_the_other(keep: Keep, select: Select) -> None:
    generator = torch.Generator().manual_seed(3)
    batch = batch_of(40)
    one, many = (Tracker(each, head, keep, select) for each in (batch, batch.repeated(3)))
    # Scores of a few values, so that there are ties.
    shape = (4, 3, batch.size)  # of steps, copies and inputs
    logits = torch.randint(0, 3, (*shape, 2), generator=generator).float()
    heads, values = torch.randint(0, 3, (2, *shape, 1), generator=generator).float()
    images = torch.rand(*shape, *SHAPE, generator=generator)

    def show(tracker: Tracker, step: int, part: int | slice) -> None:
        outputs = Outputs(torch.zeros(0), *(each[step, part].flatten(0, -2) for each in (logits, heads)))
        shown_images = images[step, part].reshape(-1, *SHAPE)
        tracker.see(shown_images, outputs, values[step, part].flatten(), is_last=step == 3)

    for part in range(3):
        for step in range(4):
            show(one, step, part)
    for step in range(4):
        show(many, step, slice(None))
    joined = Tracker(batch, head, keep, select)
    joined.join(many)
    assert torch.equal(joined.answer, one.answer)
    assert torch.equal(joined.boldest, one.boldest)
    assert torch.equal(joined.rank, one.rank)
    assert torch.equal(joined.evades, one.evades)
    assert len({tuple(row) for row in joined.answer.flatten(1).tolist()}) == batch.size


def test_a_nan_seen_on_any_copy_is_an_error() -> None:
    batch = batch_of(2)
    many, joined = (Tracker(each, head, "last", "ce") for each in (batch.repeated(2), batch))
    outputs = Outputs(torch.zeros(4, 0), torch.tensor([[0.0, 1.0]] * 3 + [[math.nan, 0.0]]), torch.zeros(4, 1))
    many.see(many.answer, outputs, torch.zeros(4), is_last=True)
    joined.join(many)
    with pytest.raises(CellError, match="NaN or infinite scores on 1 attacked"):
        joined.moved()


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
