"""A hash of a network also follows attributes whose names begin with `_`, and hooks."""

import io
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from rrbench.files.fingerprints import of_network, of_object


class Hiding(nn.Linear):
    """Has a value that is no tensor of PyTorch's tables, under a name that begins with `_`."""

    def __init__(self, value: Any) -> None:
        super().__init__(2, 2)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self._value = value

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = nn.functional.linear(images, self.weight, self.bias) * self._value
        return found


VALUES: dict[str, Callable[[float], Any]] = {
    "number": float,
    "tensor": lambda value: torch.full((2,), value),
    "function": lambda value: lambda images: images * value,
    "tensor in a dict": lambda value: {"mean": [torch.full((2,), value)]},
    "network that is not registered": lambda value: [Hiding(value)],
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_an_attribute_counts_whose_name_begins_with_an_underscore(make: Callable[[float], Any]) -> None:
    one, same, other = (Hiding(make(value)) for value in (1.0, 1.0, -1.0))
    assert of_network(one) == of_network(same) != of_network(other)
    assert of_network(nn.Sequential(one)) == of_network(nn.Sequential(same)) != of_network(nn.Sequential(other))
    assert of_object(one) == of_object(same) != of_object(other), "a rejector that is a module"
    same._value = make(-1.0)
    assert of_network(same) == of_network(other)


def test_it_counts_which_hidden_attribute_holds_a_value_and_not_which_was_set_first() -> None:
    one, same, other = Hiding(1.0), Hiding(1.0), Hiding(1.0)
    vars(one).update(_plus=1.0, _minus=-1.0)
    vars(same).update(_minus=-1.0, _plus=1.0)
    vars(other).update(_plus=-1.0, _minus=1.0)
    assert of_network(one) == of_network(same) != of_network(other)


class Slotted(nn.Module):
    __slots__ = ("_sign", "sign")

    def __init__(self, sign: float, hidden: float) -> None:
        super().__init__()
        self.sign, self._sign = sign, hidden


def test_slots_of_a_network_count() -> None:
    assert of_network(Slotted(1, 1)) == of_network(Slotted(1, 1)) != of_network(Slotted(1, 2))
    assert of_network(Slotted(1, 1)) != of_network(Slotted(2, 1))


def test_an_attribute_that_was_put_into_a_module_of_pytorch_or_in_place_of_its_method_counts() -> None:
    one, same, other, replaced = (nn.ReLU() for _ in range(4))
    vars(one)["_t"], vars(same)["_t"], vars(other)["_t"] = 1.0, 1.0, 2.0
    assert of_network(nn.ReLU()) != of_network(one) == of_network(same) != of_network(other)
    vars(replaced)["_call_impl"] = lambda images: -images
    assert of_network(replaced) != of_network(nn.ReLU())


def scaled(by: float) -> Callable[..., Any]:
    """Return a hook of any kind, which scales."""
    return lambda module, given, *more: by * (more[0] if more and isinstance(more[0], Tensor) else given[0])


class Hook:
    """A hook whose number is a hidden attribute."""

    def __init__(self, by: float) -> None:
        self._by = by

    def __call__(self, module: nn.Module, given: Any, answer: Tensor) -> Tensor:
        return answer * self._by


HOOKS: dict[str, Callable[[nn.Module, float], Any]] = {
    "after": lambda module, by: module.register_forward_hook(scaled(by)),
    "after, an object": lambda module, by: module.register_forward_hook(Hook(by)),
    "after, with keywords": lambda module, by: module.register_forward_hook(
        lambda module, given, words, answer: answer * by, with_kwargs=True
    ),
    "before": lambda module, by: module.register_forward_pre_hook(scaled(by)),
    "before, with keywords": lambda module, by: module.register_forward_pre_hook(
        lambda module, given, words: ((given[0] * by,), words), with_kwargs=True
    ),
    "backward": lambda module, by: module.register_full_backward_hook(
        lambda module, given, answer: tuple(part * by for part in given)
    ),
    "before backward": lambda module, by: module.register_full_backward_pre_hook(scaled(by)),
}


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_a_hook_counts_by_its_code_and_what_it_holds(register: Callable[[nn.Module, float], Any]) -> None:
    plain, one, same, other = (Hiding(1.0) for _ in range(4))
    handle = register(one, 2.0)
    register(same, 2.0)
    register(other, 3.0)
    assert of_network(plain) != of_network(one) == of_network(same) != of_network(other)
    inside = [nn.Sequential(each) for each in (plain, one, same, other)]
    assert of_network(inside[0]) != of_network(inside[1]) == of_network(inside[2]) != of_network(inside[3])
    handle.remove()
    assert of_network(plain) == of_network(one)


def test_it_counts_where_a_hook_is_in_which_order_and_with_what() -> None:
    def hooked(*order: float, at: int = 0, **options: bool) -> str:
        network = nn.Sequential(nn.ReLU(), nn.ReLU())
        for by in order:
            network[at].register_forward_hook(scaled(by), **options)
        return of_network(network)

    assert hooked(2, 3) == hooked(2, 3) != hooked(3, 2)
    assert hooked(2) != hooked(2, at=1)
    assert hooked(2) != hooked(2, with_kwargs=True)
    assert hooked(2) != hooked(2, always_call=True)
    network = nn.ReLU()
    network.register_forward_pre_hook(scaled(2))
    assert of_network(network) != hooked(2)


def test_the_number_of_a_hook_which_counts_all_hooks_of_the_process_does_not_count() -> None:
    def watched() -> nn.Module:
        network = Hiding(1.0)
        handles = [network.register_forward_pre_hook(scaled(2.0))]
        vars(network).update(_handle=network.register_forward_hook(scaled(2.0)), handles=handles)
        return network

    assert of_network(watched()) == of_network(watched())


def adjust(hook: Callable[[nn.Module], Any]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        hook(network[0])
        return network.eval()


MADE: dict[str, Callable[[], nn.Module]] = {
    "weight norm": lambda: adjust(parametrizations.weight_norm),
    "spectral norm": lambda: adjust(parametrizations.spectral_norm),
    "weight norm by a hook": lambda: adjust(weight_norm),
    "spectral norm by a hook": lambda: adjust(spectral_norm),
    "pruned": lambda: adjust(lambda module: prune.l1_unstructured(module, "weight", 2)),
    "pruned twice": lambda: adjust(
        lambda module: [prune.l1_unstructured(module, "weight", number) for number in (1, 2)]
    ),
    "lstm": lambda: adjust(lambda module: module.register_module("rnn", nn.LSTM(3, 3))),
    "attention": lambda: adjust(lambda module: module.register_module("part", nn.MultiheadAttention(4, 2))),
    "graph": lambda: fx.symbolic_trace(adjust(lambda module: None)),
    "compiled in place": lambda: adjust(lambda module: module.compile(backend="eager")),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_pytorch_keeps_in_its_own_modules_leaves_a_hash_alone_when_the_network_answers(
    make: Callable[[], nn.Module],
) -> None:
    one, same = make(), make()
    before = of_network(one)
    assert before == of_network(same)
    for _ in range(2):
        one(torch.rand(2, 3))
    assert of_network(one) == before
    with torch.no_grad():
        next(iter(one.parameters())).view(-1)[-1] += 5
    assert of_network(one) != before


def test_a_lazy_module_is_like_any_other_once_it_has_answered() -> None:
    made = []
    for _ in range(2):
        network = nn.LazyLinear(2)
        network(torch.rand(1, 3))
        for weight in network.parameters():
            nn.init.ones_(weight)
        made.append(of_network(network))
    assert made[0] == made[1]


def test_hidden_values_that_lead_to_every_other_module_are_hashed_quickly() -> None:
    """Without care the time grows as the factorial of the number of modules."""

    def met(sign: float) -> nn.Module:
        network = nn.Sequential(*(Hiding(1.0) for _ in range(100)))
        every = SimpleNamespace(parts=list(network), own=[Hiding(sign)], whole=[network])
        for before, part in zip([network[-1], *network], network, strict=False):
            vars(part).update(_every=every, _before=[before], _whole=weakref.ref(network))
            part.register_forward_hook(lambda module, given, answer, every=every: answer)
        return network

    assert of_network(met(1.0)) == of_network(met(1.0)) != of_network(met(2.0))


def test_a_network_counts_by_its_own_class_if_pytorch_made_another_of_it_for_a_parametrization() -> None:
    hashes = []
    for sign in (1, 1, -1):
        space = {"nn": nn, "__name__": "mine"}
        exec(f"class Net(nn.Linear):\n    def forward(self, images): return {sign} * super().forward(images)", space)
        network = space["Net"](2, 2)  # type: ignore[operator]
        nn.init.ones_(network.weight)
        nn.init.ones_(network.bias)
        parametrize.register_parametrization(network, "weight", nn.Identity())
        hashes.append(of_network(network))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_quantized_network_has_a_hash_that_follows_its_weights() -> None:
    """They are in no table of parameters or buffers."""
    hashes = []
    for value in (1.0, 1.0, 2.0):
        network = nn.Linear(2, 2)
        nn.init.constant_(network.weight, value)
        nn.init.ones_(network.bias)
        hashes.append(of_network(torch.ao.quantization.quantize_dynamic(nn.Sequential(network))))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_of_torch_jit_from_a_file_has_a_hash_that_follows_values_that_are_no_tensors() -> None:
    hashes = []
    for value in (1.0, 1.0, 1.0 + 1e-9):
        file = io.BytesIO()
        torch.jit.save(torch.jit.script(Hiding(value)), file)
        file.seek(0)
        hashes.append(of_network(nn.Sequential(torch.jit.load(file))))
    assert hashes[0] == hashes[1] != hashes[2]
