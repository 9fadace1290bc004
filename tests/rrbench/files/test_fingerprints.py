"""A hash of a user's own object follows what it does and holds."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from rrbench.files.fingerprints import of_network, of_object


def test_arrays_count_by_their_values_and_numpy_s_masked_has_a_hash_too() -> None:
    one, other = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    assert of_object(one) == of_object(one.copy()) != of_object(other)
    assert of_object(np.ma.masked) == of_object(np.ma.masked) != of_object(one)


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = nn.Linear(2, 2), factor
        nn.init.ones_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.inner(images) * self.factor)


def test_a_network_of_torch_fx_has_a_hash_that_follows_its_graph_and_weights() -> None:
    one, same, other = (nn.Sequential(fx.symbolic_trace(Scaled(factor))) for factor in (2.0, 2.0, 3.0))
    assert of_network(one) == of_network(same) != of_network(other)
    with torch.no_grad():
        next(same.parameters())[0, 0] = 5
    assert of_network(one) != of_network(same)


@pytest.mark.parametrize("make", [torch.jit.script, lambda network: torch.jit.trace(network.eval(), torch.rand(1, 2))])
def test_a_network_of_torch_jit_has_a_hash_that_follows_its_code_constants_and_weights(make: Any) -> None:
    one, same, other = (nn.Sequential(make(Scaled(factor))) for factor in (2.0, 2.0, 3.0))
    assert of_network(one) == of_network(same) != of_network(other)
    with torch.no_grad():
        next(same.parameters())[0, 0] = 5
    assert of_network(one) != of_network(same)


def test_a_network_that_leads_back_to_itself_has_a_hash() -> None:
    """So do the feature extractors of torchvision."""
    one, same, other = Scaled(2.0), Scaled(2.0), Scaled(3.0)
    for network in (one, same, other):
        network.holder = [network]  # type: ignore[assignment]
    assert of_network(one) == of_network(same) != of_network(other)
