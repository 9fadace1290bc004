"""The measured columns of a row: each name once, in the order of the CSV file, with range, label and meaning. No numpy.

A label is what people read in tables, reports, figures and documents; a meaning says what is counted.
"""

from dataclasses import dataclass, field, fields
from typing import Literal

TprRule = Literal["quantile", "official"]  # how the threshold of TPR-95 is found


def percentage(label: str = "", meaning: str = "") -> float | None:
    """Declare a column of numbers from 0 to 100."""
    found: float | None = field(default=None, metadata={"most": 100, "label": label, "meaning": meaning})
    return found


def fraction(label: str = "", meaning: str = "") -> float | None:
    """Declare a column of numbers from 0 to 1."""
    found: float | None = field(default=None, metadata={"most": 1, "label": label, "meaning": meaning})
    return found


@dataclass(frozen=True)
class Metrics:
    """What is measured of a cell; None where the inputs leave a metric undefined."""

    acc_all: float | None = percentage("accuracy", "right, if nothing is rejected")
    acc_tpr95: float | None = percentage(
        "TPR-95", "right among the accepted, if 95 % of the right ones are accepted; threshold from these inputs"
    )
    auc: float | None = fraction("AUC", "chance that a right answer has more certainty than a wrong one")
    coverage_tpr95: float | None = percentage("coverage at TPR-95", "accepted, if 95 % of the right ones are")
    acc_tpr95_low: float | None = percentage()
    acc_tpr95_high: float | None = percentage()
    auc_low: float | None = fraction()
    auc_high: float | None = fraction()
    deploy_threshold: float | None = None
    deploy_n: int | None = None
    deploy_acc: float | None = percentage("accuracy of accepted", "right among the accepted")
    deploy_coverage: float | None = percentage("coverage", "accepted")
    deploy_robust: float | None = percentage("robust", "100 minus what is accepted and wrong")
    deploy_robust_low: float | None = percentage()
    deploy_robust_high: float | None = percentage()
    deploy_joint: float | None = percentage(
        "joint", "accepted and right when clean; not both accepted and wrong when attacked"
    )
    deploy_joint_low: float | None = percentage()
    deploy_joint_high: float | None = percentage()
    aurc: float | None = fraction("AURC", "area under the risk-coverage curve; lower is better")
    augrc: float | None = fraction("AUGRC", "area under its generalised form; lower is better")
    fpr95: float | None = fraction("FPR-95", "wrong answers accepted, if 95 % of the right ones are")
    ece: float | None = fraction("ECE", "calibration error of the largest probability, 15 bins")


LABELS, MEANINGS = (
    {column.name: str(column.metadata[key]) for column in fields(Metrics) if column.metadata.get("label")}
    for key in ("label", "meaning")
)
# Of these the threshold is fixed on other, clean inputs, or brought by the rejector.
DEPLOYED = tuple(name for name in LABELS if name.startswith("deploy_"))


def column_of(text: str) -> str:
    """Return the column that a label or a column's own name means; any other text as it is."""
    return {label.lower(): name for name, label in LABELS.items()}.get(text.lower(), text)
