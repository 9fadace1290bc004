"""`rrbench new`: its packages install, pass their own tests and run; with a known mistake they fail their tests."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rrbench.errors import UseError
from rrbench.rows.row import read_rows
from rrbench.scaffold import Kind, write_plugin

# Names that no stranger's package has: one that is installed is refused.
IDEA, PUSH = "idea-of-the-tests", "push-of-the-tests"

# The packages' own tests, then the contract and a run with them, in one process: importing torch takes seconds.
TRIAL = """
import sys, pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", *sys.argv[1].split(":")])
if code:
    sys.exit(int(code))
from rrbench.cli import main
for arguments in (["check", sys.argv[2]], ["check", sys.argv[3]], sys.argv[4:]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise
"""


def ask(program: str, *arguments: str, path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that finds packages at `path`."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
    )


def test_new_packages_install_pass_their_own_tests_keep_the_contract_and_run(
    bench: Any, command: Any, tmp_path: Path
) -> None:
    target, packages = tmp_path / "installed", []
    for kind, name in (("rejector", IDEA), ("attack", PUSH)):
        answer = command("new", kind, name, "--folder", tmp_path)
        assert answer.code == 0
        package = tmp_path / name
        assert answer.out.splitlines()[1:] == [
            f"  pip install -e {package}",
            f"  rrbench check {name}",
            f"  rrbench run --{kind}s {name}",
            f"  python -m pytest {package}",
        ]
        packages.append(str(package))
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    subprocess.run([sys.executable, "-m", *install, "--target", str(target), *packages], check=True, timeout=200)
    run = ["run", *bench.arguments(), "--limit", "20", "--attacks", f"{PUSH}(steps=2)"]
    run += ["--rejectors", f"{IDEA},{IDEA}(tau=2)"]
    tests = ":".join(f"{package}/tests" for package in packages)
    done = ask(TRIAL, tests, IDEA, PUSH, *run, path=target, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "28 passed" in done.stdout
    assert "11 checks, all kept" in done.stdout
    assert "15 checks, all kept" in done.stdout
    assert "4 rows in" in done.stdout
    assert "gradients an image" in done.stderr, "progress goes to stderr"
    assert "gradients an image" not in done.stdout
    rows = read_rows(bench.out)
    assert {(row.rejector, row.n, row.status) for row in rows} == {(IDEA, 20, "ok"), (f"{IDEA}(tau=2)", 20, "ok")}
    clean = [row.auc for row in rows if row.attack == "clean"]
    assert clean[0] == clean[1], "a temperature does not change the order of gaps"


CERTAINTY = """        first, second = (outputs.logits.double() / self.tau).topk(2, dim=1).values.unbind(1)
        return first - second
"""
FIT = """
    def fit(self, clean, labels):
        self.{where} = {value}
"""
ANSWER = "        return search("

# {name: (kind, what is replaced, by what, the line that its own tests print; none where the idea is right)}
IDEAS: dict[str, tuple[Kind, str, str, str]] = {
    "idea-entropy": (
        "rejector",
        CERTAINTY,
        "        p = (outputs.logits.double() / self.tau).softmax(1)\n"
        "        return (p * p.clamp_min(1e-300).log()).sum(1)\n",
        "",
    ),
    "idea-centred": (
        "rejector",
        CERTAINTY,
        "        return -(outputs.features - self.fitted['mean']).double().square().sum(1)\n"
        "    needs = frozenset({'features'})\n" + FIT.format(where="fitted", value="{'mean': clean.features.mean(0)}"),
        "",
    ),
    "idea-trained": (
        "rejector",
        CERTAINTY,
        CERTAINTY + "\n    def training_loss(self, outputs, labels, classifier_loss):\n"
        "        return classifier_loss + self.tau * outputs.logits.square().mean()\n",
        "",
    ),
    "own-key": (
        "rejector",
        CERTAINTY,
        CERTAINTY + "\n    def training_key(self):\n        return 'mine'\n",
        "delete it",
    ),
    "fewer-settings": (
        "rejector",
        CERTAINTY,
        CERTAINTY + "\n    after_training = frozenset({'tau'})\n"
        "    def training_loss(self, outputs, labels, classifier_loss):\n"
        "        return classifier_loss + self.tau * outputs.logits.square().mean()\n",
        "take tau out of after_training",
    ),
    "idea-featured": (
        "rejector",
        CERTAINTY,
        "        return outputs.features.square().sum(1)\n",
        "IdeaFeatured reads features: write needs = frozenset({'features'})",
    ),
    "idea-forgetful": (
        "rejector",
        CERTAINTY,
        "        return -(outputs.logits - self.mean).double().square().sum(1)\n"
        + FIT.format(where="mean", value="clean.logits.mean(0)"),
        "fit of IdeaForgetful writes self.mean: only self.fitted is kept",
    ),
    "idea-ranked": (
        "rejector",
        CERTAINTY,
        "        best = outputs.logits.double().amax(1)\n        return best - best.mean()\n",
        "the certainty of IdeaRanked depends on the batch",
    ),
    "idea-blind": (
        "attack",
        "    is_adaptive = True",
        "    is_adaptive = False",
        "IdeaBlind reads the rejector: write is_adaptive = True",
    ),
    "idea-bare": ("attack", ANSWER, "        return batch.images\n" + ANSWER, "write return Moved(images)"),
    "other-climb": (
        "attack",
        "wrong + self.weight * victim.log_certainty(outputs, labels)[0]",
        "self.weight * victim.certainty(outputs, labels)",
        "",
    ),
}


def test_the_packages_own_tests_outlast_another_idea_and_fail_for_a_broken_one(tmp_path: Path) -> None:
    for name, (kind, old, new, _) in IDEAS.items():
        source = write_plugin(kind, name, tmp_path) / name.replace("-", "_") / f"{kind}.py"
        text = source.read_text()
        assert old in text, name
        source.write_text(text.replace(old, new))
    path = os.pathsep.join(str(tmp_path / name) for name in IDEAS)
    program = "import sys, pytest; sys.exit(int(pytest.main(sys.argv[1:])))"
    options = ["-q", "-rf", "--tb=short", "-p", "no:cacheprovider", "--import-mode=importlib", "."]
    done = ask(program, *options, path=Path(path), folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = set(re.findall(r"^FAILED ([\w-]+)/tests/", done.stdout, re.MULTILINE))
    assert failed == {name for name, (*_, line) in IDEAS.items() if line}, done.stdout
    for name, (*_, line) in IDEAS.items():
        assert line in done.stdout, name


@pytest.mark.parametrize("kind", ["rejector", "attack"])
def test_a_new_package_is_small_and_leaves_no_gap_to_fill(kind: Kind, tmp_path: Path) -> None:
    package = write_plugin(kind, "my-second-idea", tmp_path)
    assert {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()} == {
        "pyproject.toml",
        "README.md",
        "my_second_idea/__init__.py",
        f"my_second_idea/{kind}.py",
        "tests/test_my_second_idea.py",
    }
    text = "".join(path.read_text() for path in package.rglob("*") if path.is_file())
    assert "@" not in text.replace("@dataclass", "").replace("@pytest", "")
    assert f"class MySecondIdea({kind.capitalize()})" in text
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {f"rrbench.{kind}s": {"my-second-idea": f"my_second_idea:{kind.upper()}S"}}
    for path in package.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


def test_the_next_steps_can_be_pasted_though_the_folder_has_spaces(command: Any, tmp_path: Path) -> None:
    answer = command("new", "rejector", "spaced-idea", "--folder", tmp_path / "my plugins")
    assert f"pip install -e '{tmp_path}/my plugins/spaced-idea'" in answer.out


@pytest.mark.parametrize(
    "name",
    ["My-Idea", "my_idea", "my idea", "-idea", "idea-", "my--idea", "1idea", "", "../idea", "/tmp/idea", "idé", "a.b"],
)
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match="is no plugin name"):
        write_plugin("rejector", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rr", "confidence", "ccat", "outside-gap"])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match=r"a rejector .* is installed already"):
        write_plugin("rejector", name, tmp_path)


@pytest.mark.parametrize("name", ["pgd", "clean", "outside-corner"])
def test_an_attack_s_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match=r"an attack .* is installed already"):
        write_plugin("attack", name, tmp_path)


@pytest.mark.parametrize("name", ["class", "import", "lambda"])
def test_a_word_of_python_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match="is a word of Python"):
        write_plugin("rejector", name, tmp_path)


@pytest.mark.parametrize("name", ["torch", "rrbench", "numpy", "json"])
def test_a_name_that_would_hide_another_package_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError):
        write_plugin("rejector", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_or_file_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / IDEA).mkdir()
    (tmp_path / IDEA / "work.py").write_text("months of it")
    (tmp_path / "other-idea-of-the-tests").write_text("a file")
    for name in (IDEA, "other-idea-of-the-tests"):
        with pytest.raises(UseError, match="exists already"):
            write_plugin("rejector", name, tmp_path)
    assert (tmp_path / IDEA / "work.py").read_text() == "months of it"
    assert (tmp_path / "other-idea-of-the-tests").read_text() == "a file"
    assert len(list(tmp_path.rglob("*"))) == 3


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UseError, match="cannot write"):
        write_plugin("rejector", IDEA, tmp_path / "file")
