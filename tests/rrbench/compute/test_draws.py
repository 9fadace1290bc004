import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from rrbench.compute.draws import HashedDraws, derive

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12)
STREAMS = st.integers(0, 2**63 - 1)
MANY = torch.arange(400)
SHAPE = (3, 4, 5)

Draw = Callable[[HashedDraws], Callable[[Tensor, tuple[int, ...], int], Tensor]]
KINDS: dict[str, Draw] = {"uniform": lambda draws: draws.uniform, "normal": lambda draws: draws.normal}
each_kind = pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))


GOLDEN_SEED = 3570107730479322321
GOLDEN_UNIFORM = [
    [0.34510886669158936, 0.6172391772270203],
    [0.29164546728134155, 0.5496275424957275],
    [0.29077017307281494, 0.4781879186630249],
]
GOLDEN_NORMAL = [
    [-0.1683257669210434, 0.4465133547782898],
    [-0.4707980453968048, 1.653644323348999],
    [0.20315776765346527, 0.3656206429004669],
]


def split_mix_64(state: int) -> int:
    """The output function of SplitMix64, in Python's own integers."""
    word = 2**64 - 1
    state &= word
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & word
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & word
    return state ^ (state >> 31)


def bits_by_hand(stream: int, tag: str, restart: int, identity: int, position: int) -> int:
    golden = 0x9E3779B97F4A7C15
    key = int.from_bytes(hashlib.sha256(f"{stream}\0{tag}\0{restart}".encode()).digest()[:8], "big") >> 1
    return split_mix_64(split_mix_64(identity * golden + key) + (position + 1) * golden) >> 40


def test_the_reference_mixer_is_split_mix_64() -> None:
    # The published test vector: seed 1234567.
    state, golden = 1234567, 0x9E3779B97F4A7C15
    outputs = [split_mix_64(state + golden * index) for index in range(1, 4)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(deadline=None, max_examples=30)
@given(STREAMS, IDS, st.integers(0, 20))
def test_uniform_numbers_are_the_hash_worked_out_in_whole_numbers(stream: int, ids: list[int], restart: int) -> None:
    found = HashedDraws(stream).uniform(torch.tensor(ids), (2, 3), restart)
    expected = [
        [bits_by_hand(stream, "uniform", restart, identity, position) * 2.0**-24 for position in range(6)]
        for identity in ids
    ]
    assert found.flatten(1).tolist() == expected
    assert found.dtype == torch.float32


@settings(deadline=None, max_examples=30)
@given(STREAMS, IDS, st.integers(0, 20))
def test_normal_numbers_are_box_and_muller_of_two_hashes(stream: int, ids: list[int], restart: int) -> None:
    found = HashedDraws(stream).normal(torch.tensor(ids), (4,), restart)
    for row, identity in zip(found.tolist(), ids, strict=True):
        for position, value in enumerate(row):
            radius = (bits_by_hand(stream, "radius", restart, identity, position) + 0.5) * 2.0**-24
            angle = bits_by_hand(stream, "angle", restart, identity, position) * 2.0**-24
            expected = math.sqrt(-2 * math.log(radius)) * math.cos(2 * math.pi * angle)
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_numbers_never_change_between_versions() -> None:
    # Every stored result depends on these.
    draws = HashedDraws(derive(0, "attack", "pgd"))
    assert derive(0, "attack", "pgd") == GOLDEN_SEED
    assert draws.uniform(torch.tensor([0, 1, 9999]), (2,), 0).tolist() == GOLDEN_UNIFORM
    torch.testing.assert_close(draws.normal(torch.tensor([0, 1, 9999]), (2,), 3), torch.tensor(GOLDEN_NORMAL))


@each_kind
@settings(deadline=None, max_examples=30)
@given(st.permutations(range(12)), st.integers(1, 12), STREAMS)
def test_neither_the_order_nor_the_split_into_batches_changes_a_number(
    kind: Draw, order: list[int], size: int, stream: int
) -> None:
    draw = kind(HashedDraws(stream))
    whole = draw(torch.arange(12), (2, 2), 1)
    pieces = [draw(piece, (2, 2), 1) for piece in torch.tensor(order).split(size)]
    assert torch.equal(torch.cat(pieces), whole[order])


@each_kind
def test_every_part_of_the_name_of_a_number_changes_it(kind: Draw) -> None:
    base = kind(HashedDraws(5))(MANY, SHAPE, 0)
    other_seed = kind(HashedDraws(6))(MANY, SHAPE, 0)
    other_restart = kind(HashedDraws(5))(MANY, SHAPE, 1)
    other_ids = kind(HashedDraws(5))(MANY + len(MANY), SHAPE, 0)
    for other in (other_seed, other_restart, other_ids):
        assert (base == other).double().mean() < 1e-3
    numbers = base.flatten().tolist()
    assert len(set(numbers)) > 0.99 * len(numbers)


@each_kind
def test_a_number_depends_on_its_position_and_not_on_the_shape(kind: Draw) -> None:
    draw = kind(HashedDraws(5))
    assert torch.equal(draw(MANY, (3, 20), 0).flatten(1), draw(MANY, SHAPE, 0).flatten(1))
    assert torch.equal(draw(MANY, (7,), 0), draw(MANY, SHAPE, 0).flatten(1)[:, :7])


@each_kind
def test_shapes_at_the_edge(kind: Draw) -> None:
    draw = kind(HashedDraws(5))
    assert draw(torch.arange(0), SHAPE, 0).shape == (0, *SHAPE)
    assert draw(torch.arange(2), (), 0).shape == (2,)
    assert torch.equal(draw(torch.arange(2, dtype=torch.int32), (3,), 0), draw(torch.arange(2), (3,), 0))


@pytest.mark.parametrize("stream", [0, 1, derive(0, "attack", "pgd"), 2**63 - 1])
def test_the_numbers_are_uniform_and_normal(stream: int) -> None:
    draws = HashedDraws(stream)
    uniform, normal = draws.uniform(MANY, SHAPE, 0), draws.normal(MANY, SHAPE, 0)
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1
    assert stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    # Also along one position over ids, and along one id over positions.
    for line in (uniform[:, 0, 0, 0], uniform[7].flatten(), draws.uniform(torch.tensor([3]), (5000,), 0)[0]):
        assert stats.kstest(line.numpy(), "uniform").pvalue > 1e-3


@each_kind
def test_neighbours_are_not_correlated(kind: Draw) -> None:
    draw = kind(HashedDraws(11))
    base = draw(MANY, SHAPE, 0).double()
    pairs = {
        "ids": (base[:-1], base[1:]),
        "restarts": (base, draw(MANY, SHAPE, 1)),
        "seeds": (base, kind(HashedDraws(12))(MANY, SHAPE, 0)),
        "positions": (base.flatten(1)[:, :-1], base.flatten(1)[:, 1:]),
        # Equal sums of id and position must not meet.
        "diagonal": (base.flatten(1)[:-1, 1:], base.flatten(1)[1:, :-1]),
    }
    for name, (first, second) in pairs.items():
        correlation = np.corrcoef(first.flatten().numpy(), second.flatten().numpy())[0, 1]
        assert abs(correlation) < 4 / math.sqrt(first.numel()), name


def test_uniform_and_normal_numbers_of_one_place_are_not_correlated() -> None:
    draws = HashedDraws(11)
    uniform, normal = draws.uniform(MANY, SHAPE, 0).flatten(), draws.normal(MANY, SHAPE, 0).flatten()
    for other in (normal, normal.abs()):
        assert abs(np.corrcoef(uniform.numpy(), other.numpy())[0, 1]) < 4 / math.sqrt(len(uniform))


def test_seeds_of_different_purposes_differ() -> None:
    seeds = {derive(seed, *purpose) for seed in range(50) for purpose in [(), ("a",), ("a", 0), ("a0",), ("a", "0b")]}
    assert len(seeds) == 250
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_numbers() -> None:
    draws, ids = HashedDraws(3), torch.arange(1000)
    assert torch.equal(draws.uniform(ids.cuda(), SHAPE, 2).cpu(), draws.uniform(ids, SHAPE, 2))
    torch.testing.assert_close(draws.normal(ids.cuda(), SHAPE, 2).cpu(), draws.normal(ids, SHAPE, 2))
