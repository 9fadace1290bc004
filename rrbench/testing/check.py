"""One line of a contract."""

from collections.abc import Callable
from dataclasses import dataclass


class BrokenContractError(AssertionError):
    """What a plugin does is not what the contract says."""


@dataclass(frozen=True)
class Check:
    """A sentence that must be true of a plugin; calling it raises where it is not."""

    sentence: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Look whether it is true."""
        self.run()

    def __str__(self) -> str:
        return self.sentence


def expect(is_true: object, otherwise: str) -> None:
    """Raise with a line that says what is wrong."""
    if not is_true:
        raise BrokenContractError(otherwise)
