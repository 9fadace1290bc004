"""Scores on disk take little space and come back bit by bit; fewer digits are used only where they tie few."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.rows.narrow import has_same, is_same, narrowed, widened
from rrbench.rows.scores import ATTACKS, DATA, SCORES, Scores, read_images, read_scores
from stored_scores import save_scores, scores_of

PREDICTION, LABELS = np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2])  # the third is wrong
CERTAINTY = np.array([0.9, 0.8, 0.7, 0.1])
WRONG = np.array([-np.inf, -np.inf, 0.7, -np.inf])


def made(**more: np.ndarray) -> Scores:
    return scores_of(PREDICTION, LABELS, CERTAINTY, 0.5, **more)


@pytest.mark.parametrize(
    ("boldest", "clean", "stored"),
    [
        (WRONG, CERTAINTY, set()),
        (WRONG, np.ones(4), {"certainty"}),
        (np.array([-np.inf, 0.2, 0.7, -np.inf]), CERTAINTY, {"boldest_certainty"}),
        (np.array([-np.inf, 0.2, 0.7, -np.inf]), np.ones(4), {"certainty", "boldest_certainty"}),
        (np.array([-np.inf, -np.inf, 0.8, -np.inf]), np.nextafter(CERTAINTY, 2), {"certainty", "boldest_certainty"}),
    ],
)
def test_only_what_does_not_follow_is_stored(
    tmp_path: Path, boldest: np.ndarray, clean: np.ndarray, stored: set[str]
) -> None:
    scores = made(boldest_certainty=boldest, clean_certainty=clean)
    files = save_scores(tmp_path, "key", scores)
    assert load_arrays(tmp_path / SCORES / "key.npz").keys() == stored
    back = read_scores(tmp_path, files)
    assert back.certainty.tolist() == CERTAINTY.tolist()
    assert back.boldest_certainty.tolist() == boldest.tolist()
    assert all(is_same(getattr(back, name), getattr(scores, name)) for name in Scores._fields)


@pytest.mark.parametrize(
    ("name", "array", "kind", "values"),
    [
        ("images", np.array([0, 1, 254, 255], np.float32) / np.float32(255), "uint8", [0, 1, 254, 255]),
        ("images", np.array([0, 0.5], np.float32), "float32", [0, 0.5]),  # 127.5 / 255
        ("images", np.array([np.nan, 1, 1.5], np.float32), "float32", [np.nan, 1, 1.5]),
        ("images", np.array([-1, 2], np.float32), "float32", [-1, 2]),
        ("prediction", np.array([0, 127]), "int8", [0, 127]),
        ("labels", np.array([0, 128]), "int16", [0, 128]),
        ("labels", np.array([-(2**31)]), "int32", [-(2**31)]),
        ("labels", np.array([2**31]), "int64", [2**31]),
        ("certainty", np.array([0.5, -np.inf, -0.0]), "float32", [0.5, -np.inf, -0.0]),
        ("confidence", np.array([1 + 2**-11, 0]), "float32", [1 + 2**-11, 0]),
        ("confidence", np.array([65520.0]), "float32", [65520]),  # infinite in half precision
        ("confidence", np.array([np.nan, 0.25]), "float16", [np.nan, 0.25]),
        ("confidence", np.array([0.1, 0.25]), "float64", [0.1, 0.25]),  # 0.1 has 52 bits behind the point
        ("clean_certainty", np.array([1e300]), "float64", [1e300]),
        ("own_threshold", np.array(0.5), "float64", 0.5),
        ("certainty", np.empty(0), "float32", []),
    ],
)
def test_an_array_has_the_smallest_type_that_holds_it(name: str, array: np.ndarray, kind: str, values: object) -> None:
    (small,) = narrowed({name: array}).values()
    assert small.dtype.name == kind
    assert np.array_equal(small, np.asarray(values), equal_nan=True)
    assert is_same(widened({name: small})[name], array)


def test_files_hold_the_same_whatever_their_types() -> None:
    one: dict[str, np.ndarray] = {
        "confidence": np.array([0.5, np.nan]),
        "apart_certainty": np.empty(0),
        "seconds": np.array(1.0),
    }
    other: dict[str, np.ndarray] = {
        "apart_certainty": np.empty(0, np.float16),
        "confidence": np.array([0.5, np.nan], np.float32),
    }
    assert not has_same(one, other)
    assert has_same(one, other, passing=("seconds",))
    assert has_same(other, one, passing=("seconds",))
    assert not has_same(one, {**one, "confidence": np.array([0.5 + 2**-50, np.nan])})
    assert not has_same(one, {**one, "seconds": np.array(1)}), "no reader expects another type here"


@pytest.mark.parametrize(("shift", "is_refused"), [(2**-12, False), (2**-10, True), (np.nan, True)])
def test_softmax_values_are_those_of_the_first_logits(tmp_path: Path, shift: float, is_refused: bool) -> None:
    scores = made()
    files = save_scores(tmp_path, "key", scores)
    path = tmp_path / ATTACKS / "key.npz"
    moved = {"prediction": scores.prediction, "confidence": scores.confidence - shift}
    save_arrays(path, {**load_arrays(path), **moved})
    with (
        pytest.raises(UseError, match="hold softmax values that are not those of its logits")
        if is_refused
        else nullcontext()
    ):
        read_scores(tmp_path, files)


def test_images_that_were_not_moved_are_those_of_the_data(tmp_path: Path) -> None:
    files = save_scores(tmp_path, "key", made())
    with pytest.raises(UseError, match="holds no images"):
        read_images(tmp_path, files)
    levels = np.arange(16, dtype=np.uint8).reshape(4, 1, 2, 2)
    save_arrays(tmp_path / DATA / "key.npz", {**load_arrays(tmp_path / DATA / "key.npz"), "images": levels})
    assert np.array_equal(read_images(tmp_path, files), (np.arange(16) / 255).astype(np.float32).reshape(4, 1, 2, 2))
    moved = np.full((4, 1, 2, 2), 0.3, np.float32)
    save_arrays(tmp_path / ATTACKS / "key.npz", {**load_arrays(tmp_path / ATTACKS / "key.npz"), "images": moved})
    assert np.array_equal(read_images(tmp_path, files), moved)


def test_certainties_are_rounded_together_and_confidences_by_themselves() -> None:
    scores = made(boldest_certainty=WRONG)
    rounded = scores.rounded()
    assert rounded.certainty.tolist() == [0.8999999761581421, 0.800000011920929, 0.699999988079071, 0.10000000149011612]
    assert rounded.boldest_certainty.tolist() == [-np.inf, -np.inf, 0.699999988079071, -np.inf]
    assert rounded.own_threshold == 0.5
    assert rounded.rounded() is rounded
    assert is_same(rounded.confidence, scores.confidence.astype(np.float16).astype(np.float64))
    saturated = scores._replace(clean_certainty=1 - np.arange(0, 4e-9, 1e-9))
    assert is_same(saturated.rounded().certainty, CERTAINTY), "a threshold of double precision judges it"
    assert is_same(saturated.rounded().confidence, rounded.confidence)
    assert is_same(scores.rounded(like=scores._replace(confidence=rounded.confidence)).certainty, CERTAINTY)
    assert is_same(scores.rounded(like=rounded).certainty, rounded.certainty)
    assert is_same(scores.rounded(like=rounded).confidence, rounded.confidence)
    single = scores.confidence.astype(np.float32).astype(np.float64)
    assert is_same(scores.rounded(like=rounded._replace(confidence=single)).confidence, single), "as older versions did"
    assert is_same(scores.rounded(like=scores).confidence, scores.confidence)
    huge = scores._replace(certainty=np.array([1e300, 3.0, 2.0, 1.0]))
    assert is_same(huge.rounded().certainty, huge.certainty), "it would become infinite"


@pytest.mark.parametrize(("ties", "is_rounded"), [(0, True), (1, True), (2, False)])
def test_single_precision_may_tie_one_value_in_a_thousand(ties: int, is_rounded: bool) -> None:
    values = np.arange(1000) / 1000 + 0.0001
    values[1 : 2 * ties : 2] = values[0 : 2 * ties : 2] * (1 + 1e-12)
    labels = np.zeros(1000, np.int64)
    scores = scores_of(labels, labels, values, 0.5)
    assert np.unique(values).size == 1000
    assert (scores.rounded().certainty.tolist() != values.tolist()) == is_rounded


def test_nothing_is_rounded_across_a_threshold_that_the_rejector_brings() -> None:
    values = np.arange(1, 11) / 10  # 0.7 in single precision lies below 0.7
    labels = np.zeros(10, np.int64)
    scores = scores_of(labels, labels, values, 0.5)
    assert scores.rounded().certainty[6] < 0.7
    with_own = scores._replace(own_threshold=np.asarray(0.7), confidence=values)
    assert is_same(with_own.rounded().certainty, values)
    assert with_own.rounded().confidence[6] == 0.7001953125, "other rejectors share it"
    beside = scores._replace(own_threshold=np.asarray(0.65))
    assert is_same(beside.rounded().certainty, scores.rounded().certainty)
