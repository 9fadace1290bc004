from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs
from rrbench_baselines.knn import Knn


def says(features: Tensor) -> Outputs:
    count = len(features)
    return Outputs(features, torch.zeros(count, 2), torch.zeros(count, 0))


def drawn(count: int, width: int = 6, seed: int = 0) -> Outputs:
    return says(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def fitted(rejector: Knn, clean: Outputs) -> Knn:
    rejector.fit(clean, torch.zeros(len(clean.features), dtype=torch.long))
    return rejector


def test_it_is_minus_the_distance_to_the_kth_neighbour_on_the_sphere() -> None:
    clean = says(torch.tensor([[5.0, 0.0], [0.0, 0.1], [-2.0, 0.0], [3.0, 3.0]]))
    query = says(torch.tensor([[7.0, 0.0]]))
    # On the circle the query lies at 0 degrees, the others at 0, 90, 180 and 45: chords of 2 sin(angle / 2).
    chords = [0.0, sqrt(2 - sqrt(2)), sqrt(2), 2.0]
    for k, chord in enumerate(chords, start=1):
        assert fitted(Knn(k=k), clean).certainty(query).item() == pytest.approx(-chord, abs=1e-6)


def test_it_agrees_with_scikit_learn() -> None:
    clean, queries = drawn(80), drawn(30, seed=1)
    units = [part.features.double().numpy() for part in (clean, queries)]
    units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in units]
    distances, _ = NearestNeighbors(n_neighbors=7).fit(units[0]).kneighbors(units[1])
    assert fitted(Knn(k=7), clean).certainty(queries).numpy() == pytest.approx(-distances[:, -1], abs=1e-9)


def test_wrong_training_inputs_count_too_as_published() -> None:
    clean = drawn(10)
    knn = Knn(k=1)
    knn.fit(clean, torch.ones(10, dtype=torch.long))  # all are taken for class 0
    assert len(knn.fitted["references"]) == 10


def test_a_large_training_set_is_sampled_once_for_each_seed() -> None:
    clean = drawn(500)
    first, again, other = (fitted(Knn(references=50, seed=seed), clean).fitted["references"] for seed in (0, 0, 1))
    assert first.shape == (50, 6)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    rows = (first[:, None] == clean.features).all(2).nonzero()[:, 1]
    assert len(rows.unique()) == 50, "every one is a training input, and none comes twice"
    assert 100 < rows.double().mean() < 400, "and they come from everywhere, not from the beginning"


def test_the_stored_bank_stays_small_at_the_size_of_cifar10() -> None:
    clean = says(torch.ones(45_000, 1).expand(45_000, 512))
    bank = fitted(Knn(), clean).fitted
    assert sum(tensor.numel() * tensor.element_size() for tensor in bank.values()) <= 11e6


def test_it_is_made_again_bit_for_bit_from_what_is_stored(tmp_path: Path) -> None:
    knn = fitted(Knn(references=40), drawn(100))
    save_file(knn.fitted, tmp_path / "knn.safetensors")
    again = Knn(references=40)
    again.fitted = load_file(tmp_path / "knn.safetensors")
    assert torch.equal(again.certainty(drawn(20, seed=2)), knn.certainty(drawn(20, seed=2)))


def test_the_gradient_is_the_derivative_and_finite_on_a_reference() -> None:
    clean = drawn(40)
    knn = fitted(Knn(k=3), clean)
    features = drawn(4, seed=3).features.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: knn.certainty(says(moved)), (features,))
    same = torch.cat([clean.features, torch.zeros(1, 6)]).requires_grad_()
    (slope,) = torch.autograd.grad(fitted(Knn(k=1), clean).certainty(says(same)).sum(), same)
    assert slope.isfinite().all()


def test_too_few_training_inputs_are_named() -> None:
    with pytest.raises(CellError, match=r"^knn has 4 training inputs, fewer than k=5$"):
        fitted(Knn(), drawn(4))


@pytest.mark.parametrize("settings", [{"k": 0}, {"k": 11, "references": 10}])
def test_settings_without_meaning_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^k must be at least 1, and at most the number of references"):
        Knn(**settings)
