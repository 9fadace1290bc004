import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs
from rrbench_baselines.energy import Energy
from rrbench_baselines.vim import Vim

WEIGHT = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
BIAS = torch.tensor([1.0, -2.0])


def says(features: Tensor, weight: Tensor = WEIGHT, bias: Tensor = BIAS) -> Outputs:
    return Outputs(features, features @ weight.to(features.dtype).T + bias, torch.zeros(len(features), 0))


def spread() -> Tensor:
    """Features that vary along the first two axes, a little along the third and hardly along the fourth."""
    noise = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    return noise * torch.tensor([3.0, 2.0, 0.5, 0.1]) + torch.tensor([4.0, 4.0, 0.0, 0.0])


def fitted(rejector: Vim, clean: Outputs) -> Vim:
    rejector.fit(clean, torch.zeros(len(clean.logits), dtype=torch.long))
    return rejector


def test_the_origin_is_where_all_logits_are_zero() -> None:
    """The classifier's weights are found again from what it says of the training inputs."""
    vim = fitted(Vim(), says(spread()))
    torch.testing.assert_close(vim.fitted["origin"], torch.tensor([-1.0, 2.0, 0.0, 0.0]).double(), atol=1e-5, rtol=0)


def test_the_certainty_is_energy_minus_the_scaled_residual() -> None:
    vim = Vim()
    # The residual along the last two axes, 3 and 4 away from the origin.
    vim.fitted = {
        "origin": torch.tensor([1.0, 1.0, 0.0, 0.0]).double(),
        "residual": torch.eye(4)[:, 2:].double(),
        "alpha": torch.tensor(2.0).double(),
    }
    outputs = says(torch.tensor([[9.0, 9.0, 3.0, 4.0]]))
    assert vim.certainty(outputs).item() == pytest.approx(Energy().certainty(outputs).item() - 2 * 5)


def test_it_is_what_the_published_steps_give() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(3, 12, generator=generator), torch.randn(3, generator=generator)
    train = torch.randn(200, 12, generator=generator) * torch.linspace(2, 0.1, 12)
    queries = says(torch.randn(40, 12, generator=generator), weight, bias)
    vim = fitted(Vim(dimensions=5), says(train, weight, bias))
    u = -np.linalg.pinv(weight.double().numpy()) @ bias.double().numpy()
    centred = train.double().numpy() - u
    values, vectors = np.linalg.eigh(EmpiricalCovariance(assume_centered=True).fit(centred).covariance_)
    residual = vectors[:, np.argsort(-values)[5:]]
    largest = says(train, weight, bias).logits.double().numpy().max(1)
    alpha = largest.mean() / np.linalg.norm(centred @ residual, axis=1).mean()
    virtual = alpha * np.linalg.norm((queries.features.double().numpy() - u) @ residual, axis=1)
    expected = np.log(np.exp(queries.logits.double().numpy()).sum(1)) - virtual
    assert vim.certainty(queries).numpy() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("width", "dimensions"), [(2048, 1000), (768, 512), (512, 256), (7, 3)])
def test_by_default_the_principal_subspace_has_the_published_size_and_half_of_small_widths(
    width: int, dimensions: int
) -> None:
    assert Vim().principal(width) == dimensions


def test_an_input_off_the_subspace_of_the_training_inputs_is_refused_first() -> None:
    vim = fitted(Vim(dimensions=2), says(spread()))
    usual, odd = torch.tensor([[4.0, 4.0, 0.0, 0.0]]), torch.tensor([[4.0, 4.0, 0.0, 5.0]])
    assert torch.equal(says(usual).logits, says(odd).logits)
    assert vim.certainty(says(usual)) > vim.certainty(says(odd))


def test_the_gradient_is_the_derivative_and_finite_where_the_residual_is_zero() -> None:
    vim = fitted(Vim(dimensions=2), says(spread()))
    features = spread()[:4].double().requires_grad_()
    weight, bias = WEIGHT.double(), BIAS.double()
    assert torch.autograd.gradcheck(lambda moved: vim.certainty(says(moved, weight, bias)), (features,))
    origin = vim.fitted["origin"][None].clone().requires_grad_()
    (slope,) = torch.autograd.grad(vim.certainty(says(origin, weight, bias)).sum(), origin)
    assert slope.isfinite().all()


def test_a_subspace_that_leaves_no_residual_is_named() -> None:
    with pytest.raises(CellError, match=r"^vim: a principal subspace of 4 dimensions leaves nothing of a width of 4"):
        fitted(Vim(dimensions=4), says(spread()))
    flat = spread() * torch.tensor([1.0, 1.0, 0.0, 0.0])
    with pytest.raises(CellError, match=r"^vim: the training features have no residual beyond 2 dimensions"):
        fitted(Vim(dimensions=2), says(flat))


def test_no_dimension_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^dimensions must be at least 1"):
        Vim(dimensions=0)
