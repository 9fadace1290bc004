"""Import directions, and what the quick commands do not import."""

import ast
import json
import re
import subprocess
import sys
import time
from functools import cache
from graphlib import TopologicalSorter
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


@cache
def named(path: Path) -> list[ast.Import | ast.ImportFrom | ast.Constant]:
    """Return the import statements and the constants of a file, parsed once for all tests."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom | ast.Constant)]


def imported(path: Path) -> set[str]:
    """Return the top-level packages that a file names in import statements or as texts to import."""
    found: set[str] = set()
    for node in named(path):
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
        for node in named(path)
        if isinstance(node, ast.ImportFrom)
        and (names := {(node.module or "").partition(".")[0], *("." * node.level)} & {*SOURCE_ROOTS, "."})
    }
    assert statements == {}


def modules_of(package: str) -> dict[str, Path]:
    """Return the files of a package by the names under which they are imported."""
    root = PACKAGES[package].parent
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources(package)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_import_each_other_in_a_circle(package: str) -> None:
    modules, arrows = modules_of(package), TopologicalSorter[str]()
    for name, path in modules.items():
        for node in named(path):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                submodules = [f"{node.module}.{alias.name}" for alias in node.names]
                arrows.add(name, *(each if each in modules else node.module for each in submodules))
            elif isinstance(node, ast.Import):
                arrows.add(name, *(alias.name for alias in node.names if alias.name in modules))
    arrows.prepare()  # raises CycleError, which names the files


# A room imports from itself and from the lines before its own. The words have no room; `ascent` is one that computes.
LAYERS = [
    ["errors", "numbers", "progress", "names", "ranges", "seals", "lending", "protocols"],
    ["compute", "files", "metrics"],
    ["ascent", "cycles", "plugins"],
    ["rows", "datasets", "networks", "frameworks", "scaffold"],
    ["planning", "zoo"],
    ["training"],
    ["measuring"],
    ["verifying", "engines", "testing"],
    ["paper"],
    ["figures"],
    ["api", "objects", "own_models", "report"],
    ["bench", "board"],
    ["cli"],
]
ENTRANCES = {"rrbench/__init__.py", "rrbench/__main__.py", "rrbench/zoo/__main__.py"}


def rooms_of(path: Path) -> set[str]:
    """Return the rooms, or the modules without one, that a file of the harness imports from."""
    found: set[str] = set()
    for node in named(path):
        if isinstance(node, ast.ImportFrom) and node.module == "rrbench":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rrbench."):
            found.add(str(node.module).split(".")[1])
    return found


def test_every_room_has_its_layer() -> None:
    here = {path.stem for path in (ROOT / "rrbench").glob("*.py")} | {
        path.parent.name for path in (ROOT / "rrbench").glob("*/__init__.py")
    }
    assert sorted(name for names in LAYERS for name in names) == sorted(here - {"__init__", "__main__"})


@pytest.mark.parametrize("layer", range(len(LAYERS)), ids=[",".join(names) for names in LAYERS])
def test_no_room_imports_from_above_or_beside(layer: int) -> None:
    below = {name for names in LAYERS[:layer] for name in names}
    wrong: dict[str, list[str]] = {}
    for name in LAYERS[layer]:
        # The words, and the front doors, are single files that may use their neighbours'.
        allowed = below | ({name} if (ROOT / "rrbench" / name).is_dir() else set(LAYERS[layer]))
        place = ROOT / "rrbench" / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
            shown = str(path.relative_to(ROOT))
            if shown not in ENTRANCES and (found := rooms_of(path) - allowed):
                wrong[shown] = sorted(found)
    assert wrong == {}


@pytest.mark.parametrize("room", [path.parent for path in sorted((ROOT / "rrbench").rglob("__init__.py"))], ids=str)
def test_a_room_says_its_purpose_and_is_no_larger_than_one_can_see(room: Path) -> None:
    says = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert says
    assert len([path for path in room.glob("*.py") if not path.name.startswith("__")]) <= 13


def test_the_page_shows_the_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"```text\n( cli\n.*?)```", page, re.DOTALL)[0].splitlines()
    assert [sorted(line.strip().split(", ")) for line in reversed(shown)] == [sorted(names) for names in LAYERS]


def where_is_it() -> list[tuple[str, str]]:
    """Return (what, where) of the tables that tell where a thing is done."""
    pages = ("README.md", "docs/architecture.md")
    tables = [(ROOT / page).read_text(encoding="utf-8").partition("## Where is it")[2] for page in pages]
    lines = [line for text in tables for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return [(what, where) for what, where in cells if what not in ("what", "---")]


@pytest.mark.parametrize(("what", "where"), where_is_it(), ids=lambda text: text[:40])
def test_a_thing_is_where_the_page_says(what: str, where: str) -> None:
    words = re.findall(r"`([^`]+)`", where)
    files = [word for word in words if word.endswith(".py")]
    assert files
    text = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    for word in words:
        defined = rf"(def|class) {re.escape(word.rpartition('.')[2])}\b"
        assert word in files or word.endswith(".csv") or re.search(defined, text), f"no {word} in {', '.join(files)}"


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
