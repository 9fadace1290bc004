"""One line of a contract."""

from collections.abc import Callable
from dataclasses import dataclass


class BrokenContractError(AssertionError):
    """A plugin breaks the contract."""


@dataclass(frozen=True)
class Check:
    """A sentence that must be true of a plugin; calling it raises an error if it is not."""

    sentence: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Check the sentence."""
        self.run()

    def __str__(self) -> str:
        return self.sentence


def expect(is_true: object, otherwise: str) -> None:
    """Raise an error with the line `otherwise` unless true."""
    if not is_true:
        raise BrokenContractError(otherwise)
