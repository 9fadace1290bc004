"""The rankings under the worst case, and what is said beside them, are those of the published rows."""

import re
from collections.abc import Callable

import pytest

from published import PRINTED, ROOT, rows, victims_at, worst_line
from rrbench.names import parse
from rrbench.plugins.registry import table

RANKED = PRINTED | {"T-Con": "t-con"}  # the others are called as in the rows


def named(name: str, trained_as: str) -> tuple[str, str]:
    """Return (trained as, rejector) of a line of a README."""
    is_on_rr = (name, trained_as) == ("confidence", "PGD-AT+RR")
    return trained_as.lower(), "rr(score=con)" if is_on_rr else RANKED.get(name, name.lower())


NUMBERS = r"\|(?P<before>[^+\n]*?)\|(?P<worst> \d+\.\d\d \| \d+\.\d\d \| \d+\.\d\d \[\d[^|]*\]) \|"


def before_in_readme(victim: tuple[str, str]) -> list[str]:
    clean, blind = victims_at("clean", "")[victim], victims_at("pgd100")[victim]
    return [f"{clean.acc_all:.2f}", f"{clean.deploy_coverage:.1f}", f"{blind.deploy_joint:.2f}"]


def before_in_results(victim: tuple[str, str]) -> list[str]:
    return [f"{victims_at('pgd100')[victim].deploy_robust:.2f}"]


@pytest.mark.parametrize(
    ("file", "head", "before"),
    [
        (
            "README.md",
            r"^\| (?P<name>[^|(]+) \((?P<trained_as>(PGD-AT|TRADES|ATRO|CARL|CCAT)[^)]*)\) ",
            before_in_readme,
        ),
        (
            "results/README.md",
            r"^\| (?P<trained_as>(PGD-AT|TRADES|ATRO|CARL|CCAT)[^,|]*), (?P<name>[^|]+) ",
            before_in_results,
        ),
    ],
)
def test_the_ranking_under_the_worst_case_is_that_of_the_rows(
    file: str, head: str, before: Callable[[tuple[str, str]], list[str]]
) -> None:
    text = (ROOT / file).read_text(encoding="utf-8").split("At 16/255, four victims")[0]
    lines = list(re.finditer(head + NUMBERS, text, re.MULTILINE))
    victims = [named(line["name"], line["trained_as"]) for line in lines]
    worst = victims_at("worst-case")
    assert len(worst) == 28
    assert victims == sorted(worst, key=lambda victim: (-(worst[victim].deploy_joint or 0), victims.index(victim)))
    for victim, line in zip(victims, lines, strict=True):
        assert [part.strip() for part in line["worst"].split("|")] == worst_line(worst[victim]), victim
        assert [part.strip() for part in line["before"].split("|")] == before(victim), victim


def test_every_rejector_that_a_published_network_carries_has_a_worst_case() -> None:
    looks = {row.rejector for row in rows("cifar10-looks") if row.attack == "worst-case"}
    attacked = {rejector for _, rejector in victims_at("worst-case")} | looks
    ours = {name for name, found in table("rejector").classes.items() if found.__module__.startswith("rrbench")}
    assert ours - {parse(name).name for name in attacked} == set()


def test_no_published_attack_is_stronger_than_the_worst_case() -> None:
    """Of preset `strong`, which the worst case is over; by 0.3 points at most, and here by none at all."""
    strong = [row for row in rows() if row.preset == "strong" and row.eps]
    for row in strong:
        same = {
            other.attack: other
            for other in strong
            if (other.trained_as, other.rejector, other.eps) == (row.trained_as, row.rejector, row.eps)
        }
        if "worst-case" in same:
            assert row.deploy_robust is not None
            assert row.deploy_robust >= (same["worst-case"].deploy_robust or 0) - 1e-9, (row.rejector, row.attack)


EFFORT = {
    "`apgd-reject` as in `strong`": "apgd-reject",
    "with eta=1:10": "apgd-reject(eta=1:10)",
    "with 100 steps": "apgd-reject100",
    "with 2 starts": "apgd-reject50x2",
    "`selective-pgd`": "selective-pgd",
    "AutoAttack's APGD, blind": "autoattack",
    "PGD-100, blind": "pgd100",
}


def test_the_columns_of_effort_are_those_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("How much effort is enough")[1]
    found = {(row.rejector, row.attack): f"{row.deploy_robust:.1f}" for row in rows("cifar10-effort")}
    numbers = 5 * r" (\d+\.\d) \|"
    for head, attack in EFFORT.items():
        line = rf"^\| {re.escape(head)}[^|]*\| (?:at most )?\d+ \|{numbers}$"
        (printed,) = re.findall(line, text, re.MULTILINE)
        victims = ("margin", "confidence", "rr", "ebd", "kd")
        assert printed == tuple(found[rejector, attack] for rejector in victims), attack


@pytest.mark.parametrize(("name", "folder"), [("PGD-AT", "cifar10"), ("PGD-AT, weights averaged", "cifar10-average")])
def test_the_table_of_averaged_weights_is_that_of_the_rows(name: str, folder: str) -> None:
    found = {
        row.attack: f"{row.acc_all:.2f}"
        for row in rows(folder)
        if (row.preset, row.trained_as, row.rejector) == ("strong", "pgd-at", "never-reject")
        and row.eps in ("", "8/255")
    }
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert f"| {name} | {found['clean']} | {found['pgd100']} | {found['autoattack']} |\n" in text
