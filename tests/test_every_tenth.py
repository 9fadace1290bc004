"""What results/README.md says of the attacks on every tenth image is what the stored scores give."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

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


def on_all_images(attacked: Scores, yardstick: Scores) -> tuple[float, float]:
    """Estimate an attack's number on all images from every tenth, by a yardstick that is measured on both.

    The second number is half of a 95 % interval: 1.96 standard deviations of estimates from resampled images. Their
    quantiles would not do, since the estimates lie a little higher than the one from the images themselves.
    """
    tenth = slice(None, None, 10)
    assert (yardstick.ids[tenth] == attacked.ids).all()
    there, whole = np.arange(len(yardstick.ids))[tenth], tpr95(yardstick, slice(None))

    def estimate(places: np.ndarray) -> float:
        return whole + tpr95(attacked, places) - tpr95(yardstick, there[places])

    size = len(attacked.ids)
    generator = np.random.default_rng(0)
    resampled = [estimate(generator.integers(size, size=size)) for _ in range(RESAMPLES)]
    return estimate(np.arange(size)), 1.96 * float(np.std(resampled))


class Line(NamedTuple):
    """A line of the table."""

    name: str
    tenth: float  # measured on every tenth image
    paper: str
    estimate: float  # for all images
    half: float  # of the interval
    shown: str


def lines() -> Iterator[Line]:
    """Yield the lines of the table."""
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
            own, (estimate, half) = tpr95(attacked, slice(None)), on_all_images(attacked, yardstick)
            tenth, whole = tpr95(yardstick, slice(None, None, 10)), tpr95(yardstick, slice(None))
            cells = (
                f"{shown}, {name}",
                f"{own:.2f} ({paper})",
                f"{tenth:.2f}",
                f"{whole:.2f}",
                f"{estimate:.2f} ± {half:.2f}",
                f"{100 * attacked.correct.mean():.1f}",
                f"{never_wrong(attacked):.1f}",
            )
            yield Line(f"{shown}, {name}", own, paper, estimate, half, f"| {' | '.join(cells)} |")


def test_by_a_yardstick_every_number_on_a_tenth_is_near_the_papers() -> None:
    found = list(lines())
    assert len(found) == 5
    for line in found:
        assert f"\n{line.shown}\n" in text()
        assert abs(line.tenth - float(line.paper)) > WITHIN
        assert abs(line.estimate - float(line.paper)) <= WITHIN
    apart = [abs(line.estimate - float(line.paper)) - line.half for line in found]
    assert [each > 0 for each in apart] == [False, False, False, False, True]
    flat = " ".join(text().split())
    assert (
        f"Four of the five intervals hold the paper's number; that of PGD-1000x10 ends {apart[-1]:.2f} below it."
        in flat
    )


def test_the_tenth_is_harder_than_all_images() -> None:
    yardsticks = [scores(CIFAR10, *victim, "pgd100x10") for victim in SHOWN]
    lower = [tpr95(each, slice(None)) - tpr95(each, slice(None, None, 10)) for each in yardsticks]
    assert f"its TPR-95 is {min(lower):.1f} to {max(lower):.1f} points lower on them" in " ".join(text().split())


def test_multi_target_finds_more_than_it_keeps() -> None:
    found = [scores(TENTH, *victim, "multi-target") for victim in SHOWN]
    rivals = [scores(CIFAR10, *victim, "gama-fw") for victim in SHOWN]
    unseen = [int(np.isneginf(each.boldest_certainty).sum()) for each in found]
    left = [int(each.correct[::10].sum()) for each in rivals]
    kept = [int(each.correct.sum()) for each in found]
    assert all(ours < theirs < answered for ours, theirs, answered in zip(unseen, left, kept, strict=True))
    flat = " ".join(text().split())
    assert f"for all but {min(unseen)} to {max(unseen)} of 1,000 inputs" in flat
    assert f"GAMA-FW leaves {min(left)} to {max(left)} of them right, by 100 gradients instead of 18,000" in flat
    assert f"{min(kept)} to {max(kept)} are answered right" in flat
    assert {row.gradients for row in rows("tenth") if row.attack == "multi-target"} == {18_000}
    findings = " ".join((ROOT / "results" / "FINDINGS.md").read_text(encoding="utf-8").split())
    assert f"for all but {min(unseen)} to {max(unseen)} of 1,000 inputs" in findings
    assert f"{min(kept)} to {max(kept)} are answered right" in findings


def test_the_numbers_of_the_other_attacks_are_those_of_the_rows() -> None:
    published = {
        (cell.attack, cell.metric): cell.value
        for cell in cells_of("table7") + cells_of("table8")
        if (cell.dataset, cell.rejector) == ("cifar10", "snet")
    }
    found = {row.attack: row for row in rows("tenth") if row.rejector == "snet"}
    normal, adaptive = found["cw-linf"], found["cw-linf(goal=adaptive)"]
    flat = " ".join(text().split())
    ours = [f"{row.distance:.2f}" for row in (normal, adaptive)]
    theirs = [published[f"cw-linf-{goal}", "mean_linf_x255"] for goal in ("normal", "adaptive")]
    assert f"is {ours[0]} of 255 in the mean over the images (the paper: {theirs[0]}, within)" in flat
    assert f"it is {ours[1]} ({theirs[1]}, explained" in flat
    first, second = (100 * (row.success or 0) for row in (normal, adaptive))
    seconds = f"{normal.seconds:.0f} and {adaptive.seconds:.0f} s"
    assert f"succeeds for {first:.1f} and {second:.1f} % of the images, in {seconds}" in flat
    area = found["pgd1000x10(until=repeat)"].auc
    assert f"the AUC is {area:.3f} ({published['pgd-1000x10', 'auc']}, within)" in flat
    gradients = f"{found['pgd1000x10(until=repeat)'].gradients:,.0f} gradients an image"
    assert f"PGD-1000x10 took {gradients} with `until=repeat`, of 10,000" in flat
    assert f"took {gradients} instead of 10,000" in " ".join((ROOT / "docs" / "attack.md").read_text().split())
