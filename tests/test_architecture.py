"""Import directions, and what the quick commands do not import."""

import ast
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rrbench.rows.row import ResultRow, to_csv

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "rrbench": ROOT / "rrbench",
    "rrbench_attacks": ROOT / "attacks" / "rrbench_attacks",
    "rrbench_baselines": ROOT / "baselines" / "rrbench_baselines",
}
FORBIDDEN = {
    "rrbench": {"rrbench_attacks", "rrbench_baselines"},
    "rrbench_attacks": {"rrbench_baselines"},
    "rrbench_baselines": {"rrbench_attacks"},
}
# A second copy of the package would be imported: these are source roots.
SOURCE_ROOTS = {"attacks", "baselines", "tests"}
HEAVY = ("torch", "pandas", "numpy", "sklearn", "matplotlib", "foolbox", "rrbench_attacks", "rrbench_baselines")
SECONDS = 2.0  # the aim is one; this machine may be busy

PROBE = f"""
import json, sys
sys.argv = ["rrbench", *json.loads(sys.argv[1])]
from rrbench.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
"""


def sources(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the top-level packages that a file names in import statements or as texts to import."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.add(node.value.partition(".")[0].partition(":")[0])
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_what_is_above_or_beside_it(package: str) -> None:
    assert len(sources(package)) > 3
    wrong = {
        str(path.relative_to(ROOT)): sorted(names)
        for path in sources(package)
        if (names := imported(path) & FORBIDDEN[package])
    }
    assert wrong == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_a_source_root_or_the_tests(package: str) -> None:
    statements = {
        str(path.relative_to(ROOT)): names
        for path in sources(package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (names := {(node.module or "").partition(".")[0], *("." * node.level)} & {*SOURCE_ROOTS, "."})
    }
    assert statements == {}


def test_the_check_sees_a_forbidden_import(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    for line in (
        "import rrbench_attacks.pgd",
        "from rrbench_attacks import pgd",
        "def f():\n    from rrbench_attacks.pgd import Pgd",
        "import_module('rrbench_attacks.pgd')",
        "table = 'rrbench_attacks:ATTACKS'",
    ):
        path.write_text(line)
        assert "rrbench_attacks" in imported(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    row = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "rr", "clean", "", "", 0, "quick", 360, acc_all=98.0)
    path = tmp_path_factory.mktemp("results") / "rows.csv"
    path.write_text(to_csv([row]))
    return str(path)


COMMANDS = [
    ["--help"],
    ["list", "rejectors"],
    ["list", "attacks"],
    ["list", "presets"],
    ["list", "papers"],
    ["table", "RESULTS"],
    ["table", "RESULTS", "--by", "attack", "--format", "markdown"],
    ["table", "--paper", "table2", "--results", "RESULTS", "--check"],
    ["table", "--paper", "all", "--results", "RESULTS", "--dataset", "digits", "--format", "html"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_quick_commands_import_neither_torch_nor_pandas_nor_any_plugin(command: list[str], results: str) -> None:
    arguments = [results if word == "RESULTS" else word for word in command]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert len(done.stdout.splitlines()) > 2


QUICK = [
    ["--help"],
    ["list", "rejectors"],
    ["table", "RESULTS"],
    ["table", "--paper", "table2", "--results", "RESULTS"],
]


@pytest.mark.parametrize("command", QUICK, ids=" ".join)
def test_the_quick_commands_start_quickly(command: list[str], results: str) -> None:
    arguments = [results if word == "RESULTS" else word for word in command]
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rrbench", *arguments], capture_output=True, check=True, timeout=60)
        taken.append(time.perf_counter() - begin)
        if taken[-1] < SECONDS:
            return
    pytest.fail(f"the best of three took {min(taken):.1f} s")
