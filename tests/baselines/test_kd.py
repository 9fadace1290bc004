from math import exp, log
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.neighbors import KernelDensity
from torch import Tensor
from torch.nn import functional as F

from on_device import on_device
from rrbench.errors import CellError
from rrbench.protocols import Outputs
from rrbench_baselines import references
from rrbench_baselines.kd import Kd


def says(features: Tensor, predicted: Tensor | list[int], classes: int) -> Outputs:
    """Outputs of a network that gives these features and predictions."""
    logits = F.one_hot(torch.as_tensor(predicted, device=features.device), classes).float()
    return Outputs(features, logits, features.new_zeros(len(features), 0))


def two_blobs(count: int, width: int = 8, seed: int = 0) -> tuple[Outputs, Tensor]:
    """Two classes round 0 and round 2, all correctly classified."""
    labels = torch.arange(count) % 2
    noise = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return says(noise + 2.0 * labels[:, None], labels, 2), labels


def fitted(rejector: Kd, count: int = 60) -> Kd:
    rejector.fit(*two_blobs(count))
    return rejector


def test_the_certainty_is_the_log_of_the_mean_kernel_of_the_predicted_class() -> None:
    clean = says(torch.tensor([[0.0, 0.0], [6.0, 8.0], [3.0, 4.0]]), [0, 1, 0], 2)
    kd = Kd(g=0.04)
    kd.fit(clean, torch.tensor([0, 1, 0]))
    certainty = kd.certainty(says(torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]), [0, 1, 0, 1], 2))
    # Squared distances 0 and 25, so kernels 1 and 1/e; 100 to the other class's one reference.
    expected = [log((1 + exp(-1)) / 2), -4.0, log((1 + exp(-1)) / 2), 0.0]
    assert certainty.tolist() == pytest.approx(expected, abs=1e-12)
    assert expected[0] == pytest.approx(-0.379885, abs=1e-6)


def test_it_agrees_with_scikit_learns_kernel_density() -> None:
    kd = fitted(Kd(g=0.1))
    queries, _ = two_blobs(40, seed=1)
    clean, labels = two_blobs(60)
    bandwidth = (2 * 0.1) ** -0.5
    constant = 8 / 2 * log(2 * np.pi * bandwidth**2)  # scikit-learn normalises its kernel
    for label in (0, 1):
        oracle = KernelDensity(bandwidth=bandwidth).fit(clean.features[labels == label].double().numpy())
        chosen = queries.logits.argmax(1) == label
        expected = oracle.score_samples(queries.features[chosen].double().numpy()) + constant
        assert kd.certainty(queries)[chosen].numpy() == pytest.approx(expected, rel=1e-9)


def test_only_the_first_correct_inputs_of_each_class_become_references() -> None:
    features = torch.arange(6.0)[:, None]
    kd = Kd(references=2)
    # Inputs 0 and 4 are wrong; input 5 comes too late.
    kd.fit(says(features, [1, 0, 0, 1, 0, 0], 2), torch.tensor([0, 0, 0, 1, 1, 0]))
    assert kd.fitted["references"].flatten().tolist() == [1.0, 2.0, 3.0]
    assert kd.fitted["classes"].tolist() == [0, 0, 1]


def test_a_typical_correct_input_is_kept_before_an_odd_wrong_one() -> None:
    queries = says(torch.tensor([[0.0] * 8, [2.0] * 8, [2.0] * 8, [50.0] * 8]), [0, 1, 0, 1], 2)
    typical_0, typical_1, wrong, odd = fitted(Kd(g=0.1)).certainty(queries).tolist()
    assert min(typical_0, typical_1) > wrong > odd


def test_far_inputs_whose_density_underflows_keep_their_order() -> None:
    far = torch.tensor([1e3, 2e3, 1e4])[:, None].repeat(1, 8)
    certainty = fitted(Kd(g=1.0)).certainty(says(far, [0, 0, 0], 2))
    assert certainty.exp().tolist() == [0.0, 0.0, 0.0]
    assert certainty.isfinite().all()
    assert certainty[0] > certainty[1] > certainty[2]


def test_equal_inputs_tie_exactly() -> None:
    one, _ = two_blobs(1, seed=3)
    certainty = fitted(Kd()).certainty(one.at(torch.zeros(5, dtype=torch.long)))
    assert certainty.unique().numel() == 1


def test_the_gradient_is_the_derivative() -> None:
    kd = fitted(Kd(g=0.1))
    queries, _ = two_blobs(5, seed=4)
    features = queries.features.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: kd.certainty(queries._replace(features=moved)), (features,))


def test_the_gradient_is_finite_on_a_reference_and_far_away() -> None:
    kd = fitted(Kd(g=1.0))
    clean, _ = two_blobs(60)
    features = torch.cat([clean.features, clean.features + 1e4]).requires_grad_()
    kd.certainty(says(features, clean.logits.argmax(1).repeat(2), 2)).sum().backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()
    assert (features.grad[60:] < 0).all()


def test_the_size_and_the_order_of_a_batch_change_nothing() -> None:
    kd = fitted(Kd(g=0.1))
    queries, _ = two_blobs(30, seed=5)
    whole = kd.certainty(queries)
    one_by_one = torch.cat([kd.certainty(queries.at(slice(row, row + 1))) for row in range(30)])
    torch.testing.assert_close(one_by_one, whole, rtol=1e-6, atol=0)
    torch.testing.assert_close(kd.certainty(queries.at(torch.arange(29, -1, -1))).flip(0), whole, rtol=1e-6, atol=0)
    assert kd.certainty(queries.at(slice(0, 0))).shape == (0,)


def test_small_chunks_give_the_same_scores_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    kd = fitted(Kd(g=0.1))
    queries, _ = two_blobs(30, seed=5)
    answers = []
    for chunk in (references.CHUNK, 200):  # 60 references: 3 queries at a time
        monkeypatch.setattr(references, "CHUNK", chunk)
        features = queries.features.clone().requires_grad_()
        certainty = kd.certainty(queries._replace(features=features))
        (gradient,) = torch.autograd.grad(certainty.sum(), features)
        answers.append((certainty.detach(), gradient))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-6, atol=0)


def test_settings_and_fitted_tensors_alone_give_the_same_scores_bit_for_bit(tmp_path: Path) -> None:
    kd = fitted(Kd(g=0.1))
    save_file(kd.fitted, tmp_path / "kd.safetensors")
    again = Kd(g=0.1)
    again.fitted = load_file(tmp_path / "kd.safetensors")
    queries, _ = two_blobs(30, seed=6)
    assert torch.equal(again.certainty(queries), kd.certainty(queries))


def test_a_class_without_a_correct_input_is_named() -> None:
    with pytest.raises(CellError, match=r"^class 2 has 0 of its training inputs classified correctly"):
        Kd().fit(says(torch.zeros(4, 3), [0, 1, 0, 0], 3), torch.tensor([0, 1, 0, 2]))


def test_a_network_without_features_is_refused() -> None:
    nothing = says(torch.zeros(4, 0), [0, 1, 0, 1], 2)
    with pytest.raises(CellError, match=r"needs features, and this network gives none$"):
        Kd().fit(nothing, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(CellError, match=r"needs features, and this network gives none$"):
        fitted(Kd()).certainty(nothing)


def test_features_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(CellError, match=r"NaN or infinite features on the training inputs"):
        Kd().fit(says(torch.tensor([[0.0], [torch.nan]]), [0, 1], 2), torch.tensor([0, 1]))


@pytest.mark.parametrize("settings", [{"g": 0.0}, {"g": float("nan")}, {"references": 0}])
def test_settings_without_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"g must be above 0, and references at least 1"):
        Kd(**settings)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_cpu_and_gpu_agree() -> None:
    (clean, labels), (queries, _) = two_blobs(600, width=512), two_blobs(200, width=512, seed=1)
    cuda = torch.device("cuda")
    here, there = Kd(), Kd()
    here.fit(clean, labels)
    there.fit(on_device(clean, cuda), labels.to(cuda))
    for batch in (queries, clean):
        certainty = there.certainty(on_device(batch, cuda)).cpu()
        torch.testing.assert_close(certainty, here.certainty(batch), rtol=1e-4, atol=0)
