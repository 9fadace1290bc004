"""What results/README.md says of the attacks on every tenth image is what the stored scores give."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from published import CIFAR10, ROOT, cells_in, rows
from rrbench.metrics.measures import accept_at_tpr95
from rrbench.paper.cells import cells_of
from rrbench.rows.scores import Scores, read_scores

TENTH = ROOT / "results" / "tenth"
SHOWN = {
    ("pgd-at+snet", "snet"): "PGD-AT+SNet, SNet",
    ("pgd-at+ebd", "ebd"): "PGD-AT+EBD, EBD",
    ("pgd-at+rr", "rr"): "PGD-AT+RR, R-Con",
    ("trades+rr", "rr"): "TRADES+RR, R-Con",
}
# In rows; in the paper's cells; and as it is shown.
ATTACKS = (
    ("multi-target", "multitarget-100x20", "multi-target"),
    ("pgd1000x10(until=repeat)", "pgd-1000x10", "PGD-1000x10"),
)
RESAMPLES = 1000
WITHIN = 1.5  # points


@cache
def text() -> str:
    return (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### On every tenth image")[1]


@cache
def scores(folder: Path, trained_as: str, rejector: str, attack: str) -> Scores:
    (found,) = [
        record
        for record, _ in cells_in(folder)
        if (record.row.trained_as, record.row.rejector, record.row.attack) == (trained_as, rejector, attack)
        and (record.row.preset, record.row.eps) == ("paper", "8/255")
    ]
    return read_scores(folder, found.files)


def tpr95(given: Scores, chosen: slice | np.ndarray) -> float:
    correct = given.correct[chosen]
    accepted = accept_at_tpr95(given.certainty[chosen], correct, "quantile")
    assert accepted is not None
    return float(100 * correct[accepted].mean())


def never_wrong(given: Scores, chosen: slice = slice(None)) -> float:
    """Return the share of inputs for which the attack saw no wrong image on its way."""
    return float(100 * np.isneginf(given.boldest_certainty[chosen]).mean())


def on_all_images(attacked: Scores, yardstick: Scores) -> tuple[float, float, float]:
    """Estimate an attack's number on all images from every tenth, by a yardstick that is measured on both.

    The interval is over the tenth: 95 % of the estimates from resampled images.
    """
    tenth = slice(None, None, 10)
    assert (yardstick.ids[tenth] == attacked.ids).all()
    there, whole = np.arange(len(yardstick.ids))[tenth], tpr95(yardstick, slice(None))

    def estimate(places: np.ndarray) -> float:
        return whole + tpr95(attacked, places) - tpr95(yardstick, there[places])

    size = len(attacked.ids)
    generator = np.random.default_rng(0)
    resampled = [estimate(generator.integers(size, size=size)) for _ in range(RESAMPLES)]
    low, high = np.quantile(resampled, (0.025, 0.975))
    return estimate(np.arange(size)), float(low), float(high)


def lines() -> Iterator[tuple[str, float]]:
    """Yield the lines of the table, and how far each estimate is from the paper's number."""
    for attack, published, name in ATTACKS:
        for (trained_as, rejector), shown in SHOWN.items():
            key = trained_as, rejector, attack
            if not any((row.trained_as, row.rejector, row.attack) == key for row in rows("tenth")):
                continue
            (paper,) = {
                cell.value
                for cell in cells_of("table4") + cells_of("table8")
                if (cell.dataset, cell.at, cell.rejector) == ("cifar10", trained_as.split("+")[0], rejector)
                and (cell.attack, cell.metric) == (published, "acc_tpr95")
            }
            attacked = scores(TENTH, *key)
            yardstick = scores(CIFAR10, trained_as, rejector, "pgd100x10")
            about, low, high = on_all_images(attacked, yardstick)
            tenth, whole = tpr95(yardstick, slice(None, None, 10)), tpr95(yardstick, slice(None))
            numbers = f"{tpr95(attacked, slice(None)):.2f} ({paper}) | {tenth:.2f} | {whole:.2f}"
            right = f"{100 * attacked.correct.mean():.1f} | {never_wrong(attacked):.1f}"
            yield (
                f"| {shown}, {name} | {numbers} | {about:.2f} [{low:.2f}, {high:.2f}] | {right} |",
                about - float(paper),
            )


def test_by_a_yardstick_every_number_on_a_tenth_is_near_the_papers() -> None:
    found = list(lines())
    assert len(found) == 5
    for line, apart in found:
        assert f"\n{line}\n" in text()
        assert abs(apart) <= WITHIN


def span(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f} %"


def test_multi_target_finds_more_than_it_keeps() -> None:
    found = [scores(TENTH, *victim, "multi-target") for victim in SHOWN]
    rivals = [scores(CIFAR10, *victim, "gama-fw") for victim in SHOWN]
    seen = [never_wrong(each) for each in found]
    kept = [100 * float(each.correct.mean()) for each in found]
    left = [100 * float(each.correct[::10].mean()) for each in rivals]
    assert all(ours < theirs < answered for ours, theirs, answered in zip(seen, left, kept, strict=True))
    flat = " ".join(text().split())
    assert (
        f"for all but {span(seen)} of the inputs, fewer than GAMA-FW leaves right on the same images ({span(left)})"
        in flat
    )
    assert f"{span(kept)} are answered right" in flat


def test_the_numbers_of_the_other_attacks_are_those_of_the_rows() -> None:
    found = {row.attack: row for row in rows("tenth") if row.rejector == "snet"}
    normal, adaptive = found["cw-linf"], found["cw-linf(goal=adaptive)"]
    flat = " ".join(text().split())
    assert f"by {normal.distance:.2f} of 255 in the mean" in flat
    assert f"it moves by {adaptive.distance:.2f} (" in flat
    first, second = (100 * (row.success or 0) for row in (normal, adaptive))
    seconds = f"{normal.seconds:.0f} and {adaptive.seconds:.0f} s"
    assert f"succeeds for {first:.1f} and {second:.1f} % of the images, in {seconds}" in flat
    gradients = f"{found['pgd1000x10(until=repeat)'].gradients:,.0f} gradients an image"
    assert f"PGD-1000x10 took {gradients} with `until=repeat`, of 10,000" in flat
    assert f"took {gradients} instead of 10,000" in " ".join((ROOT / "docs" / "attack.md").read_text().split())
