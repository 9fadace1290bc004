import resource
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn import functional as F

from rrbench.errors import CellError
from rrbench.protocols import Outputs
from rrbench_baselines import references
from rrbench_baselines.lid import Lid
from rrbench_baselines.references import squared_distances


def says(features: Tensor, predicted: Tensor | list[int] | None = None, classes: int = 2) -> Outputs:
    """Outputs of a network that gives these features and predictions (all class 0 unless told)."""
    predicted = torch.zeros(len(features), dtype=torch.long) if predicted is None else torch.as_tensor(predicted)
    logits = F.one_hot(predicted, classes).float().to(features.device)
    return Outputs(features, logits, features.new_zeros(len(features), 0))


def cloud(count: int, width: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def fitted(rejector: Lid, features: Tensor) -> Lid:
    rejector.fit(says(features), torch.zeros(len(features), dtype=torch.long, device=features.device))
    return rejector


def test_the_certainty_is_minus_the_dimension_worked_out_by_hand() -> None:
    lid = fitted(Lid(k=4), torch.tensor([[8.0], [100.0], [1.0], [4.0], [2.0]]))
    # From 0: distances 1, 2, 4, 8, whose logarithms lie 1.5 log 2 below that of 8 on average.
    # From 16: 8, 12, 14, 15.
    expected = [-1 / (1.5 * log(2)), -4 / (log(15 / 8) + log(15 / 12) + log(15 / 14))]
    assert lid.certainty(says(torch.tensor([[0.0], [16.0]]))).tolist() == pytest.approx(expected, rel=1e-9)
    assert expected[0] == pytest.approx(-0.961797, abs=1e-6)


def test_it_agrees_with_scikit_learns_nearest_neighbours() -> None:
    points, queries = cloud(500), cloud(50, seed=1)
    oracle = NearestNeighbors(n_neighbors=20).fit(points.double().numpy())
    distances, _ = oracle.kneighbors(queries.double().numpy())
    expected = 1 / np.mean(np.log(distances / distances[:, -1:]), axis=1)
    assert fitted(Lid(k=20), points).certainty(says(queries)).numpy() == pytest.approx(expected, rel=1e-9)


def test_points_of_a_low_dimensional_set_have_its_dimension() -> None:
    generator = torch.Generator().manual_seed(0)
    square = torch.rand(10_200, 2, generator=generator) @ torch.randn(2, 50, generator=generator)
    certainty = fitted(Lid(k=100), square[:10_000]).certainty(says(square[10_000:]))
    assert certainty.median().item() == pytest.approx(-2.0, rel=0.1)


def test_only_the_first_correct_inputs_become_references() -> None:
    lid = Lid(k=2, references=3)
    lid.fit(says(torch.arange(6.0)[:, None], [1, 0, 0, 1, 1, 0]), torch.tensor([0, 0, 0, 1, 0, 0]))
    assert lid.fitted["references"].flatten().tolist() == [1.0, 2.0, 3.0]


def test_a_typical_correct_input_is_kept_before_an_odd_wrong_one() -> None:
    lid = fitted(Lid(k=20), cloud(500))
    typical, odd = lid.certainty(says(torch.stack([torch.zeros(8), torch.full((8,), 50.0)]))).tolist()
    assert typical > odd


def test_equal_distances_give_the_lowest_certainty_and_never_a_positive_one() -> None:
    corners = torch.cat([torch.eye(8), -torch.eye(8)]) * 0.3
    lid = fitted(Lid(k=16), corners)
    assert lid.certainty(says(torch.zeros(1, 8))).tolist() == pytest.approx([-1e9])
    dead = fitted(Lid(k=16), torch.zeros(20, 8))
    assert dead.certainty(says(torch.zeros(3, 8))).tolist() == pytest.approx([-1e9] * 3)


def test_equal_inputs_tie_exactly() -> None:
    certainty = fitted(Lid(k=20), cloud(500)).certainty(says(cloud(1, seed=3).repeat(5, 1)))
    assert certainty.unique().numel() == 1


def test_the_gradient_is_the_derivative() -> None:
    lid = fitted(Lid(k=10), cloud(50))
    features = cloud(5, seed=4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: lid.certainty(says(moved)), (features,))


@pytest.mark.parametrize("points", [cloud(50), torch.zeros(50, 8), 1e3 + cloud(50)], ids=["cloud", "dead", "offset"])
def test_score_and_gradient_are_finite_on_a_reference(points: Tensor) -> None:
    features = points.clone().requires_grad_()
    certainty = fitted(Lid(k=10), points).certainty(says(features))
    certainty.sum().backward()
    assert features.grad is not None
    assert certainty.isfinite().all()
    assert features.grad.isfinite().all()


def test_a_query_on_a_reference_is_scored_the_same_wherever_it_lies() -> None:
    points = cloud(50, width=512)
    where_it_lies = fitted(Lid(k=10), points).certainty(says(points))
    alone = torch.stack([fitted(Lid(k=10), points).certainty(says(points[row : row + 1]))[0] for row in range(50)])
    shuffled = fitted(Lid(k=10), points.flip(0)).certainty(says(points))
    torch.testing.assert_close(alone, where_it_lies, rtol=1e-6, atol=0)
    torch.testing.assert_close(shuffled, where_it_lies, rtol=1e-6, atol=0)


def test_the_size_of_a_batch_changes_nothing() -> None:
    lid = fitted(Lid(k=20), cloud(500))
    queries = says(cloud(30, seed=5))
    one_by_one = torch.cat([lid.certainty(queries.at(slice(row, row + 1))) for row in range(30)])
    torch.testing.assert_close(one_by_one, lid.certainty(queries), rtol=1e-6, atol=0)
    assert lid.certainty(queries.at(slice(0, 0))).shape == (0,)


def test_small_chunks_give_the_same_scores_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    lid = fitted(Lid(k=20), cloud(500))
    answers = []
    for chunk in (references.CHUNK, 2000):  # 4 queries at a time
        monkeypatch.setattr(references, "CHUNK", chunk)
        features = cloud(30, seed=5).requires_grad_()
        certainty = lid.certainty(says(features))
        (gradient,) = torch.autograd.grad(certainty.sum(), features)
        answers.append((certainty.detach(), gradient))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_no_piece_exceeds_the_chunk(monkeypatch: pytest.MonkeyPatch, needs_gradient: bool) -> None:
    monkeypatch.setattr(references, "CHUNK", 1000)
    seen: list[int] = []

    def score(some: Outputs) -> Tensor:
        seen.append(len(some.features))
        return some.features.square().sum(1)

    queries = says(cloud(64).requires_grad_(needs_gradient))
    certainty = references.in_chunks(score, queries, numbers_per_input=100)
    assert seen == [10] * 6 + [4]
    if needs_gradient:
        certainty.sum().backward()
        assert sorted(seen) == sorted(([10] * 6 + [4]) * 2)  # computed again, piece by piece, on the way back
    assert references.in_chunks(score, queries, numbers_per_input=5000).shape == (64,)  # one at a time, at worst
    assert seen[-1] == 1


def test_ten_thousand_queries_and_references_fit_into_two_gibibytes() -> None:
    lid = fitted(Lid(k=100), cloud(10_000, width=64))
    queries = says(cloud(10_000, width=64, seed=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lid.certainty(queries)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 2 * 2**30


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_squared_distances_are_accurate_where_float32_is_not(offset: float) -> None:
    points = offset + cloud(200, width=640)
    queries = points + 1e-2 * cloud(200, width=640, seed=1)  # each close to one reference
    exact = torch.cdist(queries.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(squared_distances(queries, points), exact, rtol=1e-6, atol=0)
    single = queries.square().sum(1, keepdim=True) + points.square().sum(1) - 2 * queries @ points.T
    assert (single / exact - 1).abs().max() > 1e-3


def test_squared_distances_keep_their_precision_under_autocast() -> None:
    points, queries = cloud(20), cloud(10, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        automatic = squared_distances(queries, points)
    assert torch.equal(automatic, squared_distances(queries, points))


def test_settings_and_fitted_tensors_alone_give_the_same_scores_bit_for_bit(tmp_path: Path) -> None:
    lid = fitted(Lid(k=20), cloud(500))
    save_file(lid.fitted, tmp_path / "lid.safetensors")
    again = Lid(k=20)
    again.fitted = load_file(tmp_path / "lid.safetensors")
    queries = says(cloud(30, seed=6))
    assert torch.equal(again.certainty(queries), lid.certainty(queries))


def test_fewer_references_than_neighbours_are_counted() -> None:
    with pytest.raises(CellError, match=r"^lid has 2 correctly classified training inputs, fewer than k=3$"):
        Lid(k=3).fit(says(torch.zeros(4, 3), [0, 1, 0, 0]), torch.tensor([0, 1, 1, 1]))


def test_a_network_without_features_is_refused() -> None:
    with pytest.raises(CellError, match=r"needs features, and this network gives none$"):
        fitted(Lid(k=2), torch.zeros(4, 0))
    with pytest.raises(CellError, match=r"needs features, and this network gives none$"):
        fitted(Lid(k=2), torch.zeros(4, 3)).certainty(says(torch.zeros(4, 0)))


@pytest.mark.parametrize("settings", [{"k": 1}, {"k": 20, "references": 10}])
def test_settings_without_meaning_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"k must be at least 2, and at most the number of references"):
        Lid(**settings)


@pytest.mark.gpu
def test_cpu_and_gpu_agree() -> None:
    points, queries = cloud(2000, width=512).relu(), cloud(200, width=512, seed=1).relu()
    here, there = fitted(Lid(k=100), points), fitted(Lid(k=100), points.cuda())
    for batch in (queries, points[:200]):
        certainty = there.certainty(says(batch.cuda())).cpu()
        torch.testing.assert_close(certainty, here.certainty(says(batch)), rtol=1e-4, atol=0)
