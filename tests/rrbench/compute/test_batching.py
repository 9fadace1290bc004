import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rrbench.compute.batching import batch_size, copies, forward, in_batches
from rrbench.errors import CellError
from rrbench.protocols import Outputs

DATA = torch.arange(23.0)


@pytest.fixture(autouse=True, scope="module")
def _without_slow_collections() -> Iterator[None]:
    # With all of torch's objects about, a full collection takes a tenth of a second.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)
        yield


def squares(piece: slice) -> tuple[Tensor, Tensor]:
    return DATA[piece] ** 2, DATA[piece, None].expand(-1, 3)


def limited(capacity: int, work: Callable[[slice], tuple[Tensor, ...]]) -> Callable[[slice], tuple[Tensor, ...]]:
    """A device with room for `capacity` inputs at a time."""

    def guarded(piece: slice) -> tuple[Tensor, ...]:
        if piece.stop - piece.start > capacity:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return work(piece)

    return guarded


@settings(deadline=None)
@given(st.integers(1, 40))
def test_the_result_is_the_same_for_any_batch_size(size: int) -> None:
    first, second = in_batches(23, size, squares)
    assert first is not None
    assert second is not None
    assert torch.equal(first, DATA**2)
    assert torch.equal(second, DATA[:, None].expand(-1, 3))


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_out_of_memory_halves_the_batch_and_gives_the_same_result(size: int, capacity: int) -> None:
    sizes: list[int] = []
    first, second = in_batches(23, size, limited(capacity, squares), sizes.append)
    assert first is not None
    assert second is not None
    assert torch.equal(first, DATA**2)
    assert torch.equal(second, DATA[:, None].expand(-1, 3))
    assert sum(sizes) == 23
    assert max(sizes) <= capacity


def test_each_input_is_worked_on_once_and_a_smaller_batch_stays() -> None:
    sizes: list[int] = []
    in_batches(23, 16, limited(5, squares), sizes.append)
    assert sizes == [3] * 7 + [2]


def test_pieces_are_as_even_as_they_can_be() -> None:
    sizes: list[int] = []
    in_batches(23, 10, squares, sizes.append)
    assert sizes == [8, 8, 7]


def attempts(total: int, room: int, capacity: int, wanted: int, rows: int = 1) -> list[tuple[int, int]]:
    """Work with `wanted` things to try on each input and `rows` rows for each; return the (size, copies) tried."""
    tried: list[tuple[int, int]] = []

    def work(piece: slice) -> tuple[Tensor]:
        size = piece.stop - piece.start
        tried.append((size, copies(rows * size, wanted)))
        assert len(tried) < 100, "it goes on for ever"
        if rows * size * tried[-1][1] > capacity:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return (DATA[piece] ** 2,)

    (found,) = in_batches(total, room, work)
    assert found is not None
    assert torch.equal(found, DATA[:total] ** 2)
    return tried


def test_copies_fill_the_room_and_out_of_memory_halves_what_was_tried() -> None:
    assert attempts(6, room=16, capacity=12, wanted=9) == [(6, 2)]
    assert attempts(6, room=16, capacity=5, wanted=9) == [(6, 2), (6, 1), (3, 1), (3, 1)]
    assert attempts(1, room=16, capacity=16, wanted=9) == [(1, 9)]


def test_without_copies_the_piece_is_halved() -> None:
    assert attempts(10, room=5000, capacity=5, wanted=1) == [(10, 1), (5, 1), (5, 1)]


@settings(deadline=None)
@given(st.integers(1, 23), st.integers(1, 60), st.integers(1, 9), st.integers(1, 3))
def test_whatever_is_tried_on_however_many_rows_it_ends(total: int, room: int, wanted: int, rows: int) -> None:
    assert len(attempts(total, room, capacity=rows, wanted=wanted, rows=rows)) < total + 15


def test_copies_that_never_fit_are_given_up_at_a_single_image() -> None:
    def work(piece: slice) -> tuple[Tensor]:
        copies(piece.stop - piece.start, 3)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(CellError, match="out of memory with a single image"):
        in_batches(3, 16, work)


def test_there_is_no_room_for_copies_where_nobody_would_halve_them() -> None:
    assert copies(3, 9) == 1
    with pytest.raises(ValueError, match="other"):
        in_batches(3, 16, raises)
    assert copies(3, 9) == 1


def raises(piece: slice) -> tuple[Tensor]:
    raise ValueError("other")


def test_out_of_memory_with_a_single_image_fails_the_cell() -> None:
    with pytest.raises(CellError, match="out of memory with a single image"):
        in_batches(23, 16, limited(0, squares))


def test_another_error_is_not_taken_for_a_lack_of_memory() -> None:
    def broken(piece: slice) -> tuple[Tensor]:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        in_batches(23, 16, broken)


def test_the_tensors_of_a_failed_call_are_gone_when_the_cache_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.extend(reference() is not None for reference in held))

    def work(piece: slice) -> tuple[Tensor]:
        large = torch.zeros(piece.stop - piece.start)
        if len(large) > 8:
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return (large + 1,)

    (result,) = in_batches(16, 16, work)
    assert result is not None
    assert torch.equal(result, torch.ones(16))
    assert alive == [False]


def test_a_part_that_any_batch_leaves_out_is_left_out() -> None:
    def work(piece: slice) -> tuple[Tensor, Tensor | None]:
        return DATA[piece], None if piece.start == 0 else DATA[piece]

    first, second = in_batches(23, 10, work)
    assert first is not None
    assert torch.equal(first, DATA)
    assert second is None


@pytest.mark.parametrize("size", [1, 4, 100])
def test_forward_gives_the_network_s_outputs_without_a_graph(size: int) -> None:
    weight = torch.tensor([[1.0, -2.0, 0.5]], requires_grad=True)

    def network(images: Tensor) -> Outputs:
        features = images.flatten(1)
        return Outputs(features, features @ weight, features[:, :0])

    images = torch.arange(9.0).view(9, 1, 1, 1)
    outputs = forward(network, images, size)
    assert torch.equal(outputs.features, images.flatten(1))
    assert torch.equal(outputs.logits, images.flatten(1) * weight.detach())
    assert outputs.head.shape == (9, 0)
    assert not outputs.logits.requires_grad


@pytest.mark.parametrize(("free", "expected"), [(140 * 2**30, 5000), (24 * 2**30, 1536), (2**20, 1)])
def test_a_gpus_batch_follows_its_free_memory(monkeypatch: pytest.MonkeyPatch, free: int, expected: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free // 2, 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: free // 2 + 7)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 7)
    assert batch_size(torch.device("cuda"), (3, 32, 32)) == expected
