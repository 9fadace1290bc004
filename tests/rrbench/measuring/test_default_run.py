"""What the first command anybody types must show on the embedded data and checkpoints."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rrbench.api import RunOptions, execute, prepare
from rrbench.progress import Silent
from rrbench.rows.row import ResultRow
from rrbench.verifying.verify import verify_folder

Find = Callable[..., ResultRow]


@pytest.fixture(scope="module")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """Measure rr under the default attacks once, and look rows up by attack and budget."""
    out = tmp_path_factory.mktemp("runs")
    rows: list[ResultRow] = []
    for attacks, budgets in (
        ("pgd100,adaptive(con+rcon),adaptive(con+rr)", "linf:3/20"),
        ("pgd10", "linf:0,l2:0"),
        ("pgd100", "linf:1"),
    ):
        rows += execute(prepare(RunOptions("rr", attacks, budgets=budgets, out=out, device="cpu", limit=120)), ["test"])

    def found(attack: str, norm: str = "linf", eps: str = "3/20") -> ResultRow:
        place = ("", "") if attack == "clean" else (norm, eps)
        return next(row for row in rows if row.attack == attack and (row.norm, row.eps) == place)

    return found


def value(row: ResultRow, column: str) -> float:
    assert row.status == "ok", row.error
    measured = getattr(row, column)
    assert measured is not None
    return float(measured)


def test_clean_accuracy_is_high_and_pgd_lowers_it_by_much(find: Find) -> None:
    clean, attacked = value(find("clean"), "acc_all"), value(find("pgd100"), "acc_all")
    assert clean > 97
    assert 12 <= clean - attacked <= 35


def test_rejection_raises_accuracy_under_attack_again(find: Find) -> None:
    row = find("pgd100")
    assert value(row, "acc_tpr95") > value(row, "acc_all")
    assert value(row, "deploy_acc") > value(row, "acc_all")
    assert value(row, "auc") > 0.7


def test_an_attack_that_knows_the_rejector_does_more_harm_than_pgd(find: Find) -> None:
    adaptive = [value(find(f"adaptive({objective})"), "deploy_robust") for objective in ("con+rcon", "con+rr")]
    assert min(adaptive) < value(find("pgd100"), "deploy_robust")


def test_a_budget_of_one_leaves_nothing_right(find: Find) -> None:
    assert value(find("pgd100", eps="1"), "acc_all") == 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_budget_of_zero_is_clean_in_every_number(find: Find, norm: str) -> None:
    clean, still = find("clean"), find("pgd10", norm, "0")
    for column in ("acc_all", "acc_tpr95", "auc", "deploy_acc", "deploy_robust", "aurc", "ece", "auc_low"):
        assert value(still, column) == value(clean, column)


LIST = """
[run]
all_attacks = [
    "pgd10", "selective-pgd(steps=10)", "adaptive(con+rcon,steps=10)", "over-reject(steps=5,searches=2)", "worst-case",
]
"""


def test_the_worst_case_is_at_least_as_strong_as_every_budgeted_attack(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(LIST)
    config, out = tmp_path / "list.toml", tmp_path / "runs"
    options = RunOptions("rr,kd,confidence", "all", config=config, out=out, limit=24, device="cpu")
    rows = execute(prepare(options), ["test"])
    for rejector in ("rr", "kd", "confidence"):
        harm = {row.attack: value(row, "deploy_robust") for row in rows if row.rejector == rejector and row.eps}
        assert harm["worst-case"] <= min(harm.values())
        worst = next(row for row in rows if row.rejector == rejector and row.attack == "worst-case")
        assert worst.gradients == 0, "it shares the images that its members have stored"
    assert all(row.status == "ok" for row in rows)


def test_a_worst_case_of_two_of_a_kind_comes_out_again(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text('[run]\nall_attacks = ["pgd20", "pgd1", "worst-case"]\n')
    config, out = tmp_path / "list.toml", tmp_path / "runs"
    options = RunOptions("ebd", "worst-case", config=config, out=out, limit=100, device="cpu")
    execute(prepare(options), ["test"])
    found = verify_folder(tmp_path / "runs", (), torch.device("cpu"), rerun=True, report=Silent())
    assert (found.rerun, found.problems) == (2, [])


def test_where_training_decides_the_sign_right_answers_are_kept_before_wrong_ones(tmp_path: Path) -> None:
    rows = execute(prepare(RunOptions("ebd,carl,atro,carl(+q_abs)", "pgd10", out=tmp_path, device="cpu")), ["test"])
    for row in rows:
        is_reversed = row.rejector.startswith("carl(")
        assert (value(row, "auc") > 0.5) != is_reversed, (row.rejector, row.attack, row.auc)
    assert len(rows) == 8
