"""What a network was lent with comes back: weights, buffers, gradients, modules, hooks, methods and classes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from rrbench.errors import CellError
from rrbench.lending import kept, surroundings_kept


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), nn.ReLU()).eval()


def inner(net: nn.Sequential) -> nn.Sequential:
    found = net[1]
    assert isinstance(found, nn.Sequential)
    return found


def copy(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.clone()


def replace_forward(net: nn.Sequential) -> None:
    net.forward = lambda images: images.flatten(1)[:, :3]  # type: ignore[method-assign]


def replace_module(net: nn.Sequential) -> None:
    inner(net)[1] = nn.Identity()


def replace_weight(net: nn.Sequential) -> None:
    inner(net)[0].weight = nn.Parameter(torch.ones(3, 4))


def scale_weight(net: nn.Sequential) -> None:
    for weight in net.parameters():
        weight.data.mul_(2)


CHANGES: dict[str, tuple[Callable[[nn.Sequential], object], str]] = {
    "a forward hook": (lambda net: net[2].register_forward_hook(lambda *_: torch.zeros(2, 3)), "hooks of '2'"),
    "a hook before": (lambda net: net.register_forward_pre_hook(lambda _, given: (0 * given[0],)), "hooks"),
    "a backward hook": (lambda net: net[2].register_full_backward_hook(lambda *_: None), "hooks of '2'"),
    "a module": (replace_module, "modules of '1'"),
    "a module more": (lambda net: net.append(nn.Sigmoid()), "modules"),
    "a forward": (replace_forward, "method 'forward'"),
    "a class": (lambda net: parametrizations.orthogonal(inner(net)[0]), "class of '1.0'"),
    "a weight replaced": (replace_weight, "weight '1.0.weight'"),
    "a weight written into": (scale_weight, "weight '1.0.weight'"),
    "a buffer": (lambda net: inner(net)[1].running_mean.add_(1), "buffer '1.1.running_mean'"),  # type: ignore[operator]
    "another type": (lambda net: net.double(), "weight '1.0.weight'"),
    "a shorter type": (lambda net: net.half(), "weight '1.0.weight'"),
    "a buffer more": (lambda net: net.register_buffer("own", torch.ones(1)), "buffers"),
}


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_undone(name: str, has_gradients: bool) -> None:
    change, what = CHANGES[name]
    net, images = network(), torch.rand(2, 1, 2, 2)
    if has_gradients:
        net(images).sum().backward()
    before, answers = str(net), net(images)
    with pytest.raises(CellError, match=f"^changed {what}$"), kept(net, "changed {}".format):
        change(net)
    assert str(net) == before
    assert torch.equal(net(images), answers)
    with kept(net, "changed {}".format):
        net(images)


def test_what_is_put_back_is_the_same_object_as_before() -> None:
    net = network()
    modules, weights = list(net.modules()), list(net.parameters())

    def change() -> None:
        replace_module(net)
        replace_weight(net)

    with pytest.raises(CellError), kept(net, "{}".format):
        change()
    assert all(one is other for one, other in zip(net.modules(), modules, strict=True))
    assert all(one is other for one, other in zip(net.parameters(), weights, strict=True))


def test_hooks_and_methods_that_were_there_stay_and_may_be_used() -> None:
    net, seen = network(), list[Tensor]()
    net.register_forward_hook(lambda _, __, answer: seen.append(answer))
    replace_forward(net)
    with kept(net, "{}".format):
        net(torch.rand(2, 1, 2, 2))
    net(torch.rand(2, 1, 2, 2))
    assert [tuple(each.shape) for each in seen] == [(2, 3), (2, 3)]


def test_a_network_may_remember_what_it_saw() -> None:
    class Remembers(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            self.last = super().forward(images)
            return self.last

    net = Remembers(4, 3)
    with kept(net, "{}".format):
        net(torch.rand(2, 4))
    assert net.last.shape == (2, 3)


def test_gradients_are_as_before() -> None:
    net, images = network(), torch.rand(2, 1, 2, 2)
    with kept(net, "{}".format):
        net(images).sum().backward()
    assert all(weight.grad is None for weight in net.parameters())
    net(images).sum().backward()
    before = [copy(weight.grad) for weight in net.parameters()]
    with kept(net, "{}".format):
        net(images).square().sum().backward()
    assert before
    assert all(
        torch.equal(weight.grad, own)
        for weight, own in zip(net.parameters(), before, strict=True)
        if weight.grad is not None
    )


def test_what_is_sparse_is_compared_too() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()
    before = copy(table.weight.grad).to_dense()
    with kept(table, "{}".format):
        table(torch.tensor([0])).sum().backward()
    assert torch.equal(copy(table.weight.grad).to_dense(), before)


def test_surroundings_cost_no_import_if_nothing_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch, "use_deterministic_algorithms", refuse)
    with surroundings_kept():
        torch.set_default_dtype(torch.float64)
    assert torch.get_default_dtype() == torch.float32


def test_what_fails_inside_is_put_back_too() -> None:
    net = network()

    def fail() -> None:
        scale_weight(net)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), kept(net, "{}".format):
        fail()
    assert torch.equal(next(net.parameters()), next(network().parameters()))


def test_a_class_is_as_before() -> None:
    class Plain(nn.Linear):
        pass

    before = set(vars(Plain))
    with kept(Plain(4, 3), "{}".format):
        pass
    assert set(vars(Plain)) == before
