"""A hash of a user's own object follows what it does and holds."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

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


def own_function(images: Tensor) -> Tensor:
    found: Tensor = checkpoint(torch.relu, images, use_reentrant=False)
    return found


def test_a_library_s_function_is_told_by_its_name_and_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its globals hold what differs from process to process."""
    before = of_object(own_function)
    monkeypatch.setattr(checkpoints, "get_device_states", object())
    monkeypatch.setattr(checkpoints, "_allowed_determinism_checks_to_fns", {object: {object(), object()}})
    assert of_object(own_function) == before
    one, same, other = (torch.vmap(function) for function in (torch.sin, torch.sin, torch.cos))
    assert of_object(one) == of_object(same) != of_object(other)
    slope, both = torch.func.grad(own_function), torch.func.grad_and_value(own_function)
    assert of_object(slope) == of_object(torch.func.grad(own_function)) != of_object(both)
    twice, thrice = (torch.vmap(lambda value, by=by: by * value) for by in (2, 3))
    assert of_object(twice) != of_object(thrice)


def test_a_class_of_a_module_whose_name_begins_like_a_library_s_counts_by_its_code() -> None:
    made = []
    for factor in (2, 3):
        space = {"__name__": "torch_models"}
        exec(f"class Model:\n    def answer(self):\n        return {factor}", space)
        made.append(of_object(space["Model"]))
    assert made[0] != made[1]


def test_a_network_that_leads_back_to_itself_has_a_hash() -> None:
    """So do the feature extractors of torchvision."""
    one, same, other = Scaled(2.0), Scaled(2.0), Scaled(3.0)
    for network in (one, same, other):
        network.holder = [network]  # type: ignore[assignment]
    assert of_network(one) == of_network(same) != of_network(other)
