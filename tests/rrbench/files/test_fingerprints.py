"""A hash of a user's own object follows what it does and holds."""

import collections
import copy
import functools
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

from rrbench.files import attributes
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


def filled(value: float) -> nn.Module:
    network = nn.Linear(1, 1)
    for parameter in network.parameters():
        nn.init.constant_(parameter, value)
    return network


class Holder:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Slotted:
    __slots__ = ("__hidden", "empty", "sign")

    def __init__(self, sign: float, hidden: float = 0.0) -> None:
        self.sign, self.__hidden = sign, hidden


CLASS_ATTRIBUTES: dict[str, Callable[[float], Any]] = {
    "array": lambda value: np.array([value]),
    "array of objects": lambda value: np.array([Fraction(value), "text"], dtype=object),
    "scalar of NumPy": np.float32,
    "fraction": Fraction,
    "module": filled,
    "partial": lambda value: functools.partial(torch.clamp, min=value),
    "object": lambda value: Holder(sign=value),
    "object with slots": Slotted,
    "set": lambda value: {value},
    "class": lambda value: type("Inner", (), {"sign": value}),
    "cached method": lambda value: functools.lru_cache(lambda self: value),
}


@pytest.mark.parametrize("make", CLASS_ATTRIBUTES.values(), ids=CLASS_ATTRIBUTES)
@pytest.mark.parametrize("base", [object, nn.Module])
def test_an_attribute_of_a_class_counts_whatever_its_type(base: type, make: Callable[[float], Any]) -> None:
    one, same, other = (type("Own", (base,), {"value": make(value)})() for value in (1.0, 1.0, -1.0))
    hashed: Any = of_object if base is object else of_network
    assert hashed(one) == hashed(same) != hashed(other)


def test_a_class_that_was_copied_or_made_without_a_statement_has_a_hash_of_its_code() -> None:
    one = Slotted(1.0)
    before = of_object(one)
    copy.copy(one)  # Python then notes the slots in the class
    assert of_object(one) == before
    made = [types.new_class("Made", (), {}, lambda space, by=by: space.update(by=by)) for by in (2, 3)]  # type: ignore[misc]
    assert of_object(made[0]) != of_object(made[1])


def test_a_module_within_a_package_is_followed() -> None:
    hashes = []
    for sign in (1, 1, -1):
        package, helpers = types.ModuleType("mypkg"), types.ModuleType("mypkg.helpers")
        exec(f"def certain(outputs):\n    return {sign} * outputs", vars(helpers))
        package.helpers, helpers.package = helpers, package  # type: ignore[attr-defined]
        space: dict[str, Any] = {"mypkg": package, "__name__": "mine"}
        hashes.append(of_object(eval("lambda outputs: mypkg.helpers.certain(outputs)", space)))
    assert hashes[0] == hashes[1] != hashes[2]


def test_slots_count_also_hidden_and_empty_ones() -> None:
    assert of_object(Slotted(1.0)) == of_object(Slotted(1.0)) != of_object(Slotted(-1.0))
    assert of_object(Slotted(1.0)) != of_object(Slotted(1.0, 2.0))


def test_it_counts_which_attribute_holds_a_value() -> None:
    assert of_object(Holder(plus=1.0, minus=-1.0)) == of_object(Holder(minus=-1.0, plus=1.0))
    assert of_object(Holder(plus=1.0, minus=-1.0)) != of_object(Holder(minus=1.0, plus=-1.0))
    first, second = Holder(sign=1.0), Holder(sign=-1.0)
    # Each was met before.
    assert of_object([first, second, first]) != of_object([first, second, second])


def subclass(base: type, sign: int) -> Any:
    """Return an object of a class of one's own that holds the same builtin values; only its formula differs."""
    return type("Own", (base,), {"__call__": {1: lambda self, value: value, -1: lambda self, value: -value}[sign]})


class Pair(NamedTuple):
    first: float = 1.0


BUILTINS: dict[str, tuple[type, tuple[Any, ...]]] = {
    "dict": (dict, ({"t": 1.0},)),
    "ordered dict": (collections.OrderedDict, ({"t": 1.0},)),
    "list": (list, ([1.0],)),
    "tuple": (tuple, ([1.0],)),
    "named tuple": (Pair, (1.0,)),
    "set": (set, ([1.0],)),
    "deque": (collections.deque, ([1.0],)),
    "float": (float, (1.0,)),
    "text": (str, ("1",)),
    "partial": (functools.partial, (torch.relu,)),
    "property": (property, ()),
    "array": (np.ndarray, ((0,),)),
    "tensor": (Tensor, (torch.ones(1),)),
}


@pytest.mark.parametrize(("base", "given"), BUILTINS.values(), ids=BUILTINS)
def test_a_class_counts_by_its_code_also_if_it_is_derived_from_a_builtin(base: type, given: tuple[Any, ...]) -> None:
    one, same, other = (subclass(base, sign)(*given) for sign in (1, 1, -1))
    assert of_object(one) == of_object(same) != of_object(other)
    one.t, same.t = 1.0, 5.0
    assert of_object(one) != of_object(same), "an attribute"


def test_a_formula_of_a_named_tuple_counts() -> None:
    def made(sign: int) -> Any:
        class Own(NamedTuple):
            scale: float = 1.0

            def __call__(self, outputs: Tensor) -> Tensor:
                return (outputs if sign > 0 else -outputs) / self.scale

        return Own

    assert of_object(made(1)()) == of_object(made(1)()) != of_object(made(-1)())
    assert of_object(made(1)()) != of_object(made(1)(2.0))


def test_a_number_of_a_class_of_one_s_own_counts_also_if_it_prints_something_else() -> None:
    kind = type("Own", (float,), {"__repr__": lambda self: "a temperature"})
    assert of_object(kind(1.0)) == of_object(kind(1.0)) != of_object(kind(2.0))


def test_what_is_plain_keeps_the_hash_that_rows_already_have() -> None:
    assert of_object({"a": 1.5, "b": None, "c": True}) == "4e061b00e781e3a2"
    assert of_object([1, 2, (3, "a")]) == "d3e8cf2d63cbb19d"
    assert of_object(collections.OrderedDict(a=1)) == "191b53fcc4c80620"
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU())
    nn.init.ones_(network[1].get_parameter("weight"))
    nn.init.zeros_(network[1].get_parameter("bias"))
    assert of_network(network) == "cf422146d8d36f2121294e91a5a30dc6ef0c16ab101fd9a4d7835e3bcfc1eb99"


def attributed(**values: Any) -> Callable[[Any], Any]:
    def score(outputs: Any) -> Any:
        return outputs * score.t  # type: ignore[attr-defined]

    vars(score).update(values)
    return score


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "function": lambda function: function,
    "partial": functools.partial,
    "cached": functools.lru_cache,
    "wrapped": lambda function: functools.wraps(function)(lambda outputs: function(outputs)),
    "without gradient": torch.no_grad(),
    "method": lambda function: types.MethodType(function, 1.0),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_an_attribute_of_a_function_counts(wrap: Callable[[Any], Any]) -> None:
    one, same, other = (wrap(attributed(t=t)) for t in (1.0, 1.0, 5.0))
    assert of_object(one) == of_object(same) != of_object(other)
    if not isinstance(one, types.MethodType):
        same.t = 2.0
        assert of_object(one) != of_object(same), "on the wrapper itself"


def test_attributes_of_a_function_count_in_any_order_and_may_lead_back_to_it() -> None:
    one, same = attributed(t=1.0, u=2.0), attributed(u=2.0, t=1.0)
    one.self, same.self = one, same  # type: ignore[attr-defined]
    assert of_object(one) == of_object(same) != of_object(attributed(t=2.0, u=1.0))


def test_what_a_dict_returns_for_a_missing_key_counts() -> None:
    hashes = [of_object(collections.defaultdict(functools.partial(float, by))) for by in (1.0, 1.0, 2.0)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_every_number_of_a_large_tensor_in_a_deque_counts() -> None:
    """`repr` of it shows the first and the last ones."""
    one, other = torch.zeros(5000), torch.zeros(5000)
    other[2500] = 1e-7
    held = collections.deque
    assert of_object(held([one])) == of_object(held([one.clone()])) != of_object(held([other]))


def test_a_quantized_tensor_counts_with_its_scale() -> None:
    one, same, other = (torch.quantize_per_tensor(torch.tensor([by]), by, 0, torch.qint8) for by in (0.5, 0.5, 2.0))
    assert torch.equal(one.int_repr(), other.int_repr())
    assert of_object(one) == of_object(same) != of_object(other)


PROBE = """
import collections, functools, json, logging, random, re, sys, threading
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple
import numpy as np, scipy.special, sklearn.linear_model, torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from rrbench.files import attributes
from rrbench.files.fingerprints import of_network, of_object

for number in range(int(sys.argv[1])):  # what another process may hold besides
    logging.getLogger(f"other{number}")
    type(f"Other{number}", (torch.autograd.Function,), {})

class Kind(Enum):
    ONE = 1.5

class Number(IntEnum):
    ONE = 1

class Pair(NamedTuple):
    first: float = 1.0
    def __call__(self, images): return images * self.first

class Table(dict):
    def __missing__(self, key): return {"one", "two", "three"}

@functools.wraps(print)
@functools.lru_cache
def noted(images): return noted.words

noted.words = {"one", "two", "three"}

class Own(torch.autograd.Function):
    @staticmethod
    def forward(context, images): return images

path = Path("folder/file")
hash(path), str(path)

class Held:
    __slots__ = ("sign",)

held = Held()
held.sign = 1

class Network(nn.Module):
    array, objects, scalar = np.ones(3), np.array([Fraction(1, 2), "a"], dtype=object), np.float32(2)
    share, inner, partial = Fraction(1, 3), nn.ReLU(), functools.partial(torch.clamp, min=0)
    draws, legacy, python, lock = np.random.default_rng(0), np.random.RandomState(0), random.Random(0), threading.Lock()
    log, pattern, path, kind, own, held = logging.getLogger("mine"), re.compile("a"), path, Kind.ONE, Own, held
    words, cached = set("abcdefgh"), functools.lru_cache(lambda self: 1)
    number, pair, table, noted, missing = Number.ONE, Pair(), Table(a=1), noted, collections.defaultdict(lambda: 1)
    fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.spectral_norm(nn.Linear(2, 2))
        for weight in [*self.layer.parameters(), *self.layer.buffers()]: nn.init.ones_(weight)
        self._words, self._pair, self._parts, self._mean = set("abcdefgh"), Pair(), [self.layer], torch.ones(2)
        self._handle = self.layer.register_forward_hook(lambda module, given, answer: answer / noted.words)
        self.layer.register_forward_pre_hook(self.before, with_kwargs=True)
    def before(self, module, given, words): return given, words
    def forward(self, images):
        self.log.debug("%s", path)
        scipy.special.softmax(images.numpy(), 1)
        return sklearn.linear_model.LogisticRegression().decision_function(images)

network = Network()
parts = {name: of_object(value) for name, value in vars(Network).items() if name[0] != "_"}
found = [of_network(network), of_object(Network), parts]
"""


def test_hashes_are_the_same_in_each_process() -> None:
    """In two fresh ones that order sets differently and hold different things besides."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", f"{PROBE}\nprint(json.dumps(found))", number],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, seed in (("1", "0"), ("2", "1"))
    ]
    one, other = (json.loads(process.communicate(timeout=200)[0]) for process in processes)
    assert one == other


def test_a_users_file_with_the_name_of_a_standard_module_counts_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = []
    for sign in (1, -1):
        module = types.ModuleType("code")
        module.__file__ = str(tmp_path / "code.py")
        exec(f"def certain(outputs):\n    return {sign} * outputs", vars(module))
        monkeypatch.setitem(sys.modules, "code", module)
        attributes._is_pythons_own.cache_clear()
        hashes.append(of_object(module.certain))
    attributes._is_pythons_own.cache_clear()
    assert hashes[0] != hashes[1]
