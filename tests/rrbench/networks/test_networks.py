"""Networks against hand-written computations, known parameter counts and the sizes the paper reports."""

import io
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.datasets import DATASETS
from rrbench.errors import UseError
from rrbench.networks import NETWORKS
from rrbench.networks.composed import Composed, GlobalAverage
from rrbench.networks.preact_resnet import Block, PreActResNet18, ResidualBackbone
from rrbench.networks.small_cnn import SmallCnn
from rrbench.networks.wide_resnet import WideResNet34, initialise
from rrbench.networks.wrapped import check_network, wrap
from rrbench.protocols import Batch, DataInfo, Outputs, Rejector

DIGITS, CIFAR10 = (DATASETS[name].info for name in ("digits", "cifar10"))  # type: ignore[union-attr]


class NoHead(Rejector):
    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1)


class WithHead(NoHead):
    """Has the published head."""

    def build_head(self, width: int, classes: int) -> nn.Module:
        hidden = width // 2
        return nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 1))


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def megabytes(network: nn.Module) -> float:
    """Return the size of a saved checkpoint in millions of bytes."""
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    return file.tell() / 1e6


def shake(network: nn.Module) -> nn.Module:
    """Give every batch norm statistics and weights that are not the trivial ones."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5)
    return network


# composition


def test_normalisation_is_inside_and_classifier_and_head_see_the_same_features() -> None:
    torch.manual_seed(0)
    info = DataInfo(classes=3, shape=(2, 2, 2), mean=(0.25, 0.5), std=(0.5, 2.0))

    class LinearHead(NoHead):
        def build_head(self, width: int, classes: int) -> nn.Module:
            return nn.Linear(width, classes + 1)

    network = Composed(info, GlobalAverage(), 2, LinearHead())
    images = torch.rand(5, 2, 2, 2)
    outputs = network(images)
    features = torch.stack([(images[:, 0].mean((1, 2)) - 0.25) / 0.5, (images[:, 1].mean((1, 2)) - 0.5) / 2.0], 1)
    assert torch.allclose(outputs.features, features, atol=1e-6)
    assert torch.allclose(
        outputs.logits, F.linear(features, network.classifier.weight, network.classifier.bias), atol=1e-6
    )
    assert isinstance(network.head, nn.Linear)
    assert torch.allclose(outputs.head, F.linear(features, network.head.weight, network.head.bias), atol=1e-6)
    assert outputs.head.shape == (5, 4)


def test_the_heads_loss_reaches_the_backbone() -> None:
    network = SmallCnn(width=2).build(DIGITS, WithHead())
    network(torch.rand(4, 1, 8, 8)).head.square().sum().backward()
    first = next(network.parameters())
    assert first.grad is not None
    assert float(first.grad.abs().sum()) > 0


def test_without_a_head_there_are_zero_columns() -> None:
    outputs = SmallCnn(width=2).build(DIGITS, NoHead())(torch.rand(4, 1, 8, 8))
    assert outputs.head.shape == (4, 0)


def test_outputs_are_float32_when_the_layers_work_in_half_precision() -> None:
    network = SmallCnn(width=2).build(DIGITS, WithHead()).eval()
    images = torch.rand(4, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = network(images)
    assert {part.dtype for part in outputs} == {torch.float32}
    assert torch.allclose(outputs.logits, network(images).logits, atol=0.05)
    assert not torch.equal(outputs.logits, network(images).logits)
    # The last layers are not rounded: they give the features their exact answers.
    composed = cast(Composed, network)
    assert composed.head is not None
    assert torch.equal(outputs.logits, composed.classifier(outputs.features))
    assert torch.equal(outputs.head, composed.head(outputs.features))


def test_shapes_can_be_asked_without_numbers() -> None:
    network = SmallCnn(width=2).build(DIGITS, WithHead()).to("meta")
    assert network(torch.rand(4, 1, 8, 8, device="meta")).logits.shape == (4, 10)


def test_constants_travel_with_the_checkpoint() -> None:
    state = SmallCnn(width=2).build(CIFAR10, NoHead()).state_dict()
    assert state["mean"].flatten().tolist() == pytest.approx(CIFAR10.mean)
    assert state["std"].flatten().tolist() == pytest.approx(CIFAR10.std)


# small-cnn


def test_small_cnn_is_three_convolutions_of_stride_1_2_and_2() -> None:
    network = shake(SmallCnn(width=3).build(DIGITS, NoHead())).eval()
    state, images = network.state_dict(), torch.rand(4, 1, 8, 8)

    def layer(maps: Tensor, position: int, stride: int) -> Tensor:
        maps = F.conv2d(maps, state[f"backbone.{position}.weight"], stride=stride, padding=1)
        norm = [state[f"backbone.{position + 1}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        return F.relu(F.batch_norm(maps, *norm))

    maps = layer((images - DIGITS.mean[0]) / DIGITS.std[0], 0, stride=1)
    maps = layer(layer(maps, 3, stride=2), 6, stride=2)
    features = maps.mean((2, 3))
    assert torch.allclose(network(images).features, features, atol=1e-5)
    logits = features @ state["classifier.weight"].T + state["classifier.bias"]
    assert torch.allclose(network(images).logits, logits, atol=1e-5)


def test_small_cnn_has_64_features_and_stays_under_200_kilobytes_with_a_head() -> None:
    network = SmallCnn().build(DIGITS, WithHead()).eval()
    assert network(torch.rand(2, 1, 8, 8)).features.shape == (2, 64)
    assert parameters(SmallCnn().build(DIGITS, NoHead())) == 144 + 4608 + 18432 + 2 * (16 + 32 + 64) + 650
    assert megabytes(network) < 0.2


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 5, 7), (2, 1, 1)])
@pytest.mark.parametrize("name", ["small-cnn", "resnet18"])
def test_networks_take_any_image(name: str, shape: tuple[int, int, int]) -> None:
    info = DataInfo(classes=7, shape=shape, mean=(0.5,) * shape[0], std=(0.25,) * shape[0])
    network = NETWORKS[name]().build(info, NoHead()).eval()  # type: ignore[operator]
    assert network(torch.rand(2, *shape)).logits.shape == (2, 7)


# residual networks


def by_hand(block: Block, maps: Tensor, stride: int) -> Tensor:
    state = block.state_dict()

    def normed(values: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            state[f"{name}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.relu((values - mean) / (var + 1e-5).sqrt() * weight + bias)

    active = normed(maps, "norm1")
    inner = F.conv2d(active, state["conv1.weight"], stride=stride, padding=1)
    inner = F.conv2d(normed(inner, "norm2"), state["conv2.weight"], padding=1)
    return inner + (F.conv2d(active, state["shortcut.weight"], stride=stride) if "shortcut.weight" in state else maps)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(3, 3, 1), (3, 5, 1), (3, 5, 2), (3, 3, 2)])
def test_a_block_equals_its_formula(inputs: int, outputs: int, stride: int) -> None:
    torch.manual_seed(0)
    block = Block(inputs, outputs, stride)
    shake(block).eval()
    maps = torch.randn(2, inputs, 6, 6)
    assert torch.allclose(block(maps), by_hand(block, maps, stride), atol=1e-5)
    assert (block.shortcut is None) == (inputs == outputs and stride == 1)


def test_the_backbone_is_stem_blocks_norm_relu_and_average() -> None:
    torch.manual_seed(0)
    backbone = ResidualBackbone(channels=2, stem=3, widths=(3, 4, 5), blocks=2)
    shake(backbone).eval()
    images = torch.rand(2, 2, 8, 8)
    maps = F.conv2d(images, backbone.state_dict()["0.weight"], padding=1)
    for position, stride in enumerate((1, 1, 2, 1, 2, 1), start=1):
        block = backbone[position]
        assert isinstance(block, Block)
        maps = by_hand(block, maps, stride)
    norm = backbone[7]
    assert isinstance(norm, nn.BatchNorm2d)
    assert maps.shape == (2, 5, 2, 2)
    assert torch.allclose(backbone(images), F.avg_pool2d(norm(maps).relu(), 2).flatten(1), atol=1e-5)


def test_in_eval_mode_an_image_is_answered_alike_alone_and_in_a_batch() -> None:
    torch.manual_seed(0)
    network = shake(PreActResNet18().build(CIFAR10, WithHead())).eval()
    images = torch.rand(3, 3, 32, 32)
    alone = network(images[:1]).logits
    assert torch.allclose(network(images).logits[:1], alone, atol=1e-4)
    network.train()
    assert not torch.allclose(network(images).logits[:1], alone, atol=1e-2)


def test_resnet18_has_the_papers_parameters_and_checkpoint_size() -> None:
    plain = PreActResNet18().build(CIFAR10, NoHead())
    assert parameters(plain) == 11_172_170
    assert megabytes(plain) == pytest.approx(44.74, abs=0.04)
    assert megabytes(PreActResNet18().build(CIFAR10, WithHead())) == pytest.approx(45.27, abs=0.04)
    assert 4 * parameters(WithHead().build_head(512, 10)) / 1e6 == pytest.approx(0.53, abs=0.005)


def test_wrn34_10_has_the_papers_checkpoint_size_and_its_own_initialisation() -> None:
    network = WideResNet34().build(CIFAR10, WithHead())
    assert isinstance(network, Composed)
    assert network.head is not None
    assert not any(module.bias.any() for module in network.modules() if isinstance(module, nn.Linear))
    assert parameters(network) - parameters(network.head) == 46_160_474
    assert megabytes(network) == pytest.approx(185.59, abs=0.04)
    assert megabytes(network) - megabytes(network.head) == pytest.approx(184.77, abs=0.04)


def test_initialisation_follows_the_outputs_of_a_convolution_and_zeroes_every_linear_bias() -> None:
    torch.manual_seed(0)
    network = Composed(CIFAR10, ResidualBackbone(3, 64, (128,), 1), 128, WithHead())
    initialise(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert float(module.weight.detach().std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
        if isinstance(module, nn.Linear):
            assert not module.bias.any()


# users' own networks


class Answers(nn.Module):
    """Returns what it is told to, whatever the images."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor) -> object:
        return self.answer


IMAGES = torch.rand(4, 1, 8, 8)
BATCH = Batch(IMAGES, torch.zeros(4, dtype=torch.long), torch.arange(4))


def test_logits_alone_features_with_logits_and_outputs_are_taken() -> None:
    features, logits, head = torch.rand(4, 5), torch.rand(4, 3), torch.rand(4, 2)
    alone = wrap(Answers(logits))(IMAGES)
    assert torch.equal(alone.logits, logits)
    assert alone.features.shape == alone.head.shape == (4, 0)
    both = wrap(Answers((features, logits)))(IMAGES)
    assert torch.equal(both.features, features)
    assert torch.equal(both.logits, logits)
    whole = wrap(Answers(Outputs(features, logits.double(), head)))(IMAGES)
    assert torch.equal(whole.head, head)
    assert whole.logits.dtype == torch.float32


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"logits": torch.rand(4, 3)}, "returns a dict"),
        ([torch.rand(4, 3)], "a list of 1"),
        ((torch.rand(4, 3),) * 3, "a tuple of 3"),
        ((None, torch.rand(4, 3)), "features are a NoneType"),
        (torch.rand(4, 3, 1), r"shape \(4, 3, 1\)"),
        (torch.rand(5, 3), r"shape \(5, 3\) for 4 images"),
        (torch.zeros(4, 3, dtype=torch.long), "torch.int64 instead of floats"),
        ((torch.rand(4, 5, 1, 1), torch.rand(4, 3)), "features have shape"),
    ],
)
def test_any_other_answer_is_refused_in_one_line(answer: object, reason: str) -> None:
    with pytest.raises(UseError, match=reason) as caught:
        wrap(Answers(answer))(IMAGES)
    assert "\n" not in str(caught.value)


def test_wrapping_changes_neither_mode_nor_gradients() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Dropout(0.5)).eval()
    network = wrap(model)
    assert not network.training
    images = IMAGES.clone().requires_grad_()
    network(images).logits.sum().backward()
    linear = model[1]
    assert isinstance(linear, nn.Linear)
    assert images.grad is not None
    assert torch.allclose(images.grad.flatten(1), linear.weight.sum(0).expand(4, -1), atol=1e-6)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UseError, match="Module, not function"):
        wrap(lambda images: images)  # type: ignore[arg-type]
    with pytest.raises(UseError, match="Module, not function"):
        check_network(lambda images: images, BATCH, 3)  # type: ignore[arg-type]


def test_a_checked_network_keeps_its_mode_and_its_statistics() -> None:
    network = SmallCnn(width=2).build(DIGITS, WithHead()).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    check_network(network, BATCH, 10)
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Answers(torch.rand(4, 10)), "rrbench.wrap"),
        (wrap(Answers(torch.rand(4, 7))), "7 logits, but there are 10 classes"),
        (wrap(Answers(torch.rand(3, 10))), "shape"),
        (Answers(Outputs(*[torch.zeros(4, 10, dtype=torch.long)] * 3)), "instead of floats"),
        (wrap(nn.Linear(5, 10)), r"fails on images of shape \(4, 1, 8, 8\)"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(network: nn.Module, reason: str) -> None:
    with pytest.raises(UseError, match=reason) as caught:
        check_network(network, BATCH, 10)
    assert "\n" not in str(caught.value)


def test_a_pair_in_the_wrong_order_is_told_by_the_number_of_classes() -> None:
    features, logits = torch.rand(4, 5), torch.rand(4, 3)
    swapped = wrap(Answers((logits, features)))
    for network in (swapped, wrap(swapped)):
        with pytest.raises(UseError, match=r"seems to return \(logits, features\)") as caught:
            check_network(network, BATCH, None, in_data=3)
        assert "the first has 3 columns, as many as there are classes, and the second 5" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert check_network(wrap(Answers((features, logits))), BATCH, None, in_data=3) == 3


def test_an_order_that_widths_do_not_tell_is_taken_as_documented() -> None:
    narrow, wide = torch.rand(4, 3), torch.rand(4, 5)
    assert check_network(wrap(Answers((narrow, narrow))), BATCH, None, in_data=3) == 3
    assert check_network(wrap(Answers((narrow, wide))), BATCH, None, in_data=2) == 5, "more classes than labels"
    named = Outputs(features=narrow, logits=wide, head=wide[:, :0])
    assert check_network(wrap(Answers(named)), BATCH, None, in_data=3) == 5, "it names its parts"
