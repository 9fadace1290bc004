from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Calibration, Moved, Outputs, Victim
from rrbench_attacks.worst_case import WorstCase
from rrbench_baselines.confidence import Confidence


def pixels_as_logits(images: Tensor) -> Outputs:
    """Three classes whose logits are ten times the three pixels: every answer can be written down."""
    logits = 10 * images.flatten(1)
    return Outputs(logits[:, :0], logits, logits[:, :0])


def to_images(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows).view(-1, 1, 1, 3)


CLEAN = to_images([[0.9, 0.1, 0.1], [0.9, 0.1, 0.1], [0.9, 0.1, 0.1]])
BATCH = Batch(CLEAN, torch.tensor([0, 0, 0]), torch.tensor([7, 3, 5]))
SURE_WRONG, SURER_WRONG, UNSURE_WRONG = [0.1, 0.9, 0.1], [0.1, 1.0, 0.1], [0.4, 0.5, 0.1]
DOUBTFUL_RIGHT, SURE_RIGHT = [0.5, 0.4, 0.1], [1.0, 0.0, 0.0]
VICTIM = Victim(pixels_as_logits, Confidence(), Calibration(threshold=0.9, median=0.9, scale=0.1))


def always(rows: list[list[float]], seen: list[list[int]]) -> Callable[[Victim, Batch], Moved]:
    """Return a member that answers by id: 7, 3, 5 are the rows in order."""
    images = dict(zip((7, 3, 5), to_images(rows), strict=True))

    def member(victim: Victim, batch: Batch) -> Moved:
        seen.append(batch.ids.tolist())
        return Moved(torch.stack([images[identifier] for identifier in batch.ids.tolist()]))

    return member


def test_wrong_and_certain_comes_first_then_wrong_then_the_nearest_to_wrong() -> None:
    seen: list[list[int]] = []
    first = always([UNSURE_WRONG, SURE_RIGHT, DOUBTFUL_RIGHT], seen)
    second = always([SURE_WRONG, UNSURE_WRONG, SURE_RIGHT], seen)
    moved = WorstCase().combine(VICTIM, BATCH, [first, second])
    assert torch.equal(moved.images, to_images([SURE_WRONG, UNSURE_WRONG, DOUBTFUL_RIGHT]))


def test_what_is_wrong_and_accepted_already_is_still_made_more_certain() -> None:
    seen: list[list[int]] = []
    first = always([SURE_WRONG, UNSURE_WRONG, SURE_RIGHT], seen)
    second = always([SURER_WRONG, SURE_RIGHT, SURE_RIGHT], seen)
    moved = WorstCase().combine(VICTIM, BATCH, [first, second])
    assert seen == [[7, 3, 5], [7, 3, 5]]
    assert torch.equal(moved.images, to_images([SURER_WRONG, UNSURE_WRONG, CLEAN[2].flatten().tolist()]))


def test_a_member_s_boldest_image_counts_too() -> None:
    def member(victim: Victim, batch: Batch) -> Moved:
        return Moved(to_images([SURE_RIGHT] * len(batch.ids)), to_images([SURE_WRONG] * len(batch.ids)))

    moved = WorstCase().combine(VICTIM, BATCH, [member])
    assert torch.equal(moved.images, to_images([SURE_WRONG] * 3))


def test_without_a_useful_member_the_clean_image_stays() -> None:
    moved = WorstCase().combine(VICTIM, BATCH, [always([SURE_RIGHT] * 3, [])])
    assert torch.equal(moved.images, CLEAN)


def test_a_member_s_nan_is_an_error_and_never_a_robust_image() -> None:
    with pytest.raises(CellError, match="NaN"):
        WorstCase().combine(VICTIM, BATCH, [always([[float("nan")] * 3] * 3, [])])


def test_alone_it_refuses() -> None:
    with pytest.raises(CellError, match="ensemble"):
        WorstCase()(VICTIM, BATCH, Budget("linf", Fraction(1, 10)), None)  # type: ignore[arg-type]


def failing(victim: Victim, batch: Batch) -> Moved:
    raise CellError("this one cannot")


def test_one_attack_that_fails_does_not_take_the_others_along() -> None:
    with pytest.warns(UserWarning, match="this one cannot"):
        moved = WorstCase().combine(VICTIM, BATCH, [failing, always([SURE_WRONG] * 3, [])])
    assert torch.equal(moved.images, to_images([SURE_WRONG] * 3))


def test_when_every_attack_fails_so_does_the_worst_case() -> None:
    with pytest.warns(UserWarning, match="this one cannot"), pytest.raises(CellError, match="this one cannot"):
        WorstCase().combine(VICTIM, BATCH, [failing, failing])
