"""The paper's tables in results/README.md are those that the published rows fill."""

import re
from collections import Counter
from functools import cache

import pytest

from published import CIFAR10, PRINTED, ROOT, rows, scores
from rrbench import zoo
from rrbench.paper.cells import cells_of
from rrbench.paper.judge import Verdict, summary
from rrbench.paper.tabulate import PaperTables, Selection, paper_tables
from rrbench.rows.paired import paired_difference

COLUMNS = (
    ("clean", "", ""),
    ("pgd100x10", "linf", "8/255"),
    ("pgd100x10", "linf", "16/255"),
    ("pgd100x10", "l2", "128/255"),
)


def test_the_papers_main_table_is_that_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### Table 2")[1].split("\n### ")[0]
    lines = re.findall(r"^\| (PGD-AT[^,|]*), ([^|]+) \|(( \d+\.\d\d[^|]*\|){4})$", text, re.MULTILINE)
    assert len(lines) == 11
    printed = [re.findall(r"\| (\d+\.\d\d)", "|" + cells) for _, _, cells, *_ in lines]
    for (trained_as, name, cells, *_), values in zip(lines, printed, strict=True):
        rejector = "rr(score=con)" if (trained_as, name) == ("PGD-AT+RR", "confidence") else PRINTED[name]
        for index, (attack, norm, eps) in enumerate(COLUMNS):
            found = [
                f"{row.acc_tpr95:.2f}"
                for row in rows()
                if (row.preset, row.trained_as, row.rejector, row.attack, row.norm, row.eps)
                == ("paper", trained_as.lower(), rejector, attack, norm, eps)
            ]
            assert [values[index]] == found, (name, attack, eps)
            published = [
                cell.value
                for cell in cells_of("table2")
                if (cell.at, cell.rejector, cell.metric) == ("pgd-at", rejector, "acc_tpr95")
                and (cell.norm, cell.eps) == (norm, eps.removesuffix("/255"))
            ]
            assert re.findall(r"\((\d+\.\d\d)\)", cells.split("|")[index]) == published, (name, attack, eps)


@cache
def tables(selection: Selection, folder: str = "cifar10") -> PaperTables:
    return paper_tables(selection, [ROOT / "results" / folder])


TABLE3 = Selection("table3", dataset="cifar10-c-made")
TABLE11 = Selection("table11", network="resnet18")
ALL = "All {within} cells within tolerance.\n"
SOME = "Of the {measured} measured cells {within} within, {explained} explained, {unexplained} unexplained.\n"
VERDICTS: tuple[Verdict, ...] = ("within", "explained", "unexplained", "missing")


def test_the_overview_of_the_papers_tables_is_that_of_the_rows() -> None:
    readme = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    text = readme.split("## How much of the paper")[1].split("\n## ")[0]
    found = paper_tables(Selection("all"), sorted(path.parent for path in (ROOT / "results").glob("*/rows.csv")))
    judged = found.judged
    names = dict.fromkeys(each.cell.table for each in judged)
    groups = {name: [each for each in judged if each.cell.table == name] for name in names} | {"all": judged}
    lines = re.findall(r"^\| \[?(Table \d+|text|all)(?:\]\([^)]+\))? \| (\d+(?: \| \d+){5}) \|", text, re.MULTILINE)
    assert [name.lower().replace(" ", "") for name, _ in lines] == list(groups)
    for (_, numbers), group in zip(lines, groups.values(), strict=True):
        counts = Counter(each.named for each in group)
        reduced = sum(bool(each.measured.reduced) for each in group)
        assert numbers == " | ".join(str(n) for n in (len(group), *(counts[verdict] for verdict in VERDICTS), reduced))
    counts = Counter(each.named for each in judged)
    full = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (*VERDICTS, "undefined"))
    apart = [f"{counts[f'reduced {verdict}']} {verdict}" for verdict in VERDICTS[:3]]
    total = sum(bool(each.measured.reduced) for each in judged)
    said = f"all: {len(judged)} cells: {full}; {total} reduced: {', '.join(apart)}"
    assert found.summary().splitlines()[-1] == said
    flat = " ".join(text.split())
    assert f"measured on fewer images, {apart[0]}, {apart[1]} and {apart[2]}." in flat
    unexplained = Counter(each.cell.at for each in judged if each.named == "unexplained")
    of_kd = [each for each in judged if each.named == "unexplained" and each.cell.rejector.startswith("kd")]
    assert (len(of_kd), {each.cell.metric for each in of_kd}) == (9, {"auc"})
    said = (
        f"{unexplained.total()} unexplained cells {unexplained['atro']} are ATRO's, {unexplained['carl']} CARL's and "
        f"{unexplained['ccat']} CCAT's. Nine are AUCs of KD."
    )
    assert f"Of the {said}" in flat


@pytest.mark.parametrize(
    ("selection", "folder", "head"),
    [
        (TABLE3, "cifar10-c-made", SOME),
        (Selection("table4"), "cifar10", SOME.replace("measured} measured cells", "measured} cells on all images")),
        (Selection("table5"), "cifar10", SOME),
        (Selection("table6"), "cifar10", ALL),
        (Selection("table9"), "cifar10", SOME),
        (Selection("table10"), "cifar100", SOME),
        (
            TABLE11,
            "cifar100",
            "Of {measured} cells {within} within, {explained} explained, {unexplained} unexplained.\n",
        ),
    ],
    ids=lambda value: value.paper if isinstance(value, Selection) else "",
)
def test_the_section_of_a_table_begins_with_the_counts_of_its_cells(
    selection: Selection, folder: str, head: str
) -> None:
    judged = tables(selection, folder).judged
    counts = {verdict: sum(each.verdict == verdict for each in judged) for verdict in VERDICTS}
    name = f"Table {selection.paper.removeprefix('table')}{', ResNet-18' if selection.network else ''}"
    said = head.format(**counts, measured=len(judged) - counts["missing"])
    assert f"\n### {name}\n\n{said}" in (ROOT / "results" / "README.md").read_text(encoding="utf-8")


def test_a_smaller_tau_makes_the_classifier_better_under_pgd10_and_not_the_score() -> None:
    section = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### Table 5")[1].split("\n### ")[0]
    published = {(cell.rejector, cell.attack, cell.metric): cell.value for cell in cells_of("table5")}
    found = {}
    for log2tau, rejector, name in (
        (0, "rr", "tau 1"),
        (-1, "rr(tau=0.5)", "tau 1/2"),
        (-2, "rr(tau=0.25)", "tau 1/4"),
        (-3, "rr(tau=0.125)", "tau 1/8"),
        (-4, "rr(tau=0.0625)", "tau 1/16"),
    ):
        clean, attacked = (
            row
            for attack in ("clean", "pgd10")
            for row in rows()
            if (row.preset, row.trained_as, row.rejector) == ("paper", f"pgd-at+{rejector}", rejector)
            and (row.attack, row.eps) == (attack, "" if attack == "clean" else "8/255")
        )
        found[rejector] = attacked
        line = f"| {name}"
        for row, attack in ((clean, "clean"), (attacked, "pgd-10")):
            for value, metric in ((f"{row.acc_tpr95:.2f}", "acc_tpr95"), (f"{row.auc:.3f}", "auc")):
                theirs = published.get((f"rr(log2tau={log2tau})", attack, metric))
                line += f" | {value}" + (f" ({theirs})" if theirs else "")
        last = (attacked.acc_all, attacked.deploy_robust, attacked.deploy_coverage, attacked.deploy_joint)
        assert f"{line} | {' | '.join(f'{value:.2f}' for value in last)} |" in section
    right, tpr95, auc = ([getattr(row, metric) for row in found.values()] for metric in ("acc_all", "acc_tpr95", "auc"))
    for values, words in ((right, "by {} points"), (tpr95, "TPR-95 gains {}.")):
        *more, last_more = (f"{value - values[0]:.1f}" for value in values[1:])
        assert words.format(f"{', '.join(more)} and {last_more}") in " ".join(section.split())
    assert max(auc[1:]) < auc[0]
    assert tpr95[:4] == sorted(tpr95[:4])
    listed = zoo.entries(ROOT / "results" / "zoo")
    logs = {entry.trained_as: entry.log for entry in listed if (entry.dataset, entry.seed) == ("cifar10", 0)}
    learnt = [float(re.findall(r"clean_accuracy ([\d.]+)", logs[f"pgd-at+{name}"][0])[0]) for name in found]
    assert f"({learnt[3]:.0f} and {learnt[4]:.0f} % clean accuracy, {learnt[0]:.0f} % with tau 1)" in section


def test_the_numbers_of_the_text_are_those_of_the_rows() -> None:
    section = (
        (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### The text\n\n")[1].split("\n### ")[0]
    )
    judged = paper_tables(Selection("text"), [CIFAR10, ROOT / "results" / "cifar100"]).judged
    counts = Counter(each.verdict for each in judged)
    measured = counts["within"] + counts["unexplained"]
    assert section.startswith(f"Of the {measured} measured numbers {counts['within']} within, 1 unexplained.\n")
    versions = [
        row.acc_tpr95 or 0
        for row in rows()
        if (row.trained_as, row.rejector, row.attack, row.eps) == ("pgd-at+rr", "rr", "autoattack", "8/255")
    ]
    assert len(versions) == 2
    flat = " ".join(section.split())
    found = {
        (each.cell.dataset, each.cell.metric): f"{each.measured.value:.2f} ({each.cell.value})"
        for each in judged
        if each.cell.attack == "autoattack"
    }
    assert f"PGD-AT+RR {found['cifar100', 'acc_all'].replace(' ', ' % ')}" in flat
    assert f"R-Con {found['cifar100', 'acc_tpr95'].replace(' ', ' at TPR-95 ')}" in flat
    (row,) = [row for row in rows("cifar100") if row.attack == "autoattack"]
    assert f"at commit {row.commit[:7]} in {row.seconds:,.0f} s." in flat
    assert f"move RR's TPR-95 by {max(versions) - min(versions):.2f} points at most." in flat


def measured_beside_published(
    selection: Selection, folder: str
) -> dict[tuple[str, str], dict[tuple[str, str, str], str]]:
    """Return "ours (the paper's)" at TPR-95: {(framework, rejector): {(attack, norm, eps): text}}."""
    found: dict[tuple[str, str], dict[tuple[str, str, str], str]] = {}
    for each in tables(selection, folder).judged:
        cell, value = each.cell, each.measured and each.measured.value
        if cell.metric == "acc_tpr95" and value is not None:
            line = found.setdefault((cell.at, cell.rejector), {})
            line[cell.attack, cell.norm, cell.eps] = f"{value:.2f} ({cell.value})"
    return found


def test_the_tables_of_corruptions_gama_and_cifar100_are_those_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    corrupted = measured_beside_published(TABLE3, "cifar10-c-made")
    order = [("pgd-at", "rr"), ("pgd-at", "ebd"), ("pgd-at", "snet"), ("trades", "confidence"), ("trades", "rr")]
    lines = [
        corrupted[victim]
        for victim in (*order, ("carl", "carl"), ("atro", "atro"), ("ccat", "confidence"), ("ccat", "rr"))
    ]
    assert len(corrupted) == len(lines)
    assert {len(line) for line in lines} == {10}
    alone, with_rr = (
        [
            float(each.cell.value) - (each.measured.value or 0)
            for each in tables(TABLE3, "cifar10-c-made").judged
            if (each.cell.at, each.cell.rejector, each.verdict) == ("ccat", rejector, "unexplained")
        ]
        for rejector in ("confidence", "rr")
    )
    assert f"CCAT is {min(alone):.1f} to {max(alone):.1f} points below its published line, but for `contrast`" in text
    assert f"CCAT+RR is {min(with_rr):.1f} to {max(with_rr):.1f} points below," in " ".join(text.split())
    for attack in lines[0]:
        cells = " | ".join(line[attack] for line in lines)
        assert f"| `{attack[0].removeprefix('corruption:')}` | {cells} |\n" in text
    for (at, rejector), line in measured_beside_published(Selection("table4"), "cifar10").items():
        (frank_wolfe, plain), (row,) = (
            [line[attack, "linf", "8"] for attack in ("gama-fw-100", "gama-pgd-100")],
            [
                row
                for row in rows()
                if (row.trained_as.partition("+")[0], row.rejector, row.attack, row.preset)
                == (at, rejector, "gama-fw", "paper")
            ],
        )
        said = f"{row.acc_all:.2f} | {frank_wolfe} | {plain} | {row.deploy_robust:.2f}"
        assert re.search(rf"^\| [^|]+, [^|]+ \| {re.escape(said)} \|$", text, re.MULTILINE), (at, rejector)
    for (_, rejector), line in measured_beside_published(TABLE11, "cifar100").items():
        assert f"| {rejector.upper().replace('SNET', 'SNet')} | {' | '.join(line.values())} |\n" in text


def test_what_the_findings_say_of_cifar100_is_what_the_rows_give() -> None:
    findings = " ".join((ROOT / "results" / "FINDINGS.md").read_text(encoding="utf-8").split())
    judged = [each for each in tables(TABLE11, "cifar100").judged if each.cell.metric == "acc_tpr95"]
    near = ("rr", "ebd", "snet", "lid", "kd", "gda")
    apart = max(abs(each.difference or 0) for each in judged if each.cell.rejector in near)
    shown = ", ".join(name.upper().replace("SNET", "SNet") for name in near[:-1])
    assert f"the lines of {shown} and GDA lie within {apart:.2f} points at TPR-95, clean and under PGD-10." in findings
    at_8 = {each.cell.rejector: each for each in judged if each.cell.eps == "8"}
    paper = float(at_8["rr"].cell.value) - float(at_8["ebd"].cell.value)
    assert f"the paper has RR {paper:.2f} points ahead of EBD; here the two are level, {_rr_less_ebd()}." in findings
    (attacked,) = [
        each
        for each in tables(Selection("text"), "cifar100").judged
        if (each.cell.dataset, each.cell.attack, each.cell.metric) == ("cifar100", "autoattack", "acc_tpr95")
    ]
    assert f"Under AutoAttack RR is {-(attacked.difference or 0):.2f} below." in findings


def _rr_less_ebd() -> str:
    """Return the paired difference at TPR-95 under PGD-10 at 8/255 on CIFAR-100."""
    found = {
        row.rejector: row
        for row in rows("cifar100")
        if (row.attack, row.norm, row.eps, row.preset) == ("pgd10", "linf", "8/255", "paper")
    }
    paired = paired_difference(found["rr"], found["ebd"], "acc_tpr95", scores("cifar100"))
    assert paired is not None
    assert (paired.low or 0) < 0 < (paired.high or 0)
    return f"{paired.value:+.2f} [{paired.low:+.2f}, {paired.high:+.2f}]"


@pytest.mark.parametrize(("framework", "within"), [("atro", 0), ("carl", 1)])
def test_the_table_of_a_framework_with_its_own_rejector_is_that_of_the_rows_and_most_of_it_is_unexplained(
    framework: str, within: int
) -> None:
    judged = [each for each in paper_tables(Selection("table2"), [CIFAR10]).judged if each.cell.at == framework]
    assert Counter(each.verdict for each in judged) == Counter(within=within, unexplained=8 - within)
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for metric, head, digits in (("acc_tpr95", "TPR-95", 2), ("auc", "AUC", 3)):
        cells = [
            f"{each.measured.value:.{digits}f} ({each.cell.value})" for each in judged if each.cell.metric == metric
        ]
        assert f"| {head} | {' | '.join(cells)} |\n" in text


TABLE6 = {
    "A only, `rr(form=head)`": "a-phi-only",
    "RR": "rr",
    "confidence in the loss, `rr(form=confidence)`": "confidence-in-lrr",
    "RR, scored by confidence": "rr(con)",
}


def test_the_table_of_rrs_forms_is_that_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### Table 6")[1].split("\n### ")[0]
    judged = tables(Selection("table6")).judged
    for head, rejector in TABLE6.items():
        cells = [
            f"{each.measured.value:.{3 if each.cell.metric == 'auc' else 2}f} ({each.cell.value})"
            for each in judged
            if each.cell.rejector == rejector and each.measured
        ]
        assert f"| {head} | {' | '.join(cells)} |\n" in text, head


def test_the_main_table_has_as_many_explained_cells_as_the_readmes_say() -> None:
    own = [each for each in tables(Selection("table2")).judged if each.cell.at == "pgd-at"]
    assert not any(each.verdict == "explained" and (each.difference or 0) >= 0 for each in own)
    counts = summary("PGD-AT", own).removeprefix(f"PGD-AT: {len(own)} cells: ")
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert f"### Table 2\n\nOf the {len(own)} cells that PGD-AT's networks carry, {counts}.\n" in text
    attacked = [each for each in own if each.cell.eps]
    lower = [each for each in attacked if (each.difference or 0) < 0]
    below = sum(each.verdict != "within" for each in lower)
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"The main table of the paper has {len(attacked)} attacked numbers of PGD-AT." in text
    assert f"{len(lower)} of ours are lower, {below} by more than our tolerance." in text
    findings = " ".join((ROOT / "results" / "FINDINGS.md").read_text(encoding="utf-8").split())
    assert f"Of PGD-AT's {len(attacked)} attacked cells in the main table {below} lie below" in findings
