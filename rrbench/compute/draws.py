"""Random numbers that depend on their purpose, never on batch size, device or order.

Each number is a hash of (stream, example id, restart, position), computed in 64-bit integers;
their overflow wraps in the same way on every device.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rrbench.compute.seeds import derive as derive

# The multipliers of SplitMix64 (Steele, Lea, Flood 2014), as signed 64-bit integers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_A = 0xBF58476D1CE4E5B9 - 2**64
_MIX_B = 0x94D049BB133111EB - 2**64


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right without sign: torch's int64 shift is arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _MIX_A
    value = (value ^ _shift(value, 27)) * _MIX_B
    return value ^ _shift(value, 31)


@dataclass
class HashedDraws:
    """One stream of random numbers, named by a derived seed."""

    stream: int

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        """Return (len(ids), *shape) float32 numbers in [0, 1), multiples of 2^-24."""
        return self._bits(ids, shape, restart, "uniform").float() * 2.0**-24

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        """Return (len(ids), *shape) float32 standard normal numbers (Box and Muller)."""
        # The added half keeps the logarithm away from zero.
        radius = (self._bits(ids, shape, restart, "radius").double() + 0.5) * 2.0**-24
        angle = self._bits(ids, shape, restart, "angle").double() * (2 * math.pi * 2.0**-24)
        return ((-2 * radius.log()).sqrt() * angle.cos()).float()

    def _bits(self, ids: Tensor, shape: tuple[int, ...], restart: int, tag: str) -> Tensor:
        """Return 24 random bits per number."""
        key = self._key(tag, restart, ids.device)
        rows = _mix(ids.long() * _GOLDEN + key)
        columns = torch.arange(1, math.prod(shape) + 1, device=ids.device) * _GOLDEN
        return _shift(_mix(rows[:, None] + columns), 40).view(len(ids), *shape)

    def _key(self, tag: str, restart: int, device: torch.device) -> int | Tensor:
        return derive(self.stream, tag, restart)


@dataclass
class ReplayedDraws(HashedDraws):
    """The same numbers, but its keys are tensors: a captured CUDA graph that uses them can switch to another stream."""

    _keys: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def follow(self, stream: int) -> None:
        """Switch to another stream."""
        self.stream = stream
        for (tag, restart), key in self._keys.items():
            key.fill_(derive(stream, tag, restart))

    def _key(self, tag: str, restart: int, device: torch.device) -> Tensor:
        if (tag, restart) not in self._keys:
            self._keys[tag, restart] = torch.tensor(derive(self.stream, tag, restart), device=device)
        return self._keys[tag, restart]
