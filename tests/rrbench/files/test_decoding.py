"""What a file holds becomes a record, or one line that says which field is wrong."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from rrbench.files.decoding import from_json, from_texts


@dataclass(frozen=True)
class Network:
    name: str
    seed: int
    accuracy: float
    n: int | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


class Thresholds(NamedTuple):
    whole: float
    folds: tuple[float, ...] = ()


SOUND = {"name": "small-cnn", "seed": 0, "accuracy": 99}


def test_a_sound_object_becomes_the_record() -> None:
    assert from_json(Network, SOUND, "a network") == Network("small-cnn", 0, 99)
    assert from_json(Network, SOUND | {"n": 5, "recipe": {"epochs": 1}}, "a network").recipe == {"epochs": 1}
    assert from_json(Thresholds, {"whole": 1, "folds": [0.5, 0.25]}, "it") == Thresholds(1, (0.5, 0.25))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (["small-cnn"], "a network is ['small-cnn']"),
        ({"name": "small-cnn"}, "a network lacks seed, accuracy"),
        (SOUND | {"colour": 1}, "a network has an unknown field 'colour'"),
        (SOUND | {"name": None}, "name of a network is None"),
        (SOUND | {"seed": 0.0}, "seed of a network is 0.0"),
        (SOUND | {"seed": True}, "seed of a network is True"),
        (SOUND | {"accuracy": True}, "accuracy of a network is True"),
        (SOUND | {"accuracy": "99"}, "accuracy of a network is '99'"),
        (SOUND | {"recipe": [1]}, "recipe of a network is [1]"),
    ],
)
def test_what_does_not_fit_is_named(values: object, line: str) -> None:
    with pytest.raises(TypeError) as refused:
        from_json(Network, values, "a network")
    assert str(refused.value) == line


@dataclass(frozen=True)
class Line:
    name: str
    seed: int
    accuracy: float | None


def test_a_line_of_a_csv_becomes_the_record() -> None:
    assert from_texts(Line, {"name": "", "seed": "3", "accuracy": ""}, "a row") == Line("", 3, None)
    assert from_texts(Line, {"name": "a", "seed": "3", "accuracy": "99.5", "more": "x"}, "a row") == Line("a", 3, 99.5)


@pytest.mark.parametrize("change", [{"seed": ""}, {"seed": "1.5"}, {"accuracy": "high"}, {"accuracy": None}])
def test_a_line_that_does_not_fit_is_refused(change: dict[str, str | None]) -> None:
    with pytest.raises(ValueError, match="a row is cut off" if None in change.values() else "."):
        from_texts(Line, {"name": "a", "seed": "3", "accuracy": "99.5"} | change, "a row")
