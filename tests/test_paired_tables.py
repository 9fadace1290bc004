"""The paired differences that results/README.md prints are those of the published rows and scores."""

import re

import pytest

from published import ROOT, rows, scores
from rrbench.metrics.columns import LABELS
from rrbench.rows.paired import Difference, differences, paired_difference
from rrbench.rows.row import ResultRow

FOLDERS = ("cifar10", "cifar10-seeds", "cifar10-seeds")  # by seed
WORST = "Every rejector against its own strongest attack"  # a section
INPUTS = {
    "clean": ("clean", "", ""),
    "PGD-10, 8/255": ("pgd10", "linf", "8/255"),
    "GAMA-FW, 8/255": ("gama-fw", "linf", "8/255"),
    "PGD-100x10, 8/255": ("pgd100x10", "linf", "8/255"),
    "PGD-100x10, 16/255": ("pgd100x10", "linf", "16/255"),
    "16/255": ("pgd100x10", "linf", "16/255"),
    "PGD-100x10, l2 128/255": ("pgd100x10", "l2", "128/255"),
    "l2 128/255": ("pgd100x10", "l2", "128/255"),
    "AutoAttack, 8/255": ("autoattack", "linf", "8/255"),
    "worst case, 8/255": ("worst-case", "linf", "8/255"),
}
METRICS = {label: name for name, label in LABELS.items()} | {"gain on its own network": "deploy_joint"}
VICTIMS = {
    "EBD": ("pgd-at+ebd", "ebd"),
    "SNet": ("pgd-at+snet", "snet"),
    "R-Con": ("pgd-at+rr", "rr"),
    "confidence": ("pgd-at+rr", "rr(score=con)"),
}
REFERENCES = {  # by section
    "R-Con against confidence on the same network": ("pgd-at+rr", "rr(score=con)"),
    "PGD-AT+RR less PGD-AT with confidence": ("pgd-at", "confidence"),
    "R-Con on PGD-AT+RR less confidence on PGD-AT": ("pgd-at", "confidence"),
    "EBD and SNet against confidence on plain PGD-AT": ("pgd-at", "confidence"),
}


def printed() -> list[tuple[str, str, str, str]]:
    """Return (section, line's head, column's head, field) of every paired difference."""
    found, section, columns = [], "", [""]
    for line in (ROOT / "results" / "README.md").read_text(encoding="utf-8").splitlines():
        fields = [field.strip() for field in line.strip("|").split("|")]
        if line.startswith("### "):
            section = line[4:]
        elif line.startswith("| ") and "mean of three" not in fields[0]:  # test_three_trainings.py checks the means
            columns = columns if "[" in line else fields
            section = fields[0] if fields[0] in REFERENCES else section
            found += [
                (section, fields[0], *pair)
                for pair in zip(columns[1:], fields[1:], strict=True)
                if re.search(r"\[[-+]", pair[1])
            ]
    return found


def row(victim: tuple[str, str], inputs: str, seed: int = 0) -> ResultRow:
    (found,) = [
        each
        for each in rows(FOLDERS[seed])
        if (each.trained_as, each.rejector, each.attack, each.norm, each.eps) == (*victim, *INPUTS[inputs])
        and each.seed == seed
        and each.preset == ("strong" if each.attack == "worst-case" else "paper")
    ]
    return found


def worst_victim(trained_as: str, name: str) -> tuple[str, str]:
    """Return (trained as, rejector) of a line of that section; R-Con is RR's score."""
    if (trained_as, name) == ("PGD-AT+RR", "confidence"):
        return VICTIMS[name]
    return trained_as.lower(), {"R-Con": "rr"}.get(name, name.lower())


def pair_of(section: str, head: str, column: str) -> tuple[ResultRow, ResultRow | None, str]:
    """Return the two rows and the metric that a field compares; inputs stand in the line's head or in the column's.

    Without a second row the field is a gain over never rejecting on the same network. A head may end with the seed.
    """
    head, _, seed = head.partition(", seed ")
    name, _, rest = head.partition(", ")
    if section == WORST:
        return row(worst_victim(name, rest), "worst case, 8/255"), None, METRICS[column]
    if name not in VICTIMS:
        name, rest = "R-Con", head
    inputs, metric = (rest, column) if column in METRICS else (column, rest)
    here = int(seed or 0)
    return row(VICTIMS[name], inputs, here), row(REFERENCES[section], inputs, here), METRICS[metric]


def test_every_difference_is_that_of_its_rows() -> None:
    fields = printed()
    assert len(fields) == 163
    for section, head, column, field in fields:
        one, other, metric = pair_of(section, head, column)
        # What the same answers leave if all are accepted: no attack here makes a wrong clean answer right.
        value = getattr(one, metric) - (one.acc_all if other is None else getattr(other, metric))
        places = 3 if metric == "auc" else 2
        assert field.split(" [")[0] == f"{value:+.{places}f}", (section, head, column)


@pytest.mark.parametrize(
    "position",
    [0, 8, 11, 32, 55, 74, 79, 105, 130, 133, 150],
    ids=lambda position: " ".join(printed()[position][:3]),
)
def test_an_interval_of_each_table_is_that_of_the_scores(position: int) -> None:
    section, head, column, field = printed()[position]
    one, other, metric = pair_of(section, head, column)
    found = compared(one, other, metric)
    places = 3 if metric == "auc" else 2
    assert field == f"{found.value:+.{places}f} [{found.low:+.{places}f}, {found.high:+.{places}f}]"


def compared(one: ResultRow, other: ResultRow | None, metric: str) -> Difference:
    if other is not None:
        found = paired_difference(one, other, metric, scores(FOLDERS[one.seed]))
        assert found is not None
        return found
    (gain,) = differences([one], rows(), "never-reject", metric, scores()) or ()  # type: ignore[misc]
    return gain


def test_the_gains_of_the_readme_are_those_of_the_results() -> None:
    """Both print them after the joint number, each in its own order of names."""
    shown = [
        re.findall(
            r"^\| .*\| \d+\.\d\d \[\d[^|]*\] \| ([-+][^|]+) \|$", (ROOT / file).read_text(encoding="utf-8"), re.M
        )
        for file in ("README.md", "results/README.md")
    ]
    assert len(shown[0]) == 27
    assert shown[0] == shown[1][:27]
