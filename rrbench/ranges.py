"""Refuses settings out of range, for a plugin's `__post_init__`: one line, when the choice is read."""

from fractions import Fraction

from rrbench.names import show

Number = float | Fraction


def at_least(lowest: Number, **settings: Number | None) -> None:
    """Refuse values below; None is allowed."""
    for name, value in settings.items():
        if value is not None and not value >= lowest:
            raise ValueError(f"{name} must be at least {show(lowest)}, not {show(value)}")


def above(lowest: Number, **settings: Number | None) -> None:
    """Refuse values below or equal; None is allowed."""
    for name, value in settings.items():
        if value is not None and not value > lowest:
            raise ValueError(f"{name} must be above {show(lowest)}, not {show(value)}")


def at_most(highest: Number, **settings: Number | None) -> None:
    """Refuse values above; None is allowed."""
    for name, value in settings.items():
        if value is not None and not value <= highest:
            raise ValueError(f"{name} must be at most {show(highest)}, not {show(value)}")


def below(highest: Number, **settings: Number | None) -> None:
    """Refuse values above or equal; None is allowed."""
    for name, value in settings.items():
        if value is not None and not value < highest:
            raise ValueError(f"{name} must be below {show(highest)}, not {show(value)}")
