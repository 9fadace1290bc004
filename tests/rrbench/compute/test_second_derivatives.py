"""The fast second derivative of a network is the one that PyTorch computes."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.second_derivatives import FastSecondDerivatives
from rrbench.networks.preact_resnet import ResidualBackbone

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def slope(network: nn.Module, images: Tensor, *, is_fast: bool) -> Tensor:
    """Return the l1 norm of the gradient of an output's sum, which can be differentiated again."""
    with FastSecondDerivatives() if is_fast else nullcontext():
        answers = network(images)
    (gradient,) = torch.autograd.grad(answers.sigmoid().sum(), images, create_graph=True)
    return gradient.abs().sum()


def gradients(network: nn.Module, images: Tensor, *, is_fast: bool) -> list[Tensor]:
    """Return the second derivatives: of the images, then of every parameter."""
    own, given = copy.deepcopy(network), images.clone().requires_grad_()
    slope(own, given, is_fast=is_fast).backward()
    return [each.grad for each in (given, *own.parameters()) if each.grad is not None]


@pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    "settings",
    [{"padding": 1}, {"stride": 2, "padding": 1, "bias": False}, {"groups": 2}, {"dilation": 2, "padding": 2}],
    ids=str,
)
def test_convolutions_of_every_form_have_pytorchs_second_derivatives(
    settings: dict[str, Any], is_training: bool
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, **settings), nn.BatchNorm2d(4), nn.Softplus(), nn.Conv2d(4, 2, 1, bias=False)
    )
    network.double().train(is_training)
    images = torch.rand(3, 2, 9, 9, dtype=torch.float64)
    plain, fast = (gradients(network, images, is_fast=is_fast) for is_fast in (False, True))
    assert len(plain) == 1 + len([*network.parameters()])
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_so_has_a_residual_network_also_in_bf16(device: str) -> None:
    torch.manual_seed(0)
    network = ResidualBackbone(3, 8, (8, 16), 1).to(device).train()
    images = torch.rand(8, 3, 8, 8, device=device)
    plain, fast = (gradients(network, images, is_fast=is_fast) for is_fast in (False, True))
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    with torch.autocast(device, dtype=torch.bfloat16):
        low = gradients(network, images, is_fast=True)
    whole, rough = (torch.cat([each.flatten() for each in parts]) for parts in (plain, low))
    assert F.cosine_similarity(whole, rough, dim=0) > 0.95
    assert all(each.dtype == torch.float32 for each in low)


def test_a_batch_norm_inside_the_block_is_replaced_and_learns_the_same_statistics() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3).double().train()
    fast, maps = copy.deepcopy(plain), torch.randn(4, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    with FastSecondDerivatives():
        found = fast(maps)
        left_alone = fast.eval()(maps)
    assert found.grad_fn is not None
    assert left_alone.grad_fn is not None
    assert (found.grad_fn.name(), left_alone.grad_fn.name()) == ("_BatchNormBackward", "NativeBatchNormBackward0")
    torch.testing.assert_close(found, plain(maps))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], value)


def test_a_batch_norms_second_derivatives_pass_pytorchs_numerical_check() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(2).double().train()
    maps = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, dtype=torch.float64, requires_grad=True)
    bend = torch.randn(3, 2, 2, 2, dtype=torch.float64)

    def slope_of(maps: Tensor, weight: Tensor) -> Tensor:
        with FastSecondDerivatives():
            answers = F.batch_norm(maps, norm.running_mean, norm.running_var, weight, norm.bias, True, 0.1, 1e-5)
        (gradient,) = torch.autograd.grad((answers**2 * bend).sum(), maps, create_graph=True)
        return gradient

    assert torch.autograd.gradcheck(slope_of, (maps, weight))


def test_the_block_leaves_other_calls_as_they_are() -> None:
    images, weight = torch.rand(1, 1, 4, 4), torch.rand(1, 1, 3, 3)
    with FastSecondDerivatives():
        same = F.conv2d(images, weight, padding="same")
    torch.testing.assert_close(same, F.conv2d(images, weight, padding=1))


def test_a_third_derivative_is_refused_rather_than_wrong() -> None:
    norm, maps = nn.BatchNorm2d(2).double().train(), torch.rand(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    with FastSecondDerivatives():
        answers = norm(maps)
    (first,) = torch.autograd.grad((answers**3).sum(), maps, create_graph=True)
    with pytest.raises(RuntimeError, match="no third derivative"):
        torch.autograd.grad((first**2).sum(), maps, create_graph=True)


def test_one_value_a_channel_is_refused_as_pytorch_refuses_it() -> None:
    with FastSecondDerivatives(), pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm2d(2).train()(torch.rand(1, 2, 1, 1, requires_grad=True))
