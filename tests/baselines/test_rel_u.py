import numpy as np
import pytest
import torch
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs
from rrbench_baselines.doctor import Doctor
from rrbench_baselines.rel_u import RelU


def says(probabilities: Tensor) -> Outputs:
    count = len(probabilities)
    return Outputs(torch.zeros(count, 0), probabilities.double().log(), torch.zeros(count, 0))


CLEAN = says(torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.4, 0.5, 0.1], [0.3, 0.2, 0.5]]))
LABELS = torch.tensor([0, 1, 0, 1])  # right, right, wrong, wrong


def test_the_matrix_is_where_wrong_answers_share_their_probability() -> None:
    rel_u = RelU()
    rel_u.fit(CLEAN, LABELS)
    # Means of p_i p_j. Right: 01 (0.08 + 0.12) / 2, 02 (0.08 + 0.04) / 2, 12 (0.01 + 0.12) / 2; wrong: 01
    # (0.2 + 0.06) / 2, 02 (0.04 + 0.15) / 2, 12 (0.05 + 0.1) / 2. Half the difference: 0.015, 0.0175, 0.005.
    expected = [[0.0, 6 / 7, 1.0], [6 / 7, 0.0, 2 / 7], [1.0, 2 / 7, 0.0]]
    torch.testing.assert_close(rel_u.fitted["matrix"], torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_the_certainty_is_one_minus_the_quadratic_form() -> None:
    rel_u = RelU()
    rel_u.fitted = {"matrix": torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0], [0.5, 0.0, 0.0]]).double()}
    # 2 (0.5 * 0.3 * 1 + 0.5 * 0.2 * 0.5) = 0.4.
    assert rel_u.certainty(says(torch.tensor([[0.5, 0.3, 0.2]]))).item() == pytest.approx(0.6)


def test_weight_and_temperature_enter_as_published() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(200, 5, generator=generator)
    labels = torch.randint(5, (200,), generator=generator)
    rel_u = RelU(weight=0.7, tau=1.5)
    rel_u.fit(Outputs(torch.zeros(200, 0), logits, torch.zeros(200, 0)), labels)
    probability = (logits.double() / 1.5).softmax(1).numpy()
    right = (logits.argmax(1) == labels).numpy()
    matrix = np.zeros((5, 5))
    for row in range(5):
        for column in range(5):
            products = probability[:, row] * probability[:, column]
            gain = 0.7 * products[~right].mean() - 0.3 * products[right].mean()
            matrix[row, column] = max(gain, 0) if row != column else 0
    assert rel_u.fitted["matrix"].numpy() == pytest.approx(matrix / matrix.max(), abs=1e-12)
    queries = Outputs(torch.zeros(200, 0), logits, torch.zeros(200, 0))
    expected = 1 - np.einsum("ni,ij,nj->n", probability, matrix / matrix.max(), probability)
    assert rel_u.certainty(queries).numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("labels", [[0, 1, 1, 2], [0, 1, 1, 0]], ids=["no answer is wrong", "no entry is above 0"])
def test_without_anything_to_learn_it_is_the_gini_index(labels: list[int]) -> None:
    rel_u = RelU(weight=0.5 if labels[3] == 2 else 0.0)
    rel_u.fit(CLEAN, torch.tensor(labels))
    torch.testing.assert_close(rel_u.certainty(CLEAN), Doctor().certainty(CLEAN))


def test_without_a_right_answer_there_is_nothing_to_learn_from() -> None:
    with pytest.raises(CellError, match=r"^rel-u needs training inputs that are classified correctly, and has none$"):
        RelU().fit(CLEAN, torch.tensor([1, 0, 0, 1]))


def test_it_finds_the_confusion_that_confidence_does_not_see() -> None:
    """Wrong answers hesitate between 0 and 1, right ones between 0 and 2, by the same amount."""
    right, wrong = torch.tensor([0.6, 0.01, 0.39]), torch.tensor([0.6, 0.39, 0.01])
    rel_u = RelU()
    rel_u.fit(says(torch.stack([right, right, wrong, wrong])), torch.tensor([0, 0, 1, 1]))
    kept, refused = rel_u.certainty(says(torch.stack([right, wrong]))).tolist()
    assert kept > refused


def test_the_gradient_is_the_derivative() -> None:
    rel_u = RelU()
    rel_u.fit(CLEAN, LABELS)
    logits = CLEAN.logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: rel_u.certainty(CLEAN._replace(logits=moved)), (logits,))


@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"weight": -0.1}, {"weight": 1.1}])
def test_settings_without_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^(tau|weight) must be"):
        RelU(**settings)
