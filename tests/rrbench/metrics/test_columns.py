"""One metric has one label: in the code, in tables, and in every document."""

import re
from pathlib import Path

import pytest

from rrbench.metrics.columns import DEPLOYED, LABELS, MEANINGS, column_of
from rrbench.rows.row import FRACTIONS, PERCENTAGES

ROOT = Path(__file__).resolve().parents[3]
READ = ("README.md", "CONTRIBUTING.md", "results/README.md", "docs/*.md", "rrbench/**/*.py", "rrbench/**/*.toml")
# What `robust`, `coverage`, `accuracy` and `TPR-95` were called in places.
OTHER_NAMES = (
    *("rejected or right", "rejected, or right", "right or rejected", "answered then", "rejected-or-right"),
    *("accuracy, all answered", "accuracy at TPR-95", "TPR-95 accuracy"),
)


def test_the_deployed_metrics_are_called_by_plain_words() -> None:
    assert {name: LABELS[name] for name in DEPLOYED} == {
        "deploy_acc": "accuracy of accepted",
        "deploy_coverage": "coverage",
        "deploy_robust": "robust",
        "deploy_joint": "joint",
    }


def test_no_two_metrics_share_a_label_and_each_has_a_meaning() -> None:
    assert len({label.lower() for label in LABELS.values()}) == len(LABELS)
    assert all(MEANINGS[name] and not MEANINGS[name].endswith(".") for name in LABELS)
    bounds = {name for name in PERCENTAGES | FRACTIONS if name.endswith(("_low", "_high"))}
    assert set(LABELS) == (PERCENTAGES | FRACTIONS) - bounds - {"success"}


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("joint", "deploy_joint"),
        ("Robust", "deploy_robust"),
        ("tpr-95", "acc_tpr95"),
        ("coverage", "deploy_coverage"),
        ("accuracy", "acc_all"),
        ("deploy_joint", "deploy_joint"),
        ("seconds", "seconds"),
        ("", ""),
        ("jiont", "jiont"),
    ],
)
def test_a_label_means_its_column_and_other_texts_themselves(text: str, column: str) -> None:
    assert column_of(text) == column


def test_the_page_on_metrics_has_the_labels_and_meanings_of_the_code() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| (%|fraction) \|$", text, re.MULTILINE)
    assert {name: (label, meaning) for name, label, meaning, _ in lines} == {
        name: (LABELS[name], MEANINGS[name]) for name in LABELS
    }
    assert all((name in PERCENTAGES) == (unit == "%") for name, _, _, unit in lines)


def test_no_document_and_no_code_calls_a_metric_by_another_name() -> None:
    files = [path for pattern in READ for path in ROOT.glob(pattern)]
    assert len(files) > 150
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in OTHER_NAMES
        if name.lower() in " ".join(path.read_text(encoding="utf-8").split()).lower()
    ]
    assert found == []
