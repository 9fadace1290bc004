"""What results/README.md says of CCAT's trainings is what their logs and rows say, and the paper's cells."""

import re
from typing import NamedTuple

from published import ROOT, rows
from rrbench import zoo
from rrbench.paper.cells import cells_of
from rrbench.rows.row import ResultRow

PAGE = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
SECTION = " ".join(PAGE.split("### CCAT: three scales")[1].split("\n### ")[0].split())
SCALE1, SCALE4, WITH_RR = "ccat(attack_mode=train,scale=1)", "ccat", "ccat+rr"
REJECTOR = {SCALE1: "confidence", SCALE4: "confidence", WITH_RR: "rr"}
FALLS = 100  # the epoch after which the learning rate falls for the first time
STOPPED = 16  # the last epoch of scale 2


class Training(NamedTuple):
    entry: zoo.Entry
    robust: list[float]  # under PGD-10, after each epoch


def training(trained_as: str) -> Training:
    (entry,) = [each for each in zoo.entries(ROOT / "results" / "zoo") if each.trained_as == trained_as]
    return Training(entry, [float(re.findall(r"robust_accuracy ([\d.]+)", line)[0]) for line in entry.log])


def row(attack: str, eps: str = "8/255", trained_as: str = SCALE4) -> ResultRow:
    wanted = (trained_as, REJECTOR[trained_as], attack, eps)
    found = [each for each in rows() if (each.trained_as, each.rejector, each.attack, each.eps) == wanted]
    return sorted(found, key=lambda each: each.preset)[0]  # clean rows are in `paper` and `strong`, and alike


def printed(rejector: str, at: str, attack: str, eps: str, table: str = "table2") -> float:
    (cell,) = [
        each
        for each in cells_of(table)
        if (each.at, each.rejector, each.attack, each.eps, each.metric) == (at, rejector, attack, eps, "acc_tpr95")
    ]
    return float(cell.value)


def test_the_table_of_the_trainings_is_that_of_logs_and_rows() -> None:
    for name, trained_as in (
        ("scale 1, train mode: the defaults", SCALE1),
        ("scale 4, eval mode: `ccat` here", SCALE4),
        ("scale 4, eval mode, with RR: `ccat+rr` here", WITH_RR),
    ):
        entry, robust = training(trained_as)
        tpr95 = [
            f"{row(*where, trained_as=trained_as).acc_tpr95:.2f}" for where in (("clean", ""), ("gama-fw", "8/255"))
        ]
        numbers = (f"{entry.clean_accuracy:.2f}", f"{entry.robust_accuracy:.2f}", f"{robust[-1]:.2f}", *tpr95)
        assert f"| {name} | {' | '.join(numbers)} |" in SECTION
        assert (robust.index(max(robust)) == 0) == (trained_as == SCALE1)
    for name, rejector in (("CCAT", "confidence"), ("CCAT with RR", "rr")):
        theirs = printed(rejector, "ccat", "clean", ""), printed(rejector, "ccat", "gama-fw-100", "8", "table4")
        assert f"| the paper, {name} | | | | {theirs[0]:.2f} | {theirs[1]:.2f} |" in SECTION


def test_the_ranges_over_epochs_are_those_of_the_logs() -> None:
    one, four = training(SCALE1).robust, training(SCALE4).robust
    assert len(one) == len(four) == 110
    assert f"After each of 110 epochs PGD-10 left {min(one):.0f} to {max(one):.0f} % right" in SECTION
    early, before, after = four[:STOPPED], four[:FALLS], four[FALLS:]
    assert f"where scale 4 had {min(early):.0f} to {max(early):.0f}." in SECTION
    assert f"which was at {min(before):.0f} to {max(before):.0f} % until the learning rate fell" in SECTION
    assert f"and rose to {max(after):.0f} % then" in SECTION


def test_what_is_said_of_the_rows_and_of_the_paper() -> None:
    where = (("clean", ""), ("pgd-100x10", "8"), ("pgd-100x10", "16"), ("pgd-100x10", "128"))
    for trained_as in (SCALE4, WITH_RR):
        ours = [row(name.replace("-", ""), eps and f"{eps}/255", trained_as) for name, eps in where]
        theirs = [printed(REJECTOR[trained_as], "ccat", *each) for each in where]
        clean, *apart = (paper - (mine.acc_tpr95 or 0) for mine, paper in zip(ours, theirs, strict=True))
        far = "{:.0f} at 8/255, {:.0f} at 16/255 and {:.0f} at l2".format(*apart)
        assert f"TPR-95 is {clean:.1f} points lower on clean inputs, {far}." in SECTION
    attacks = ("pgd100x10", "gama-fw", "apgd-reject")
    left = {name: [f"{row(each, trained_as=name).deploy_robust:.2f}" for each in attacks] for name in (SCALE4, WITH_RR)}
    said = "leaves `ccat` {} % robust at the deployed threshold, GAMA-FW {} and `apgd-reject` {}.".format(*left[SCALE4])
    assert f"{said} `ccat+rr` has {{}}, {{}} and {{}}.".format(*left[WITH_RR]) in SECTION
    alone, with_rr = (row("worst-case", trained_as=name) for name in (SCALE4, WITH_RR))
    assert f"it is {with_rr.deploy_joint:.2f} joint, where confidence on `ccat` is {alone.deploy_joint:.2f}." in SECTION
    assert f"without rejection, {with_rr.acc_all:.2f} and {alone.acc_all:.2f} % stay right." in SECTION
    behind, ahead = (
        (printed("confidence", "pgd-at", *each) - printed("confidence", "ccat", *each)) for each in where[1:3]
    )
    assert (
        f"at 8/255 it is {behind:.0f} points of TPR-95 behind PGD-AT, but at 16/255 {-ahead:.0f} points ahead"
        in SECTION
    )
    lost = [
        printed(rejector, at, "pgd-100x10", "8") - printed(rejector, at, "multitarget-100x20", "8", "table4")
        for rejector, at in (("confidence", "ccat"), ("rr", "pgd-at"))
    ]
    assert (
        f"multi-target takes {lost[0]:.0f} points from its PGD column, where PGD-AT+RR loses {lost[1]:.0f}." in SECTION
    )


def test_a_training_is_said_not_to_be_kept_where_the_zoo_has_no_file() -> None:
    listed = zoo.entries(ROOT / "results" / "zoo")
    lines = re.findall(r"^\| `[^`]+`([^|]*)\| (\d+\.\d\d) \| (\d+\.\d\d) \| \d+\.\d\d, \d+\.\d\d \|$", PAGE, re.M)
    said = {(clean, robust): "not kept" in more for more, clean, robust in lines}
    assert said == {(f"{each.clean_accuracy:.2f}", f"{each.robust_accuracy:.2f}"): not each.is_kept for each in listed}
