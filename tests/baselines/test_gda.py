from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.spatial.distance import cdist
from sklearn.covariance import EmpiricalCovariance
from torch import Tensor
from torch.nn import functional as F

from on_device import on_device
from rrbench.errors import CellError
from rrbench.protocols import Outputs
from rrbench_baselines import references
from rrbench_baselines.gda import Gda, GdaStar, Gmm, Inverse

ALL = pytest.mark.parametrize("kind", [Gda, GdaStar, Gmm])
INVERSES = pytest.mark.parametrize("inverse", get_args(Inverse))


def says(features: Tensor, predicted: Tensor | list[int], classes: int) -> Outputs:
    """Outputs of a network that gives these features and predictions."""
    logits = F.one_hot(torch.as_tensor(predicted, device=features.device), classes).float()
    return Outputs(features, logits, features.new_zeros(len(features), 0))


def three_blobs(count: int, width: int = 6, seed: int = 0) -> tuple[Outputs, Tensor]:
    """Three classes with correlated channels, each class spread in its own way; all correctly classified."""
    shape = torch.Generator().manual_seed(100)
    centres, mixing = torch.randn(3, width, generator=shape), torch.randn(3, width, width, generator=shape)
    labels = torch.arange(count) % 3
    features = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    for label in range(3):  # one mixing at a time: one for each input would take gigabytes
        spread = torch.eye(width) + 0.5 * mixing[label] / width**0.5
        features[labels == label] = centres[label] + features[labels == label] @ spread
    return says(features, labels, 3), labels


def fitted(rejector: Gda, count: int = 300) -> Gda:
    rejector.fit(*three_blobs(count))
    return rejector


def by_hand() -> tuple[Outputs, Tensor]:
    """Class 0 round (0, 0) with variances 1/2 and 1/2; class 1 round (10, 0) with 2 and 1/2; pooled 5/4 and 1/2."""
    round_0 = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    round_1 = torch.tensor([[12.0, 0.0], [8.0, 0.0], [10.0, 1.0], [10.0, -1.0]])
    labels = torch.tensor([0] * 4 + [1] * 4)
    return says(torch.cat([round_0, round_1]), labels, 2), labels


@INVERSES
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # To class 0 and 1: (1, 1) lies 2.8 and 66.8 away, (7, 0) 39.2 and 7.2.
        (Gda, [-2.8, -7.2, -2.8, -7.2]),
        # To class 0 and 1: (1, 1) lies 4 and 42.5 away, (7, 0) 98 and 4.5.
        (GdaStar, [-4.0, -4.5, -4.0, -4.5]),
        (Gmm, [-4.0, -98.0, -42.5, -4.5]),
    ],
)
def test_the_certainty_is_the_distance_worked_out_by_hand(
    kind: type[Gda], expected: list[float], inverse: Inverse
) -> None:
    rejector = kind(inverse)
    rejector.fit(*by_hand())
    queries = says(torch.tensor([[1.0, 1.0], [7.0, 0.0]]).repeat(2, 1), [0, 0, 1, 1], 2)
    tolerance = 1e-5 if inverse == "ridge" else 1e-6
    assert rejector.certainty(queries).tolist() == pytest.approx(expected, rel=tolerance)


def test_ridge_adds_a_millionth_of_the_mean_variance() -> None:
    rejector = GdaStar("ridge")
    rejector.fit(*by_hand())
    # Class 1: variances 2 and 1/2, so 1.25e-6 is added to each.
    expected = [1 / (2 + 1.25e-6), 1 / (0.5 + 1.25e-6)]
    assert rejector.fitted["precision"][1].diagonal().tolist() == pytest.approx(expected, rel=1e-9)


def test_a_covariance_per_class_agrees_with_scikit_learn() -> None:
    clean, labels = three_blobs(300)
    queries, _ = three_blobs(60, seed=1)
    distances = np.stack(
        [
            EmpiricalCovariance().fit(clean.features[labels == label].double().numpy()).mahalanobis(queries.features)
            for label in range(3)
        ]
    )
    assert fitted(GdaStar()).certainty(queries).numpy() == pytest.approx(-distances.min(0), rel=1e-6)
    predicted = queries.logits.argmax(1).numpy()
    expected = -distances[predicted, np.arange(60)]
    assert fitted(Gmm()).certainty(queries).numpy() == pytest.approx(expected, rel=1e-6)


def test_a_shared_covariance_agrees_with_scipy() -> None:
    clean, labels = three_blobs(300)
    queries, _ = three_blobs(20, seed=1)
    features = clean.features.double().numpy()
    means = np.stack([features[labels == label].mean(0) for label in range(3)])
    precision = np.linalg.inv(np.cov((features - means[labels]).T, bias=True))
    distances = cdist(queries.features.double().numpy(), means, "mahalanobis", VI=precision)
    expected = -(distances.min(1) ** 2)
    assert fitted(Gda()).certainty(queries).numpy() == pytest.approx(expected, rel=1e-6)


@ALL
def test_only_correct_inputs_enter_the_fit(kind: type[Gda]) -> None:
    clean, labels = by_hand()
    wrong = says(torch.full((5, 2), 1e3), [0, 1, 0, 1, 0], 2)
    mixed = Outputs(*(torch.cat(parts) for parts in zip(clean, wrong, strict=True)))
    with_wrong, without = kind(), kind()
    with_wrong.fit(mixed, torch.cat([labels, torch.tensor([1, 0, 1, 0, 1])]))
    without.fit(clean, labels)
    assert all(torch.equal(with_wrong.fitted[name], without.fitted[name]) for name in ("means", "precision"))


@ALL
def test_a_typical_correct_input_is_kept_before_an_odd_wrong_one(kind: type[Gda]) -> None:
    rejector = kind()
    rejector.fit(*by_hand())
    queries = says(torch.tensor([[0.0, 0.5], [10.0, 0.5], [5.0, 9.0]]), [0, 1, 0], 2)
    typical_0, typical_1, odd = rejector.certainty(queries).tolist()
    assert min(typical_0, typical_1) > odd
    assert rejector.certainty(says(torch.tensor([[10.0, 0.0], [0.0, 0.0]]), [1, 0], 2)).tolist() == [0.0, 0.0]


@ALL
def test_far_inputs_do_not_saturate_and_equal_ones_tie(kind: type[Gda]) -> None:
    rejector = fitted(kind())
    far = torch.tensor([1e4, 1e5, 1e6, 1e6])[:, None].repeat(1, 6)
    certainty = rejector.certainty(says(far, [0, 0, 0, 0], 3)).tolist()
    assert certainty[0] > certainty[1] > certainty[2] == certainty[3] > -np.inf


@ALL
def test_the_gradient_is_the_derivative(kind: type[Gda]) -> None:
    rejector = fitted(kind())
    queries, _ = three_blobs(5, seed=4)
    features = queries.features.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: rejector.certainty(queries._replace(features=moved)), (features,))


@ALL
def test_the_gradient_is_zero_and_finite_at_a_mean(kind: type[Gda]) -> None:
    rejector = fitted(kind())
    features = rejector.fitted["means"].clone().requires_grad_()
    rejector.certainty(says(features, [0, 1, 2], 3)).sum().backward()
    assert features.grad is not None
    assert features.grad.abs().max() < 1e-9


@ALL
def test_the_size_and_the_order_of_a_batch_change_nothing(kind: type[Gda]) -> None:
    rejector = fitted(kind())
    queries, _ = three_blobs(30, seed=5)
    whole = rejector.certainty(queries)
    one_by_one = torch.cat([rejector.certainty(queries.at(slice(row, row + 1))) for row in range(30)])
    backwards = rejector.certainty(queries.at(torch.arange(29, -1, -1))).flip(0)
    torch.testing.assert_close(one_by_one, whole, rtol=1e-6, atol=0)
    torch.testing.assert_close(backwards, whole, rtol=1e-6, atol=0)
    assert rejector.certainty(queries.at(slice(0, 0))).shape == (0,)


@ALL
def test_small_chunks_give_the_same_scores_and_gradients(kind: type[Gda], monkeypatch: pytest.MonkeyPatch) -> None:
    rejector = fitted(kind())
    queries, _ = three_blobs(30, seed=5)
    answers = []
    for chunk in (references.CHUNK, 60):  # 3 classes of width 6: 3 queries at a time
        monkeypatch.setattr(references, "CHUNK", chunk)
        features = queries.features.clone().requires_grad_()
        certainty = rejector.certainty(queries._replace(features=features))
        (gradient,) = torch.autograd.grad(certainty.sum(), features)
        answers.append((certainty.detach(), gradient))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-6, atol=1e-9)


@ALL
@INVERSES
def test_settings_and_fitted_tensors_alone_give_the_same_scores_bit_for_bit(
    kind: type[Gda], inverse: Inverse, tmp_path: Path
) -> None:
    rejector = fitted(kind(inverse))
    save_file(rejector.fitted, tmp_path / "gda.safetensors")
    again = kind(inverse)
    again.fitted = load_file(tmp_path / "gda.safetensors")
    queries, _ = three_blobs(30, seed=6)
    assert torch.equal(again.certainty(queries), rejector.certainty(queries))


@ALL
@INVERSES
def test_a_channel_that_never_fires_changes_nothing_until_it_does(kind: type[Gda], inverse: Inverse) -> None:
    clean, labels = three_blobs(300)
    queries, _ = three_blobs(30, seed=7)
    dead = kind(inverse)
    dead.fit(clean._replace(features=F.pad(clean.features, (0, 1))), labels)
    silent = dead.certainty(queries._replace(features=F.pad(queries.features, (0, 1))))
    firing = dead.certainty(queries._replace(features=F.pad(queries.features, (0, 1), value=1e-3)))
    torch.testing.assert_close(silent, fitted(kind(inverse)).certainty(queries), rtol=1e-4, atol=0)
    assert firing.isfinite().all()
    assert (firing < silent).all()


@ALL
@INVERSES
def test_channels_of_very_different_size_are_no_singularity(kind: type[Gda], inverse: Inverse) -> None:
    clean, labels = three_blobs(300)
    sizes = torch.tensor([1e-4, 1e-2, 1.0, 1.0, 1e2, 1e4])
    rejector = kind(inverse)
    rejector.fit(clean._replace(features=clean.features * sizes), labels)
    queries, _ = three_blobs(30, seed=7)
    scaled = rejector.certainty(queries._replace(features=queries.features * sizes))
    assert scaled.isfinite().all()
    if inverse == "fp64":
        torch.testing.assert_close(scaled, fitted(kind()).certainty(queries), rtol=1e-3, atol=0)


@ALL
@INVERSES
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_too_few_inputs_for_the_width_give_a_clear_error_or_finite_scores(
    kind: type[Gda], inverse: Inverse, scale: float
) -> None:
    clean, labels = three_blobs(30, width=64)
    rejector, refusal = kind(inverse), ""
    try:
        rejector.fit(clean._replace(features=scale * clean.features), labels)
    except CellError as error:
        refusal = str(error)
    if refusal:
        assert inverse != "ridge"
        assert refusal.endswith(f"is singular in {inverse}: set inverse=ridge")
        return
    for batch in (clean, three_blobs(30, width=64, seed=1)[0]):
        features = (scale * batch.features).requires_grad_()
        certainty = rejector.certainty(batch._replace(features=features))
        (gradient,) = torch.autograd.grad(certainty.sum(), features)
        assert certainty.isfinite().all()
        assert gradient.isfinite().all()
        if inverse != "fp32":  # in float32 such an inverse is noise, and not even positive
            assert (certainty <= 1e-6 * certainty.abs().max()).all()


def test_a_singular_covariance_is_named_with_the_way_out() -> None:
    clean, labels = three_blobs(300)
    doubled = clean._replace(features=1e3 * clean.features.repeat(1, 2))
    with pytest.raises(
        CellError, match=r"^the shared covariance \(300 inputs, width 12\) is singular in fp64: set inv"
    ):
        Gda().fit(doubled, labels)
    with pytest.raises(CellError, match=r"^the covariance of class 0 \(100 inputs, width 12\) is singular in fp64"):
        Gmm().fit(doubled, labels)
    rejector = Gmm("ridge")
    rejector.fit(doubled, labels)
    assert rejector.certainty(doubled).isfinite().all()


def test_a_class_without_enough_correct_inputs_is_named() -> None:
    clean, labels = says(torch.randn(6, 2), [0, 0, 0, 1, 1, 1], 3), torch.tensor([0, 0, 0, 1, 2, 2])
    with pytest.raises(CellError, match=r"^class 2 has 0 of its training inputs classified correctly"):
        Gda().fit(clean, labels)
    for kind in (GdaStar, Gmm):
        with pytest.raises(CellError, match=r"^class 1 has 1 of its training inputs.*, and this rejector needs 2 or m"):
            kind().fit(clean, labels)


@ALL
def test_a_network_without_features_is_refused(kind: type[Gda]) -> None:
    nothing = says(torch.zeros(6, 0), [0, 1, 2] * 2, 3)
    with pytest.raises(CellError, match=r"needs features, and this network gives none$"):
        kind().fit(nothing, torch.tensor([0, 1, 2] * 2))
    with pytest.raises(CellError, match=r"needs features, and this network gives none$"):
        fitted(kind()).certainty(nothing)


@pytest.mark.gpu
@ALL
@INVERSES
def test_cpu_and_gpu_agree(kind: type[Gda], inverse: Inverse) -> None:
    (clean, labels), (queries, _) = three_blobs(6000, width=512), three_blobs(200, width=512, seed=1)
    clean = clean._replace(features=clean.features * (torch.arange(512) > 10))  # with dead channels, as networks have
    cuda = torch.device("cuda")
    here, there = kind(inverse), kind(inverse)
    here.fit(clean, labels)
    there.fit(on_device(clean, cuda), labels.to(cuda))
    for batch in (queries, clean.at(slice(0, 200))):
        certainty = there.certainty(on_device(batch, cuda)).cpu()
        torch.testing.assert_close(certainty, here.certainty(batch), rtol=1e-4, atol=0)
