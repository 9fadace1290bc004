"""Keys hold what decides a number: revisions of built-in plugins, an outside package's hash, a library's version."""

import dataclasses
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rrbench.ascent import REVISION
from rrbench.files.distributions import package_hash, sources, version_of
from rrbench.frameworks.pgd_at import PgdAt
from rrbench.metrics.deployment import REVISION as DEPLOYMENT
from rrbench.planning.cells import Cell, attack_key, cell_key
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins import catalogue, revisions
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import revision, table
from rrbench.plugins.revisions import installed
from rrbench.rows.currency import superseded
from rrbench.rows.row import ResultRow
from rrbench_attacks.autoattack import AutoAttack
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence

PLUGIN = Path(__file__).resolve().parents[2] / "plugin"


def cell(attack: str, rejector: str = "outside-gap") -> Cell:
    request = Request(rejectors=[rejector], attacks=[attack], datasets=["digits"])
    return make_plan(request, load_preset("quick")).cells[-1]


def keys(attack: str, rejector: str = "outside-gap") -> tuple[str, str, str, str]:
    planned = cell(attack, rejector)
    return planned.training.key, planned.attack_key("c", "fp32"), planned.victim_key("c"), planned.key("c", "fp32")


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that a file of the outsider's package was edited."""

    def edit() -> None:
        monkeypatch.setattr(revisions, "package_hash", lambda name: "edited")

    return edit


def test_an_edited_rejector_is_fitted_and_scored_anew_and_a_blind_attack_on_it_is_not_repeated(edited: Any) -> None:
    before = keys("pgd10")
    edited()
    after = keys("pgd10")
    assert before[:2] == after[:2]
    assert before[2] != after[2]
    assert before[3] != after[3]


def test_an_edited_rejector_is_attacked_anew_by_what_looks_at_it(edited: Any) -> None:
    before = keys("adaptive(ce+rcon)")
    edited()
    after = keys("adaptive(ce+rcon)")
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_an_edited_attack_is_run_anew(edited: Any) -> None:
    before = keys("outside-corner", "confidence")
    edited()
    after = keys("outside-corner", "confidence")
    assert before[1] != after[1]
    assert before[2] == after[2]


def test_a_new_revision_of_an_attack_repeats_it_and_fits_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys("pgd20", "confidence")
    monkeypatch.setattr(Pgd, "revision", 2)
    after = keys("pgd20", "confidence")
    assert before[1] != after[1]
    assert before[3] != after[3]
    assert before[2] == after[2]


def test_a_new_revision_of_the_engine_repeats_every_attack_and_no_clean_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: keys(name, "confidence") for name in ("clean", "pgd10", "autoattack")}
    monkeypatch.setattr("rrbench.plugins.revisions.engine", lambda: REVISION + 1)
    after = {name: keys(name, "confidence") for name in before}
    assert before["clean"] == after["clean"]
    for name in ("pgd10", "autoattack"):
        assert before[name][0] == after[name][0], "what was trained stays"
        assert before[name][1] != after[name][1]


@pytest.mark.parametrize("kind", ["attack", "dataset", "framework", "network", "rejector"])
def test_a_first_revision_leaves_a_checkpoint_its_name_and_a_second_one_does_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"attack": "pgd", "dataset": "digits", "framework": "pgd-at", "network": "small-cnn", "rejector": "rr"}[kind]
    before = cell("clean", "rr").training.key
    assert table(kind).classes[name].revision == 1  # type: ignore[attr-defined]
    monkeypatch.setattr(table(kind).classes[name], "revision", 2)
    assert cell("clean", "rr").training.key != before


def test_a_new_revision_of_a_rejector_that_trains_nothing_leaves_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = keys("pgd10", "confidence")
    monkeypatch.setattr(Confidence, "revision", 2)
    after = keys("pgd10", "confidence")
    assert before[0] == after[0]
    assert before[3] != after[3]


def test_the_version_of_the_package_that_ran_is_in_the_key_and_in_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cell("autoattack", "confidence")
    assert before.describe("c", "fp32")["revisions"]["packages"] == {"pyautoattack": metadata.version("pyautoattack")}
    key = before.attack_key("c", "fp32")
    monkeypatch.setattr(revisions, "version_of", lambda name: "99")
    assert before.attack_key("c", "fp32") != key
    assert cell("pgd10", "confidence").revisions().keys() == {
        *("attack", "dataset", "deployment", "engine", "network", "rejector")
    }


def test_a_package_that_was_copied_and_not_installed_is_told_by_the_hash_of_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    found = set()
    for number, code in enumerate(("x = 1", "x = 2")):
        name = f"copied_{number}"  # the hash is kept for the process
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code, encoding="utf-8")
        (tmp_path / name / ".#lock.py").symlink_to("nobody@nowhere")  # an editor's
        found.add(version_of(name))
        (tmp_path / f"{name}_alone.py").write_text(code, encoding="utf-8")
        found.add(version_of(f"{name}_alone"))
    assert len(found - {None, ""}) == 4
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    wrong = ("not-there", "not_there", "", "__main__", "made_by_hand")  # rows may name anything
    assert revisions.versions(wrong) == dict.fromkeys(wrong, "")


def test_the_worst_of_several_has_the_packages_and_revisions_of_its_attacks() -> None:
    planned = cell("worst-case", "confidence")
    found = planned.revisions()
    later = {"apgd-reject": 3, "selective-pgd": 2, "orthogonal-pgd": 2, "rejection-loss": 2, "adaptive": 2}
    assert found["members"] == [later.get(member.name, 1) for member in planned.members]
    assert later.keys() & {member.name for member in planned.members}
    has_autoattack = any(member.name == "autoattack" for member in planned.members)
    assert ("packages" in found) == has_autoattack


def test_keys_follow_from_what_a_cell_file_holds() -> None:
    for attack in ("clean", "pgd10", "adaptive(con+rr(multi))", "autoattack", "worst-case"):
        planned = cell(attack)
        told = json.loads(json.dumps(planned.describe("c", "bf16")))
        assert cell_key(told) == planned.key("c", "bf16")
        assert attack_key(told) == planned.attack_key("c", "bf16")


def test_every_installed_revision_is_read_from_the_source_as_from_the_class() -> None:
    for kind in ("attack", "dataset", "framework", "network", "rejector"):
        for name in table(kind).classes:
            assert installed(kind, name) == revision(kind, name), name
    assert revisions.engine() == REVISION
    assert installed("rejector", "gone") is None


def test_all_python_files_of_an_outsiders_distribution_are_hashed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(str(metadata.distribution("outside-rrbench").locate_file("")))
    copy = Path(shutil.copytree(site, tmp_path / "site"))
    monkeypatch.syspath_prepend(copy)
    package_hash.cache_clear()
    distribution = next(iter(metadata.distributions(name="outside-rrbench", path=[str(copy)])))
    assert set(sources(distribution)) == {"outside_rrbench/__init__.py", "outside_rrbench/broken.py"}
    hashes = []
    for name, text in (("__init__.py", ""), ("__init__.py", "# a remark\n"), ("broken.py", "# a remark\n")):
        with (copy / "outside_rrbench" / name).open("a") as file:
            file.write(text)
        package_hash.cache_clear()
        hashes.append(package_hash("outside-rrbench"))
    assert len(set(hashes)) == 3
    (copy / "outside_rrbench" / "notes.txt").write_text("no code")
    package_hash.cache_clear()
    assert package_hash("outside-rrbench") == hashes[-1]
    package_hash.cache_clear()


def test_an_editable_install_is_hashed_where_it_is_edited(tmp_path: Path) -> None:
    """As pip and uv leave it: a .pth file, and an address that says editable."""
    project = Path(shutil.copytree(PLUGIN, tmp_path / "project"))
    (project / "idea_core").mkdir()
    (project / "idea_core" / "__init__.py").write_text("weight = 1\n")
    (project / "tests").mkdir()
    (project / "tests" / "__init__.py").write_text("")
    site = tmp_path / "site"
    info = site / "outside_rrbench-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "outside.pth").write_text(f"{project}\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-rrbench\nVersion: 0.1.0\n")
    (info / "RECORD").write_text("outside.pth,,\noutside_rrbench-0.1.0.dist-info/METADATA,,\n")
    (info / "entry_points.txt").write_text("[rrbench.rejectors]\noutside = outside_rrbench:REJECTORS\n")
    (info / "direct_url.json").write_text(json.dumps({"url": project.as_uri(), "dir_info": {"editable": True}}))
    asked = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from importlib import metadata\nfrom rrbench.files.distributions import package_hash, sources\n"
        "print(sorted(sources(metadata.distribution('outside-rrbench'))), package_hash('outside-rrbench'))"
    )

    def ask() -> str:
        command = [sys.executable, "-c", asked, str(site), str(project)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    first = ask()
    assert "['idea_core/__init__.py', 'outside_rrbench/__init__.py', 'outside_rrbench/broken.py']" in first
    (project / "idea_core" / "__init__.py").write_text("weight = 2\n")
    assert ask() != first


def test_a_plugin_whose_distribution_lists_no_file_is_hashed_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = revision("rejector", "outside-gap")
    monkeypatch.setattr(revisions, "package_hash", lambda name: "")
    after = revision("rejector", "outside-gap")
    assert after != before
    monkeypatch.setattr("rrbench.plugins.registry._own_file", lambda plugin: [])
    assert revision("rejector", "outside-gap") != after
    assert installed("rejector", "outside-gap") is None, "without importing it nobody knows its file"


NOW = {"deployment": DEPLOYMENT}
ROW = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "confidence", "autoattack", "linf", "3/20", 0, "quick", 60)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"attack": 1, "dataset": 1, "engine": REVISION, "network": 1, "rejector": 1}, []),
        ({"attack": 0, "rejector": 1}, ["attack autoattack 0, now 1"]),
        ({"engine": 1}, [f"engine 1, now {REVISION}"]),
        ({"packages": {"pyautoattack": "0.1"}}, [f"pyautoattack 0.1, now {metadata.version('pyautoattack')}"]),
        ({"packages": {"no-such-package": "0.1"}}, []),
        ({}, []),
    ],
)
def test_a_row_says_what_has_superseded_it(found: dict[str, object], said: list[str]) -> None:
    assert superseded(dataclasses.replace(ROW, revisions=json.dumps(found | NOW))) == said


def test_what_is_no_plugin_or_not_installed_supersedes_nothing() -> None:
    for name in ("<lambda>", "gone(k=3)", "Sequential(", "a, b"):
        row = dataclasses.replace(ROW, rejector=name, revisions=json.dumps({"rejector": "0123456789abcdef"} | NOW))
        assert superseded(row) == []
    for text in ("", "[]", "{", "3"):
        assert superseded(dataclasses.replace(ROW, revisions=text)) == [f"deployment 1, now {DEPLOYMENT}"]


def test_the_package_that_is_named_is_the_one_that_runs() -> None:
    assert AutoAttack().packages == ("pyautoattack",)
    assert Pgd(steps=1).packages == ()


def test_a_framework_s_later_revision_is_in_the_row_and_supersedes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cell("pgd10", "confidence")
    assert "framework" not in before.revisions()
    row = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "confidence", "pgd10", "linf", "3/20", 0, "quick", 1)
    row = dataclasses.replace(row, revisions=revisions.write(before.revisions()))
    assert superseded(row) == []
    monkeypatch.setattr(PgdAt, "revision", 2)
    assert before.revisions()["framework"] == 2
    monkeypatch.setattr("rrbench.rows.currency.installed", lambda kind, name: 2 if kind == "framework" else 1)
    assert superseded(row) == ["framework pgd-at 1, now 2"]


def test_a_function_with_the_name_of_a_plugin_is_never_superseded() -> None:
    row = ResultRow("own data", "Net", "", "", "confidence", "clean", "", "", 0, "quick", 1)
    assert superseded(dataclasses.replace(row, revisions=json.dumps({"rejector": "9ca7ca28e14d76d4"} | NOW))) == []
    other = dataclasses.replace(row, revisions=json.dumps({"rejector": 7} | NOW))
    assert superseded(other) == ["rejector confidence 7, now 1"]


def write_package(folder: Path, name: str, files: dict[str, str], entry: str) -> None:
    """Write an editable install by hand: its files, and what pip notes of it."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    info = folder / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "RECORD").write_text("")
    (info / "entry_points.txt").write_text(f"[rrbench.rejectors]\n{name} = {entry}\n")
    (info / "direct_url.json").write_text(json.dumps({"url": f"file://{folder}", "dir_info": {"editable": True}}))


def test_every_file_of_a_namespace_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"mylab/idea/__init__.py": "REJECTORS = {}\n", "mylab/idea/helper.py": "SIGN = 1\n"}
    write_package(tmp_path, "ns-idea", files, "mylab.idea:REJECTORS")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(sources(metadata.distribution("ns-idea"))) == set(files)
    package_hash.cache_clear()
    before = package_hash("ns-idea")
    (tmp_path / "mylab/idea/helper.py").write_text("SIGN = -1\n")
    package_hash.cache_clear()
    assert before not in ("", package_hash("ns-idea"))


IDEA = """
import rrbench
from dataclasses import dataclass

@dataclass
class Idea(rrbench.Rejector):
    tau: float = 1.0
    def certainty(self, outputs):
        return outputs.logits.amax(1) / self.tau
"""


def test_a_plugin_with_relative_imports_and_a_dotted_base_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"dotted/__init__.py": "from .parts.idea import Idea\nREJECTORS = {'dotted': Idea}\n"}
    files |= {"dotted/parts/__init__.py": "", "dotted/parts/idea.py": IDEA}
    write_package(tmp_path, "dotted-idea", files, "dotted:REJECTORS")
    monkeypatch.syspath_prepend(str(tmp_path))
    for remembered in (catalogue._module, catalogue.plugins):
        if hasattr(remembered, "cache_clear"):
            remembered.cache_clear()
    card = next(card for card in catalogue.cards("rejector") if card.name == "dotted")
    assert card.settings == {"tau": "1"}
    assert card.attributes["revision"] == "1"
