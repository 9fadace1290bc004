"""The measured columns of a row: each name once, in the order of the CSV file, with its range. Imports no numpy."""

from dataclasses import dataclass, field


def percentage() -> float | None:
    """Declare a column of numbers from 0 to 100."""
    found: float | None = field(default=None, metadata={"most": 100})
    return found


def fraction() -> float | None:
    """Declare a column of numbers from 0 to 1."""
    found: float | None = field(default=None, metadata={"most": 1})
    return found


@dataclass(frozen=True)
class Metrics:
    """What is measured of a cell; None where the inputs leave a metric undefined."""

    acc_all: float | None = percentage()
    acc_tpr95: float | None = percentage()
    auc: float | None = fraction()
    coverage_tpr95: float | None = percentage()
    acc_tpr95_low: float | None = percentage()
    acc_tpr95_high: float | None = percentage()
    auc_low: float | None = fraction()
    auc_high: float | None = fraction()
    deploy_threshold: float | None = None
    deploy_n: int | None = None
    deploy_acc: float | None = percentage()
    deploy_coverage: float | None = percentage()
    deploy_robust: float | None = percentage()
    deploy_robust_low: float | None = percentage()
    deploy_robust_high: float | None = percentage()
    deploy_joint: float | None = percentage()
    deploy_joint_low: float | None = percentage()
    deploy_joint_high: float | None = percentage()
    aurc: float | None = fraction()
    augrc: float | None = fraction()
    fpr95: float | None = fraction()
    ece: float | None = fraction()
