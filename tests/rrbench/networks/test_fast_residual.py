"""A twin answers as its network does, with the same gradient and the same running statistics, on a CPU and on a GPU."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.devices import tf32
from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.datasets.digits import Digits
from rrbench.networks.composed import Composed
from rrbench.networks.fast.norm_relu import Norm, Sums
from rrbench.networks.fast.residual import links_for
from rrbench.networks.preact_resnet import ResidualBackbone
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import build, choose
from rrbench.protocols import DataInfo, Framework, Outputs, Rejector, Victim
from rrbench_baselines.rr import RR

INFO = DataInfo(classes=4, shape=(3, 9, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def make_network(device: str, *, training: bool) -> Composed:
    """A small residual network with odd sizes, strides and statistics that are not those of the start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Composed(INFO, ResidualBackbone(3, 16, (16, 32), 2), 32, RR()).to(device)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(0, 0.3)
                    module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
                    module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return network.train(training)


def images(device: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(6, 3, 9, 8, generator=generator).to(device)


def named(name: str) -> Callable[[str], str]:
    """Put a weight's name before what is wrong with it."""
    return lambda text: name + text


def slope(network: nn.Module, given: Tensor) -> tuple[Tensor, Tensor]:
    given = given.clone().requires_grad_()
    outputs = network(given)
    value = outputs.logits[:, 0].sum() + outputs.head.square().sum()
    (gradient,) = torch.autograd.grad(value, given)
    return torch.cat([outputs.features, outputs.logits, outputs.head], 1).detach(), gradient


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_twin_answers_and_slopes_as_its_network(device: str, training: bool) -> None:
    network = make_network(device, training=training)
    reference = copy.deepcopy(network)
    twin = network.twin(torch.float32)
    assert twin is not None
    with tf32(False):
        expected, found = slope(reference, images(device)), slope(twin, images(device))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-5)
    for name, buffer in reference.named_buffers():
        if "num_batches" not in name:  # a counter that nobody reads
            torch.testing.assert_close(dict(network.named_buffers())[name], buffer, rtol=1e-4, atol=1e-5)
    changed = any(
        not torch.equal(buffer, fresh)
        for (name, buffer), fresh in zip(
            network.named_buffers(), make_network(device, training=training).buffers(), strict=True
        )
        if "running" in name
    )
    assert changed == training


def test_a_twin_asks_for_no_gradient_on_weights_and_follows_them_when_refreshed() -> None:
    network = make_network("cpu", training=False)
    twin = network.twin(torch.float32)
    assert twin is not None
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point():
                tensor.add_(0.05)
        twin.refresh()
        torch.testing.assert_close(twin(images("cpu")).logits, network(images("cpu")).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_learns_through_its_twin_what_pytorch_teaches_it(device: str) -> None:
    network = make_network(device, training=True)
    reference = copy.deepcopy(network)
    twin = network.twin(torch.float32)
    model = Instrumented(network, "fp32", twin=twin).train()
    for asked in (model, reference):
        with tf32(False):
            outputs = asked(images(device))
            (outputs.logits[:, 0].sum() + outputs.head.square().sum()).backward()
    assert model.forwards == 6
    for (name, parameter), expected in zip(network.named_parameters(), reference.parameters(), strict=True):
        assert parameter.grad is not None, name
        assert expected.grad is not None
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-3, atol=1e-4, msg=named(name))
    for (name, buffer), expected_buffer in zip(network.named_buffers(), reference.buffers(), strict=True):
        if "num_batches" not in name:
            torch.testing.assert_close(buffer, expected_buffer, rtol=1e-4, atol=1e-5)


def test_only_a_lesson_goes_through_the_twin_of_a_network_that_learns() -> None:
    network = make_network("cpu", training=True)
    model = Instrumented(network, "fp32", twin=network.twin(torch.float32)).train()
    given = images("cpu").requires_grad_()
    # An image's gradient is asked of PyTorch, which knows it; the twin's lesson would leave it out.
    (gradient,) = torch.autograd.grad(model(given).logits.sum(), given)
    assert float(gradient.abs().sum()) > 0
    model.eval()
    model(images("cpu")).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.classifier.parameters())


class Louder(Composed):
    """A network with a `forward` of its own."""

    def forward(self, images: Tensor) -> Outputs:
        features, logits, head = super().forward(images)
        return Outputs(features, 10 * logits, head)


class OwnTwin(nn.Module):
    """A backbone's twin that knows no faster way to the weights."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).mean(1, keepdim=True).expand(-1, 32)


def lessons(network: Composed, twin: Composed | None) -> tuple[Tensor, Tensor]:
    """What a training batch gives through the twin, and by PyTorch alone."""
    reference = copy.deepcopy(network)
    return Instrumented(network, "fp32", twin=twin)(images("cpu")).logits, reference(images("cpu")).logits


def test_what_learns_is_the_networks_own_forward() -> None:
    network = make_network("cpu", training=True)
    network.__class__ = Louder
    torch.testing.assert_close(*lessons(network, network.twin(torch.float32)), rtol=1e-4, atol=1e-5)


def test_a_twin_without_a_way_to_the_weights_and_frozen_norms_leave_the_lesson_to_pytorch() -> None:
    network = make_network("cpu", training=True)
    twin = copy.copy(network.twin(torch.float32))
    assert twin is not None
    twin.backbone = OwnTwin()
    torch.testing.assert_close(*lessons(network, twin))
    network = make_network("cpu", training=True)
    frozen = next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    before = frozen.running_mean.clone()  # type: ignore[union-attr]
    found, expected = lessons(network, network.twin(torch.float32))
    torch.testing.assert_close(found, expected)
    assert torch.equal(before, frozen.running_mean)  # type: ignore[arg-type]


def test_the_way_back_is_that_of_the_way_forward_though_the_mode_has_changed_between() -> None:
    network = make_network("cpu", training=True)
    reference = copy.deepcopy(network)
    model = Instrumented(network, "fp32", twin=network.twin(torch.float32)).train()
    for asked in (model, reference):
        loss = asked(images("cpu")).logits.square().sum()
        asked.eval()
        loss.backward()
    for parameter, expected in zip(network.backbone.parameters(), reference.backbone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_so_it_is_on_the_way_to_the_images(training: bool) -> None:
    network = make_network("cpu", training=training)
    reference = copy.deepcopy(network)
    twin = network.twin(torch.float32)
    assert twin is not None
    gradients = []
    for asked in (twin, reference):
        given = images("cpu").requires_grad_()
        loss = asked(given).logits.square().sum()
        asked.train(not training)
        gradients.append(torch.autograd.grad(loss, given)[0])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("attack_mode", ["train", "eval"])
@pytest.mark.parametrize(
    "pair",
    ["rr@pgd-at", "ebd@pgd-at", "snet@pgd-at", "rr@trades", "rr@ccat", "carl@carl", "atro@atro"],
)
def test_every_framework_learns_through_the_twin_what_pytorch_teaches_it(pair: str, attack_mode: str) -> None:
    config = load_preset("quick")
    first, second = pair.split("@")
    rejector = build(Rejector, choose("rejector", first, config, "digits"))
    framework = build(Framework, choose("framework", f"{second}(attack_mode={attack_mode})", config, "digits"))
    batch = Digits().load("train", ()).at(slice(16))
    gradients = []
    for learns in (True, False):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = Composed(Digits.info, ResidualBackbone(1, 16, (16, 32), 1), 32, rejector)
        # Both climb through the twin, so that they learn from the same images.
        model = Instrumented(network, "fp32", twin=network.twin(torch.float32)).train()
        if not learns:
            network.learn = None  # type: ignore[assignment, method-assign]
        framework(Victim(model, rejector), batch, HashedDraws(3)).backward()
        gradients.append({name: each.grad for name, each in network.named_parameters() if each.grad is not None})
    found, expected = gradients
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=named(name))


@pytest.mark.parametrize("device", DEVICES)
def test_a_way_that_is_kept_can_be_gone_back_for_every_class(device: str) -> None:
    network = make_network(device, training=False)
    twin = network.twin(torch.float32)
    assert twin is not None
    rows = []
    with tf32(False):
        for each in (network, twin):
            given = images(device).requires_grad_()
            logits = each(given).logits
            rows.append([torch.autograd.grad(column.sum(), given, retain_graph=True)[0] for column in logits.unbind(1)])
    torch.testing.assert_close(rows[1], rows[0], rtol=1e-3, atol=1e-5)


def test_a_second_derivative_through_a_twin_is_refused_rather_than_wrong() -> None:
    twin = make_network("cpu", training=False).twin(torch.float32)
    assert twin is not None
    given = images("cpu").requires_grad_()
    (gradient,) = torch.autograd.grad(twin(given).logits.square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="differentia"):
        torch.autograd.grad(gradient.square().sum(), given)


def test_a_network_whose_backbone_has_no_twin_has_none() -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
    assert Composed(INFO, backbone, 5, RR()).twin(torch.float32) is None


@pytest.mark.parametrize("channels", [16, 64, 160])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("has_more", [True, False], ids=["sums", "alone"])
@pytest.mark.parametrize("device", DEVICES)
def test_norm_and_relu_are_pytorchs(device: str, has_more: bool, training: bool, channels: int) -> None:
    generator = torch.Generator().manual_seed(2)

    def draw() -> Tensor:
        drawn = torch.randn(3, channels, 5, 7, generator=generator).to(device)
        return drawn.contiguous(memory_format=torch.channels_last)

    module = nn.BatchNorm2d(channels).to(device).train(training)
    with torch.no_grad():
        module.weight.uniform_(0.5, 1.5)
        module.bias.normal_()
    shared = copy.deepcopy(module)
    norm = Norm.of(shared)
    maps, skip, gradient, side_gradient, past = (draw() for _ in range(5))
    sums = Sums(2 * channels, maps.device)
    zeros = [sums.take(channels) if training else None for _ in range(2)]
    functions = links_for(maps.device, torch.float32).norm_relu
    _, active, seen = functions.forward(maps, skip if has_more else None, norm, zeros[0])
    found = functions.backward(
        gradient,
        seen,
        norm,
        zeros[1],
        side_gradient=side_gradient if has_more else None,
        past=past if has_more else None,
    )
    total = (maps + skip if has_more else maps).requires_grad_()
    expected = module(total).relu()
    (slope_there,) = torch.autograd.grad(expected, total, gradient + side_gradient if has_more else gradient)
    torch.testing.assert_close(active, expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, slope_there + past if has_more else slope_there, rtol=1e-3, atol=1e-4)
    assert shared.running_var is not None
    assert module.running_var is not None
    torch.testing.assert_close(shared.running_var, module.running_var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_nan_is_not_rectified_away(device: str) -> None:
    norm = Norm.of(nn.BatchNorm2d(16).to(device))
    maps = torch.full((1, 16, 2, 2), torch.nan, device=device).contiguous(memory_format=torch.channels_last)
    found = links_for(maps.device, torch.float32).norm_relu.forward(maps, None, norm, None)
    assert bool(found.active.isnan().all())
