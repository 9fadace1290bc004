"""No built-in plugin changes its behaviour without a new revision: its answers on a tiny problem are those on file."""

import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import torch

import golden_cases
from golden_cases import CASES, WRITE, complaint, differences, golden, ours, written
from rrbench import ascent
from rrbench.plugins.registry import table
from rrbench.protocols import Budget, Norm, Outputs, Rejector
from rrbench_attacks import climb
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = [(kind, name) for kind in CASES for name in ours(kind)]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_built_in_has_a_golden_and_no_golden_is_of_something_else() -> None:
    differing = {f"{kind} {name}" for kind, name in PLUGINS} ^ written().keys()
    assert not differing, f"{', '.join(sorted(differing))}: {WRITE}"


def test_goldens_are_of_the_pinned_packages_so_that_none_is_left_out_here() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    found = {item for expected in written().values() for item in expected.get("packages", {}).items()}
    assert {name for name, _ in found} == {"foolbox", "pyautoattack"}
    assert found <= pinned.items()


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=[f"{kind} {name}" for kind, name in PLUGINS])
def test_a_built_in_behaves_as_its_revision_did(kind: str, name: str) -> None:
    expected = written().get(f"{kind} {name}")
    for package, version in (expected or {}).get("packages", {}).items():
        if metadata.version(package) != version:
            pytest.skip(f"its golden was made with {package} {version}")
    found = complaint(kind, name, golden(kind, name), expected)
    assert not found, found


def test_changing_the_step_of_pgd_trips_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(step: object, budget: Budget) -> float:
        return 1.01 * budget.eps / 4

    monkeypatch.setattr(climb, "step_size", longer)
    found = complaint("attack", "pgd", golden("attack", "pgd"), written()["attack pgd"])
    assert found.startswith("raise the revision of attack pgd (or REVISION in rrbench/ascent.py")
    assert "or restore the behaviour: " in found


def test_the_l2_step_before_revision_2_of_the_engine_would_trip_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ascent.step_up

    def step_up(moved: torch.Tensor, gradient: torch.Tensor, norm: Norm, step: float) -> torch.Tensor:
        if norm == "linf":
            return plain(moved, gradient, norm, step)
        return moved + step * gradient / (ascent.norms(gradient) + 1e-10)

    monkeypatch.setattr(ascent, "step_up", step_up)
    found = complaint("attack", "pgd", golden("attack", "pgd"), written()["attack pgd"])
    assert "raise the revision" in found
    assert "l2 sure" in found


def test_changing_a_rejector_or_a_framework_trips_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Confidence.certainty
    monkeypatch.setattr(Confidence, "certainty", lambda self, outputs: plain(self, outputs) * 0.999)
    found = complaint("rejector", "confidence", golden("rejector", "confidence"), written()["rejector confidence"])
    assert found.startswith("raise the revision of rejector confidence, or restore the behaviour: ")
    monkeypatch.setattr("rrbench.frameworks.inner.random_start", lambda batch, *given: batch.images)
    found = complaint("framework", "pgd-at", golden("framework", "pgd-at"), written()["framework pgd-at"])
    assert found.startswith("raise the revision of framework pgd-at")


def test_a_new_revision_asks_for_a_new_golden_and_the_writer_gives_none_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copy(golden_cases.PATH, tmp_path / "outputs.json"))
    monkeypatch.setattr(golden_cases, "PATH", path)
    monkeypatch.setattr(golden_cases, "CASES", {"attack": {"pgd": ["pgd4"]}})
    monkeypatch.setattr(golden_cases, "ours", lambda kind: ["pgd"])
    monkeypatch.setattr(golden_cases, "written", golden_cases.written.__wrapped__)
    monkeypatch.setattr(climb, "step_size", lambda step, budget: budget.eps / 5)
    before = written()["attack pgd"]
    assert golden_cases.main() == 1
    assert "raise the revision of attack pgd" in capsys.readouterr().err
    assert golden_cases.written()["attack pgd"] == before
    monkeypatch.setattr(Pgd, "revision", 2)
    assert "has a new revision" in complaint("attack", "pgd", golden("attack", "pgd"), before)
    assert golden_cases.main() == 0
    after = golden_cases.written()["attack pgd"]
    assert after["revision"] == 2
    assert list(differences(after["numbers"]["pgd4"], before["numbers"]["pgd4"]))


@dataclass
class Newcomer(Rejector):
    """Has no line in golden_cases.py."""

    least: int = 1

    def certainty(self, outputs: Outputs) -> torch.Tensor:
        if self.least > len(outputs.logits):
            raise ValueError("too few")
        return outputs.logits.amax(1)


def test_a_new_plugin_gets_its_golden_by_the_command_that_the_failing_test_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(golden_cases, "PATH", tmp_path / "outputs.json")
    monkeypatch.setattr(golden_cases, "written", golden_cases.written.__wrapped__)
    monkeypatch.setattr(golden_cases, "ours", lambda kind: ["newcomer"] if kind == "rejector" else [])
    monkeypatch.setitem(table("rejector").classes, "newcomer", Newcomer)
    found = golden("rejector", "newcomer")
    assert complaint("rejector", "newcomer", found, None) == (
        "rejector newcomer is new: run `python tests/golden_cases.py`"
    )
    assert golden_cases.main() == 0
    assert complaint("rejector", "newcomer", found, golden_cases.written()["rejector newcomer"]) == ""
    expected = golden_cases.Tiny()(golden_cases.batch(8).images).logits.amax(1).tolist()
    assert found["numbers"]["newcomer"]["certainty"] == pytest.approx(expected)
    before = golden_cases.PATH.read_text(encoding="utf-8")
    monkeypatch.setitem(golden_cases.REJECTORS, "newcomer", ["newcomer(least=9)"])
    assert golden_cases.main() == 1
    assert "rejector newcomer fails on the tiny problem: give it a line in " in capsys.readouterr().err
    assert golden_cases.PATH.read_text(encoding="utf-8") == before


KEYS = """
from rrbench.plugins.config import load_preset
from rrbench.planning.plan import Request, make_plan
import rrbench_attacks.pgd
print(rrbench_attacks.pgd.__file__)
for cell in make_plan(Request(["confidence"], ["pgd10", "adaptive"]), load_preset("quick")).cells:
    print(cell.training.key, cell.attack_key("c", "fp32"), cell.victim_key("c"), cell.key("c", "fp32"))
"""


def test_a_comment_in_a_built_in_changes_no_key(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ROOT / "attacks" / "rrbench_attacks", tmp_path / "rrbench_attacks"))
    (copy / "pgd.py").write_text((copy / "pgd.py").read_text(encoding="utf-8") + "# A remark.\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    done = subprocess.run([sys.executable, "-c", KEYS], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[0] == str(copy / "pgd.py")
    said = io.StringIO()
    with redirect_stdout(said):
        exec(KEYS)
    assert len(said.getvalue().splitlines()) == 8
    assert said.getvalue().splitlines()[1:] == done.stdout.splitlines()[1:]
