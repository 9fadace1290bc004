"""Seals what a plugin did not declare: if the plugin reads it, the error says what to write."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from rrbench.errors import CellError

# These functions return a tensor without reading its values.
_UNREAD = frozenset({Tensor.__getitem__, Tensor.detach})
_ABOUT = frozenset({Tensor.device.__get__, Tensor.dtype.__get__})  # type: ignore[attr-defined]


class SealedTensor(Tensor):
    """A tensor that can be passed on but not read."""

    why: ClassVar[str] = ""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuse every PyTorch function except those that pass a tensor on."""
        if func in _UNREAD and isinstance(args[0], cls):
            return args[0]
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args)
        raise CellError(cls.why)


@cache
def sealed(why: str) -> Tensor:
    """Return a tensor that raises an error with `why` when it is read."""
    kind = type("SealedTensor", (SealedTensor,), {"why": why})
    return cast(Tensor, torch.empty(0).as_subclass(kind))


class Hidden:
    """Replaces an object that must not be read, and raises an error with `why` when it is."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise CellError(self._why)

    def __bool__(self) -> bool:
        raise CellError(self._why)

    def __iter__(self) -> Iterator[Any]:
        raise CellError(self._why)

    def __getitem__(self, index: object) -> Any:
        raise CellError(self._why)
