"""An attack's outcome on disk comes back as it was, once for all rejectors, and is never written over."""

from pathlib import Path

import pytest
import torch

from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.measuring.answers import kept_of, load_answers, save_answers, shrink
from rrbench.measuring.evaluation import Attacked
from rrbench.measuring.store import Store
from rrbench.protocols import Outputs
from rrbench.rows.narrow import widened
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import Scores, read_scores

CPU = torch.device("cpu")
ROW = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "confidence", "pgd10", "linf", "3/20", 0, "quick", 20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def outputs(seed: int) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    return Outputs(*(torch.rand(20, width, generator=generator) for width in (3, 2, 1)))


@pytest.fixture
def attacked() -> Attacked:
    images = torch.rand(20, 1, 2, 2)
    still = torch.arange(20) % 3 == 0
    return Attacked(outputs(0), outputs(1), images, 1 - images, 1.5, 10.0, 11.0, 0.25, still, lost=("a: b, c",))


def test_what_is_saved_whole_comes_back_whole(store: Store, attacked: Attacked) -> None:
    saved = save_answers(store, "key", attacked, with_features=True, with_images=True, kept={"images"})
    found = load_answers(store, "key", CPU, with_features=True, with_images=True)
    assert found is not None
    assert (found.file, found.sha256) == (saved.file, saved.sha256) == ("attacks/key.npz", found.sha256)
    for name in ("images", "boldest_images", "is_still"):
        assert torch.equal(getattr(found.attacked, name), getattr(attacked, name))
    for name in ("outputs", "boldest"):
        for part in Outputs._fields:
            assert torch.equal(getattr(getattr(found.attacked, name), part), getattr(getattr(attacked, name), part))
    facts = ("seconds", "gradients", "forwards", "vanished", "lost", "distances", "reached")
    assert [getattr(found.attacked, name) for name in facts] == [getattr(attacked, name) for name in facts]
    assert kept_of(store, "key") == {"images"}


def test_what_was_not_kept_is_not_found(store: Store, attacked: Attacked) -> None:
    assert kept_of(store, "key") == frozenset()
    assert load_answers(store, "key", CPU, with_features=False, with_images=False) is None
    save_answers(store, "key", attacked._replace(lost=()), with_features=False, with_images=False)
    assert load_answers(store, "key", CPU, with_features=True, with_images=False) is None
    assert load_answers(store, "key", CPU, with_features=False, with_images=True) is None
    found = load_answers(store, "key", CPU, with_features=False, with_images=False)
    assert found is not None
    assert len(found.attacked.images) == 16
    assert found.attacked.lost == ()
    assert [path.name for path in (store.root / "attacks").iterdir()] == ["key.npz"]


def test_boldest_outputs_are_stored_only_where_they_differ(store: Store, attacked: Attacked) -> None:
    for boldest, is_stored in ((attacked.outputs, False), (outputs(0), False), (outputs(1), True)):
        save_answers(store, "key", attacked._replace(boldest=boldest), with_features=False, with_images=False)
        assert ("boldest_logits" in load_arrays(store.attack_path("key"))) == is_stored
        found = load_answers(store, "key", CPU, with_features=False, with_images=False)
        assert found is not None
        assert torch.equal(found.attacked.boldest.logits, boldest.logits)


def test_images_are_stored_if_one_of_the_first_was_moved(store: Store, attacked: Attacked) -> None:
    """Else those of the data are the same, and data/ has them once."""
    unmoved = attacked._replace(is_still=torch.arange(20) < 16)
    for given, is_stored in ((attacked, True), (unmoved, False)):
        save_answers(store, "key", given, with_features=False, with_images=False)
        assert ("images" in load_arrays(store.attack_path("key"))) == is_stored
        found = load_answers(store, "key", CPU, with_features=False, with_images=False)
        assert found is not None
        assert torch.equal(found.attacked.outputs.logits, attacked.outputs.logits)
    save_answers(store, "key", unmoved, with_features=False, with_images=True)
    found = load_answers(store, "key", CPU, with_features=False, with_images=True)
    assert found is not None
    assert torch.equal(found.attacked.images, attacked.images)


def test_an_attack_that_an_older_version_stored_with_all_its_arrays_is_not_stored_again(
    store: Store, attacked: Attacked
) -> None:
    unmoved = attacked._replace(is_still=torch.ones(20, dtype=torch.bool))
    for key, is_shared in (("key", True), ("other", False)):
        save_answers(store, key, unmoved, with_features=False, with_images=False, is_shared=is_shared)
        arrays = widened(load_arrays(store.attack_path(key))) | {"images": attacked.images[:16].numpy()}
        digest = save_arrays(store.attack_path(key), arrays)
        named(store, f"attacks/{key}.npz", digest)
        again = save_answers(store, key, unmoved, with_features=True, with_images=False, is_shared=is_shared)
        assert (again.file, again.sha256) == (f"attacks/{key}.npz", digest)


def test_distances_come_back(store: Store, attacked: Attacked) -> None:
    distances, reached = torch.rand(20).double(), torch.rand(20) > 0.5
    given = attacked._replace(distances=distances, reached=reached)
    save_answers(store, "key", given, with_features=False, with_images=False)
    found = load_answers(store, "key", CPU, with_features=False, with_images=False)
    assert found is not None
    assert found.attacked.distances is not None
    assert found.attacked.reached is not None
    assert torch.equal(found.attacked.distances, distances)
    assert torch.equal(found.attacked.reached, reached)


def test_shrinking_leaves_what_was_asked_for_and_the_named_file_as_it_is(store: Store, attacked: Attacked) -> None:
    saved = save_answers(store, "key", attacked, with_features=True, with_images=True, kept={"features"})
    shrink(store, "key", ())
    assert set(load_arrays(store.whole_path("key"))) == {"features", "boldest_features", "of", "kept"}
    shrink(store, "key", {"images"})
    assert kept_of(store, "key") == {"features"}, "images are gone already"
    found = load_answers(store, "key", CPU, with_features=True, with_images=False)
    assert found is not None
    assert found.sha256 == saved.sha256
    save_answers(store, "other", attacked, with_features=True, with_images=True)
    shrink(store, "other", ())
    assert not store.whole_path("other").exists()


def named(store: Store, file: str, digest: str) -> None:
    store.save_cell(
        CellRecord(
            f"cell{len(store.cells())}",
            "key",
            ROW,
            {"checkpoint": "c", "tpr_rule": "quantile", "resamples": 0},
            {file: digest},
        )
    )


def test_an_attack_that_is_run_again_and_ends_alike_leaves_the_file_as_it_is(store: Store, attacked: Attacked) -> None:
    first = save_answers(store, "key", attacked, with_features=False, with_images=False)
    named(store, first.file, first.sha256)
    again = save_answers(store, "key", attacked._replace(seconds=9.0), with_features=True, with_images=False)
    assert (again.file, again.sha256) == (first.file, first.sha256)
    assert load_answers(store, "key", CPU, with_features=True, with_images=False) is not None


def test_an_attack_that_is_run_again_and_ends_otherwise_lies_beside_what_cells_name(
    store: Store, attacked: Attacked
) -> None:
    first = save_answers(store, "key", attacked, with_features=False, with_images=False)
    named(store, first.file, first.sha256)
    other = attacked._replace(outputs=outputs(2))
    second = save_answers(store, "key", other, with_features=True, with_images=False)
    assert second.file.startswith("attacks/key-")
    assert store.is_sound(first.file)
    found = load_answers(store, "key", CPU, with_features=True, with_images=False)
    assert found is not None
    assert found.file == second.file, "the features are of the second run"
    assert torch.equal(found.attacked.outputs.logits, other.outputs.logits)


def test_a_file_that_is_not_what_cells_name_is_not_used_and_is_written_over(store: Store, attacked: Attacked) -> None:
    first = save_answers(store, "key", attacked, with_features=False, with_images=False)
    named(store, first.file, first.sha256)
    arrays = load_arrays(store.attack_path("key"))
    save_arrays(store.attack_path("key"), {**arrays, "logits": arrays["logits"] + 1})
    assert load_answers(store, "key", CPU, with_features=False, with_images=False) is None
    store.attack_path("key").write_bytes(b"half a file")
    assert load_answers(store, "key", CPU, with_features=False, with_images=False) is None
    again = save_answers(store, "key", attacked, with_features=False, with_images=False)
    assert (again.file, again.sha256) == (first.file, first.sha256)


def test_what_was_published_without_its_costs_serves_its_own_cells_alone(store: Store, attacked: Attacked) -> None:
    save_answers(store, "key", attacked, with_features=False, with_images=False)
    arrays = load_arrays(store.attack_path("key"))
    save_arrays(store.attack_path("key"), {name: part for name, part in arrays.items() if name != "vanished"})
    assert load_answers(store, "key", CPU, with_features=False, with_images=False) is None


def test_what_serves_one_rejector_keeps_classes_and_the_first_logits_once_that_has_its_row(
    store: Store, attacked: Attacked
) -> None:
    save_answers(store, "key", attacked, with_features=False, with_images=False, is_shared=False)
    found = load_answers(store, "key", CPU, with_features=False, with_images=False)
    assert found is not None, "a run that is killed before the row goes on from here"
    assert torch.equal(found.attacked.boldest.logits, attacked.boldest.logits)
    shrink(store, "key", ())
    assert load_answers(store, "key", CPU, with_features=False, with_images=False) is None
    stays = load_arrays(store.attack_path("key"))
    logits = attacked.outputs.logits
    assert stays["prediction"].tolist() == logits.argmax(1).tolist()
    assert stays["confidence"] == pytest.approx(logits.double().softmax(1).amax(1).numpy(), rel=1e-12)
    assert torch.equal(torch.from_numpy(stays["logits"]), logits[:16])
    assert not store.whole_path("key").exists()
    assert not [name for name in stays if name.startswith("boldest")]


def test_a_run_stores_an_adaptive_attack_so_and_a_blind_one_with_all_its_logits(folder: Path) -> None:
    for record, _ in Store(folder).cells():
        scores = read_scores(folder, record.files)
        is_adaptive = record.row.attack.startswith("adaptive")
        assert len(scores.logits) == (16 if is_adaptive else 60)
        assert len(scores.prediction) == len(scores.confidence) == 60
        assert record.row.acc_all == 100 * int((scores.prediction == scores.labels).sum()) / 60
        assert record.row.ece == pytest.approx(_ece(scores), abs=1e-12)


def _ece(scores: Scores) -> float:
    """Compute the calibration error bin by bin, as its definition says."""
    total = 0.0
    for low in range(15):
        inside = (scores.confidence > low / 15) & (scores.confidence <= (low + 1) / 15)
        total += abs(float(scores.confidence[inside].sum() - scores.correct[inside].sum()))
    return total / len(scores.labels)
