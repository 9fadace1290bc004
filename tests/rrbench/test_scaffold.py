"""`rrbench new rejector`: a package that installs, passes its own tests and runs."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rrbench.errors import UseError
from rrbench.rows import read_rows
from rrbench.scaffold import write_rejector

# The package's own tests, then a run with it, in one process: importing torch takes seconds.
TRIAL = """
import sys, pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1]])
if code:
    sys.exit(int(code))
from rrbench.cli import main
sys.argv[1:] = sys.argv[2:]
main()
"""


def test_a_new_package_installs_passes_its_own_tests_and_runs(bench: Any, command: Any, tmp_path: Path) -> None:
    answer = command("new", "rejector", "my-idea", "--folder", tmp_path)
    assert answer.code == 0
    package, target = tmp_path / "my-idea", tmp_path / "installed"
    assert f"pip install -e {package}" in answer.out
    assert "rrbench run --rejectors my-idea" in answer.out
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    subprocess.run([sys.executable, "-m", *install, "--target", str(target), str(package)], check=True, timeout=200)
    arguments = [str(package / "tests"), "run", *bench.arguments(), "--limit", "20", "--attacks", "clean"]
    done = subprocess.run(
        [sys.executable, "-c", TRIAL, *arguments, "--rejectors", "my-idea,my-idea(tau=2)"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert "2 rows in" in done.stdout
    assert "gradients an image" in done.stderr, "progress goes to stderr"
    assert "gradients an image" not in done.stdout
    rows = read_rows(bench.out)
    assert [(row.rejector, row.n, row.status) for row in rows] == [("my-idea", 20, "ok"), ("my-idea(tau=2)", 20, "ok")]
    assert rows[0].auc == rows[1].auc, "a temperature does not change the order of gaps"


def test_a_new_package_is_small_and_leaves_no_gap_to_fill(tmp_path: Path) -> None:
    package = write_rejector("my-second-idea", tmp_path)
    assert {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()} == {
        "pyproject.toml",
        "README.md",
        "my_second_idea/__init__.py",
        "my_second_idea/rejector.py",
        "tests/test_my_second_idea.py",
    }
    text = "".join(path.read_text() for path in package.rglob("*") if path.is_file())
    assert "@" not in text.replace("@dataclass", "")
    assert "class MySecondIdea(Rejector)" in text
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"rrbench.rejectors": {"my-second-idea": "my_second_idea:REJECTORS"}}
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
        write_rejector(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rr", "confidence", "ccat", "outside-gap"])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match="is installed already"):
        write_rejector(name, tmp_path)


@pytest.mark.parametrize("name", ["class", "import", "lambda"])
def test_a_word_of_python_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match="is a word of Python"):
        write_rejector(name, tmp_path)


@pytest.mark.parametrize("name", ["torch", "rrbench", "numpy", "json"])
def test_a_name_that_would_hide_another_package_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError):
        write_rejector(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_or_file_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "my-idea").mkdir()
    (tmp_path / "my-idea" / "work.py").write_text("months of it")
    (tmp_path / "other-idea").write_text("a file")
    for name in ("my-idea", "other-idea"):
        with pytest.raises(UseError, match="exists already"):
            write_rejector(name, tmp_path)
    assert (tmp_path / "my-idea" / "work.py").read_text() == "months of it"
    assert (tmp_path / "other-idea").read_text() == "a file"
    assert len(list(tmp_path.rglob("*"))) == 3


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UseError, match="cannot write"):
        write_rejector("my-idea", tmp_path / "file")
