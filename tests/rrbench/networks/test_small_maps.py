"""The convolution with a way back of its own against PyTorch's."""

import platform
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rrbench.networks import small_maps
from rrbench.networks.small_maps import FEW, SmallMapConvolution


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")


def pair(stride: int, kernel: int, padding: int) -> tuple[nn.Conv2d, nn.Conv2d]:
    """PyTorch's convolution and ours, with the same weights."""
    torch.manual_seed(0)
    ours = SmallMapConvolution(5, 7, kernel, stride=stride, padding=padding, bias=False)
    theirs = nn.Conv2d(5, 7, kernel, stride=stride, padding=padding, bias=False)
    theirs.load_state_dict(ours.state_dict())
    return theirs, ours


def gradients(convolution: nn.Conv2d, maps: Tensor) -> tuple[Tensor, ...]:
    """Its answer, the gradients of maps and weights, and the gradient of the first one's square."""
    maps = maps.clone().requires_grad_()
    answer = convolution(maps)
    first = torch.autograd.grad(answer.sin().sum(), (maps, convolution.weight), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), (maps, convolution.weight))
    return answer.detach(), *(part.detach() for part in (*first, *second))


@pytest.mark.usefixtures("arm")
@pytest.mark.parametrize(
    ("size", "stride", "kernel", "padding"),
    [((4, 4), 2, 3, 1), ((3, 5), 2, 3, 1), ((5, 2), 1, 3, 1), ((6, 5), 3, 2, 0), ((7, 7), 1, 3, 1)],
)
def test_answers_and_gradients_of_both_orders_are_pytorch_s(
    size: tuple[int, int], stride: int, kernel: int, padding: int
) -> None:
    theirs, ours = pair(stride, kernel, padding)
    maps = torch.randn(6, 5, *size)
    for found, expected in zip(gradients(ours, maps), gradients(theirs, maps), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("arm")
def test_only_small_maps_take_the_other_way_and_only_if_their_gradient_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[torch.Size] = []
    spread = small_maps._spread

    def noted(gradient: Tensor, *rest: Any) -> Tensor:
        taken.append(gradient.shape)
        return spread(gradient, *rest)

    monkeypatch.setattr(small_maps, "_spread", noted)
    _, ours = pair(1, 3, 1)
    small, large = torch.randn(2, 5, 3, 5), torch.randn(2, 5, 4, 4)
    ours(small).sum().backward()
    assert taken == []
    for maps in (small, large):
        ours(maps.requires_grad_()).sum().backward()
    assert taken == [(2, 7, 3, 5)]
    assert small[0, 0].numel() < FEW == large[0, 0].numel()


@pytest.mark.usefixtures("arm")
def test_lower_precision_is_left_to_pytorch() -> None:
    theirs, ours = pair(2, 3, 1)
    maps = torch.randn(6, 5, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        for found, expected in zip(gradients(ours, maps), gradients(theirs, maps), strict=True):
            assert torch.equal(found, expected)
