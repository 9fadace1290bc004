import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.eval_mode import frozen, mode
from rrbench.protocols import Outputs


def mixed() -> nn.Module:
    """A network in train mode whose batch norm its owner keeps in eval mode, and whose bias is frozen."""
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout())
    network.train()
    network[1].eval()
    network[0].bias.requires_grad_(False)
    return network


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


def flags(network: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in network.parameters()]


@pytest.mark.parametrize("wanted", ["train", "eval"])
def test_every_module_takes_the_mode_and_gets_its_own_back(wanted: str) -> None:
    network = mixed()
    before = modes(network)
    assert len(set(before)) == 2
    with mode(network, "train" if wanted == "train" else "eval"):
        assert set(modes(network)) == {wanted == "train"}
    assert modes(network) == before


def test_a_network_that_is_no_module_has_no_mode() -> None:
    def network(images: Tensor) -> Outputs:
        return Outputs(images, images, images)

    with mode(network, "eval"):
        assert network(torch.ones(1, 1)).logits.item() == 1


def test_a_frozen_network_is_in_eval_mode_without_gradients_and_comes_back() -> None:
    network = mixed()
    before = modes(network), flags(network)
    with frozen(network):
        assert set(modes(network)) == {False}
        assert set(flags(network)) == {False}
    assert (modes(network), flags(network)) == before


def test_an_error_inside_leaves_the_network_as_it_was() -> None:
    network = mixed()
    before = modes(network), flags(network)
    with pytest.raises(ValueError, match="inside"), frozen(network):
        raise ValueError("inside")
    assert (modes(network), flags(network)) == before


def test_images_still_have_gradients_through_a_frozen_network() -> None:
    network = mixed()
    images = torch.ones(4, 2, requires_grad=True)
    with frozen(network):
        network(images).sum().backward()
    assert images.grad is not None
    assert all(parameter.grad is None for parameter in network.parameters())
