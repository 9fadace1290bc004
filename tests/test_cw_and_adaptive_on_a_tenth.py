"""CW, Figure 4 and AutoAttack on every tenth image: the text says what the stored scores give."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from published import CIFAR10, ROOT, cells_in, rows
from rrbench.files.arrays import load_arrays
from rrbench.paper.cells import cells_of
from rrbench.paper.judge import Judged
from rrbench.paper.tabulate import Selection, paper_tables
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import ATTACKS, Scores, file_in
from tenth import EBD, RR, SHOWN, TENTH, TRADES, findings, flat, scores, text, tpr95


def distances(
    norm: str, dataset: str, rejector: str, settings: str = "goal=adaptive", folder: Path = TENTH
) -> tuple[ResultRow, np.ndarray]:
    """Return CW's row with the adaptive goal, and each image's distance; where it failed, that of its start."""
    (record,) = [
        record
        for record, _ in cells_in(folder)
        if (record.row.dataset, record.row.rejector) == (dataset, rejector)
        and record.row.attack == f"cw-{norm}({settings})"
    ]
    arrays = load_arrays(folder / file_in(record.files, ATTACKS))
    assert "phase1" in settings or (arrays["distances"][~arrays["reached"]] == 0).all()
    return record.row, arrays["distances"]


def test_the_normal_distances_are_near_the_papers() -> None:
    found = [row for row in rows("tenth") if row.attack in ("cw-l2", "cw-linf")]
    assert len(found) == 12
    off = []
    for row in found:
        (cell,) = [
            cell
            for cell in cells_of("table7")
            if (cell.dataset, cell.rejector, cell.attack) == (row.dataset, row.rejector, f"{row.attack}-normal")
        ]
        off.append(100 * ((row.distance or 0) / float(cell.value) - 1))
        (farther,) = (
            each
            for each in rows("tenth")
            if (each.dataset, each.rejector, each.attack) == (row.dataset, row.rejector, f"{row.attack}(goal=adaptive)")
        )
        assert (farther.distance or 0) > (row.distance or 0)
    assert f"from {-min(off):.0f} % below to {max(off):.0f} % above the paper's" in flat()
    least = min(100 * (row.success or 0) for row in found)
    assert f"it succeeds for {least:.1f} % of the images at least" in flat()


def test_most_images_need_a_larger_change_on_rr_than_on_each_other_one_and_by_the_mean_in_linf_only() -> None:
    rejectors = ("snet", "ebd", "rr")
    largest = []
    for norm in ("linf", "l2"):
        for dataset, name in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
            found = {rejector: distances(norm, dataset, rejector) for rejector in rejectors}
            means = {rejector: each.mean() for rejector, (_, each) in found.items()}
            medians = {rejector: float(np.median(each)) for rejector, (_, each) in found.items()}
            assert all(abs(means[rejector] - (row.distance or 0)) < 1e-6 for rejector, (row, _) in found.items())
            assert max(medians, key=lambda rejector: medians[rejector]) == "rr"
            assert max(means, key=lambda rejector: means[rejector]) == ("rr" if norm == "linf" else "snet")
            fails = " / ".join(f"{100 - 100 * (found[rejector][0].success or 0):.1f}" for rejector in rejectors)
            shares = " / ".join(f"{100 * (found[each][1] > found['rr'][1]).mean():.0f}" for each in ("snet", "ebd"))
            assert all(np.mean(found[each][1] < found["rr"][1]) > 0.5 for each in ("snet", "ebd"))
            beyond = np.maximum(found["snet"][1], found["ebd"][1])
            largest.append(f"{100 * (found['rr'][1] > beyond).mean():.0f}")
            digits = 1 if norm == "linf" else 2
            numbers = [" / ".join(f"{of[each]:.{digits}f}" for each in rejectors) for of in (means, medians)]
            assert f"| {norm}, {name} | {numbers[0]} | {numbers[1]} | {fails} | {shares} |" in text()
    said = "for {} and {} % of the images in linf (CIFAR-10 and CIFAR-100) and for {} and {} % in l2.".format(*largest)
    assert said in flat()
    far = [int((distances("l2", "cifar10", rejector)[1] > 10).sum()) for rejector in ("snet", "rr")]
    assert f"(above 10: {far[0]} images of SNet, {far[1]} of RR, on CIFAR-10)" in flat()
    (_, snet), (_, rr) = (distances("l2", "cifar100", rejector) for rejector in ("snet", "rr"))
    worst = float(np.median(np.where(snet == 0, np.inf, snet)))
    assert worst > float(np.median(rr))
    share = 100 * ((snet == 0) | (snet > rr)).mean()
    assert (
        f"SNet's median on CIFAR-100 is {worst:.2f} in l2, above RR's, and SNet is farther for {share:.0f} %" in flat()
    )
    assert "By the mean this holds in linf; in l2 SNet's is larger." in findings()


def test_the_released_start_ends_as_far_but_for_an_image_that_ours_misses() -> None:
    settings = "goal=adaptive,start=phase1"
    row, theirs = distances("linf", "cifar10", "snet", settings, ROOT / "results" / "cifar10-steps")
    ours = distances("linf", "cifar10", "snet")[1][::100]
    assert (row.n, row.settings.count('"every": 1000'), len(theirs)) == (10, 1, 10)
    missed = ours == 0
    assert missed.sum() == 1
    means = [f"{each.mean():.1f}" for each in (theirs, ours, theirs[~missed], ours[~missed])]
    assert f"it ends {means[0]} away in the mean, and ours {means[1]}" in flat()
    assert f"on the other nine the means are {means[2]} and {means[3]}" in flat()


RELEASED = "c0=0.001,goal=adaptive,learning_rate=0.01,start=phase1"
NAMES = {"ebd": "EBD", "snet": "SNet", "rr": "RR"}


@pytest.mark.parametrize(
    ("norm", "rejector", "said", "found"),
    [
        (
            "linf",
            "ebd",
            "In linf EBD's distance goes {} % of the way to the paper's and ends {} % below it,",
            "{} % farther away than ours for EBD in linf",
        ),
        (
            "linf",
            "snet",
            "and SNet's goes {} % and ends {} % below: explained.",
            "For SNet it ends {} % farther away in linf",
        ),
        ("l2", "rr", "In l2 RR's goes {} % of the way and ends {} % below,", "and {} % for RR in l2:"),
        ("l2", "snet", "and SNet's goes {} % and ends {} % above.", "and {} % nearer in l2,"),
    ],
)
def test_the_released_search_ends_farther_than_ours_and_explains_two_distances(
    norm: str, rejector: str, said: str, found: str
) -> None:
    row, theirs = distances(norm, "cifar10", rejector, RELEASED)
    _, ours = distances(norm, "cifar10", rejector)
    (cell,) = [
        cell
        for cell in cells_of("table7")
        if (cell.dataset, cell.rejector, cell.attack) == ("cifar10", rejector, f"cw-{norm}-adaptive")
    ]
    means, printed = [theirs.mean(), ours.mean()], float(cell.value)
    more = 100 * (means[0] / means[1] - 1)
    nearer = 100 * ((ours > 0) & (ours < theirs)).mean()
    fails = round(1000 - 1000 * (row.success or 0))
    numbers = " | ".join([*(f"{mean:.2f}" for mean in means), cell.value, f"{more:+.0f}", f"{nearer:.0f}"])
    missed = ours == 0
    assert f"| {norm}, CIFAR-10, {NAMES[rejector]} | {numbers} | {fails} | {missed.sum()} |" in text()
    if rejector == "snet":
        apart = 100 * (theirs[~missed].mean() / ours[~missed].mean() - 1)
        assert f"{apart:+.0f} % in {norm}" in flat()
        assert f"{missed.sum()} " in findings().partition("but there ours fails for ")[2].partition("of 1,000")[0]
    way, end = 100 * (means[0] - means[1]) / (printed - means[1]), 100 * (means[0] / printed - 1)
    assert said.format(f"{way:.0f}", f"{abs(end):.0f}") in flat()
    assert ("above" in said) == (end > 0)
    assert found.format(f"{abs(more):.0f}") in findings()
    is_explained = {(judged.cell.attack, judged.cell.rejector): judged.verdict == "explained" for judged in table7()}
    assert is_explained[f"cw-{norm}-adaptive", rejector] == (way > 50)


@cache
def table7() -> list[Judged]:
    return [each for each in paper_tables(Selection("table7")).judged if each.cell.dataset == "cifar10"]


def test_the_released_early_stop_changes_little() -> None:
    _, stopped = distances("l2", "cifar10", "rr", f"{RELEASED},stop=batch")
    assert f"with it RR's is {stopped.mean():.2f}." in flat()


def test_four_targets_are_as_good_as_all_in_half_the_time() -> None:
    few, every = (
        next(row for row in rows("tenth") if (row.trained_as, row.rejector, row.attack) == (*RR, f"multi-target{text}"))
        for text in ("(targets=4)", "")
    )
    assert (few.gradients, every.gradients, few.n) == (8500, 18000, 1000)
    assert (few.acc_all, few.deploy_robust) == (every.acc_all, every.deploy_robust)
    assert f"On RR it leaves {few.acc_all} % right and {few.deploy_robust} % robust, as all targets do." in flat()
    assert f"TPR-95 is {few.acc_tpr95:.2f} instead of {every.acc_tpr95:.2f}, and AUC {few.auc:.4f} instead" in flat()
    one, other = (scores(TENTH, RR, f"multi-target{text}").correct for text in ("(targets=4)", ""))
    assert ((one & ~other).sum(), (other & ~one).sum()) == (2, 2)
    assert "Four answers change between right and wrong, two each way." in flat()
    assert f"It took {few.seconds:.0f} s, where all targets took {every.seconds:.0f}." in flat()
    assert f"about {round((few.seconds or 0) * 10 / 60)} minutes" in flat()


def test_a_blind_attack_of_many_gradients_finds_two_images_that_the_worst_case_does_not() -> None:
    (row,) = [row for row in rows("tenth") if row.attack == "multi-target(select=evade)"]
    threshold = row.deploy_threshold
    assert threshold is not None
    evade, as_released = (scores(TENTH, RR, f"multi-target{text}") for text in ("(select=evade)", ""))
    left = robust(evade, threshold)
    said = (
        f"leaves {evade.correct.sum()} right and {100 * left.mean():.1f} % robust, where multi-target as the paper runs"
    )
    assert f"{said} it leaves {100 * robust(as_released, threshold).mean():.1f} % robust." in flat()
    worst, part = (
        robust(scores(CIFAR10, RR, name, preset="strong"), threshold)[::10] for name in ("worst-case", "apgd-reject")
    )
    assert f"On these images preset `strong` leaves RR {100 * worst.mean():.1f} % robust by about" in flat()
    assert f"`apgd-reject`, its strongest part, leaves {100 * part.mean():.1f} % by 450." in flat()
    new = int((worst & ~left).sum())
    whole = [row for row in rows() if (row.trained_as, row.rejector) == RR and row.preset == "strong"]
    taken = sum(row.gradients or 0 for row in whole if row.eps == "8/255" and row.attack != "worst-case")
    assert f"robust by about {round(taken, -1):,.0f} gradients an image" in flat()
    times = round(18_000 / taken)
    assert f"loses {new} of 1,000 images to that attack, which takes {times} times as many gradients." in flat()
    assert f"with {times} times the gradients of preset `strong`, multi-target" in findings()
    assert f"gets past RR with {new} images of 1,000 that `strong` does not" in findings()


def robust(given: Scores, threshold: float) -> np.ndarray:
    """Tell of each image that it was not answered wrongly."""
    return given.correct | (given.certainty < threshold)


def test_figure_4_by_tpr_95_by_a_fixed_threshold_and_beside_a_blind_attack() -> None:
    tenth = slice(None, None, 10)
    found = {
        row.attack.removeprefix("adaptive100x5"): row for row in rows("tenth") if row.attack.startswith("adaptive")
    }
    assert len(found) == 25
    lowest = min(found.values(), key=lambda row: row.acc_tpr95 or 0)
    assert lowest is found["(con+rr,eta=10)"]
    low, high = lowest.acc_tpr95_low, lowest.acc_tpr95_high
    assert f"TPR-95 is lowest under `con+rr` at η 10: {lowest.acc_tpr95:.2f} [{low:.1f}, {high:.1f}]" in flat()
    blind = {name: tpr95(scores(CIFAR10, victim, "gama-fw"), tenth) for victim, name in SHOWN.items()}
    order = ("PGD-AT+RR, R-Con", "TRADES, confidence", "TRADES+RR, R-Con", "PGD-AT+SNet, SNet", "ATRO, margin",
             "PGD-AT+EBD, EBD", "CARL, margin")  # fmt: skip
    assert sorted(blind, key=lambda name: blind[name]) == list(order)
    *most, last = (f"{blind[name]:.2f}" for name in order)
    assert (
        f"leaves RR {most[0]}, and TRADES, TRADES+RR, SNet, ATRO, EBD and CARL {', '.join(most[1:])} and {last}"
        in flat()
    )
    strongest = min(found.values(), key=lambda row: row.deploy_robust or 0)
    assert strongest is found["(con+rr,eta=1)"] is min(found.values(), key=lambda row: row.deploy_joint or 0)
    plain, alone = found["(ce+rr,eta=0)"], found["(con+rr,eta=0)"]
    threshold = plain.deploy_threshold
    assert threshold is not None
    assert {row.deploy_threshold for row in found.values()} == {threshold}
    numbers = [f"{row.deploy_robust:.1f}" for row in (plain, alone, strongest)]
    own = scores(TENTH, RR, "adaptive100x5(con+rr,eta=1)")
    assert f"{100 * robust(own, threshold).mean():.1f}" == numbers[2]
    gama = 100 * robust(scores(CIFAR10, RR, "gama-fw"), threshold)[tenth].mean()
    assert (
        f"plain cross-entropy (η 0) leaves RR {numbers[0]} robust, `con` alone {numbers[1]}, `con+rr` at η 1, the "
        f"strongest of the 25, {numbers[2]}, and GAMA-FW {gama:.1f}"
    ) in flat()
    assert (
        f"{numbers[0]} robust, the strongest of 25 attacks {numbers[2]}, and the blind GAMA-FW {gama:.1f}" in findings()
    )
    apart = (plain.acc_tpr95 or 0) - (strongest.acc_tpr95 or 0)
    assert f"tells the first and the third apart by {apart:.1f} points" in flat()
    (clean,) = {
        row.acc_all
        for row in rows("tenth")
        if (row.dataset, row.attack, row.trained_as) == ("cifar10", "clean", "pgd-at+rr")
    }
    harmless = [found[f"({name},eta={eta})"].acc_all or 0 for name in ("ce+rcon", "con+rcon") for eta in (10, 100)]
    assert f"leave {min(harmless):.1f} to {max(harmless):.1f} % right, where {clean} % are right without" in flat()
    assert all("weak" in row.note for row in found.values())
    assert "All 25 rows carry the note `weak`, since multi-target with `select=evade` leaves less" in flat()


def test_autoattack_leaves_as_much_of_these_images_when_it_runs_on_all() -> None:
    alone = scores(TENTH, RR, "autoattack(version=standard)").correct
    among, of_the_text = (scores(CIFAR10, RR, "autoattack", preset=name).correct[::10] for name in ("strong", "paper"))
    left = [f"{100 * each.mean():.1f} %" for each in (alone, among, of_the_text)]
    assert (
        f"leaves RR {left[0]} right when it runs on these images alone, and {left[1]} of them when it runs on all"
        in flat()
    )
    assert f"The version of the paper's text leaves {left[2]} of them right." in flat()


def test_autoattacks_package_leaves_as_much_as_ours() -> None:
    left, apart, more = list[list[str]](), list[int](), list[int]()
    for victim in (RR, EBD, TRADES):
        package = scores(TENTH, victim, "autoattack(version=package)").correct
        ours = scores(CIFAR10, victim, "autoattack", preset="strong").correct[::10]
        more.append(int(ours.sum()) - int(package.sum()))
        left.append([f"{100 * each.mean():.1f} %" for each in (package, ours)])
        apart.append(int((package != ours).sum()))
    (rr, our_rr), (ebd, our_ebd), (trades, our_trades) = left
    assert f"on these 1,000 images, leaves RR {rr} right, EBD {ebd} and TRADES {trades}." in flat()
    assert f"(preset `strong`), leaves {our_rr}, {our_ebd} and {our_trades} of them right." in flat()
    assert f"They differ on {apart[0]} images of RR, {apart[1]} of EBD and {apart[2]} of TRADES." in flat()
    assert max(map(abs, more)) == max(more) == 3, "0.3 points, which is what was allowed"
    assert f"So ours is at most {max(more) / 10} points weaker." in flat()
    package_rows = [row for row in rows("tenth") if row.attack == "autoattack(version=package)"]
    assert {(row.precision, row.n) for row in package_rows} == {("fp32", 1000)}
