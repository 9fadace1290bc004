"""Runs every command and every Python block of the documentation unchanged."""

import inspect
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import rrbench
from rrbench.names import NORMS
from rrbench.plugins.catalogue import plugins
from rrbench.plugins.config import (
    DATASET_TABLES,
    PLAIN,
    TABLES,
    DatasetDefaults,
    MetricSettings,
    Recipe,
    RunDefaults,
    load_file,
    load_preset,
)
from rrbench.plugins.registry import choose
from rrbench.rows.row import write_rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
NOT_RUN = "# not run by the tests: "  # and why


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all pages: what one has measured, the next finds."""
    return tmp_path_factory.mktemp("docs")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_works(
    page: str,
    folder: Path,
    fenced: Callable[[Path], list[tuple[str, str]]],
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    one_thread: None,
) -> None:
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {}
    for language, written in fenced(DOCS / page):
        # Whoever followed these pages has a plugin of that name installed.
        text = re.sub(r"my-(idea|push|way|data|net)\b", r"\1-of-the-docs", written)
        if text.startswith(NOT_RUN):
            continue
        if language == "python":
            exec(compile(text, page, "exec"), namespace)
        elif language == "sh":
            for line in text.splitlines():
                program, *arguments = shlex.split(line, comments=True)
                assert program == "rrbench", f"{page}: {line!r} is no command of rrbench; mark the block as not run"
                answer = command(*arguments)
                assert answer.code == 0, f"{page}: {line}\n{answer.err}"
                assert answer.out.strip(), f"{page}: {line!r} says nothing"


def test_few_blocks_are_not_run_and_each_says_why(fenced: Callable[[Path], list[tuple[str, str]]]) -> None:
    blocks = [text for page in PAGES for language, text in fenced(DOCS / page) if language in ("sh", "python")]
    left_out = [text for text in blocks if text.startswith(NOT_RUN)]
    assert len(left_out) < len(blocks) / 3
    assert all(len(text.splitlines()[0]) > len(NOT_RUN) + 10 for text in left_out)
    assert not any(NOT_RUN.strip() in text for text in blocks if text not in left_out), (
        "the mark is a block's first line"
    )


def test_every_block_names_its_language(fenced: Callable[[Path], list[tuple[str, str]]]) -> None:
    for page in PAGES:
        for language, text in fenced(DOCS / page):
            assert language in ("sh", "python", "toml", "text"), (page, text)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https:)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        path = path or page  # an anchor alone is of the same page
        assert (DOCS / path).is_file(), f"{page} links to {target}"
        headings = re.findall(r"^#+ (.*)$", (DOCS / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if page != "README.md" and f"({page})" not in index] == []


def test_the_metrics_page_knows_every_measured_column() -> None:
    from rrbench.metrics.columns import Metrics

    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    columns = [name for name in vars(Metrics()) if not name.endswith(("_low", "_high"))]
    assert [name for name in (*columns, "distance", "success") if f"`{name}`" not in text] == []


def test_the_page_of_the_configuration_file_has_every_key_with_quick_s_value(
    fenced: Callable[[Path], list[tuple[str, str]]], tmp_path: Path
) -> None:
    (text,) = [text for language, text in fenced(DOCS / "configuration.md") if language == "toml"]
    shown = tomllib.loads(text)
    assert shown.keys() == PLAIN | TABLES
    for table, section in (("run", RunDefaults), ("metrics", MetricSettings), ("recipe", Recipe)):
        assert shown[table].keys() == {field.name for field in fields(section)}, table
    (digits,) = shown["dataset"].values()
    assert digits.keys() == {field.name for field in fields(DatasetDefaults)} | DATASET_TABLES
    assert digits["step"].keys() == set(NORMS)
    path = tmp_path / "whole.toml"
    path.write_text(text, encoding="utf-8")
    quick, config = load_preset("quick"), load_file(path, "paper")
    assert (config.preset, config.metrics, config.dataset("digits")) == (
        "quick",
        quick.metrics,
        quick.dataset("digits"),
    )
    for name in ("digits", "cifar10"):
        assert config.recipe(name) == quick.recipe(name)
    for kind, text in (("rejector", "kd"), ("attack", "pgd10"), ("framework", "pgd-at")):
        assert choose(kind, text, config, "digits") == choose(kind, text, quick, "digits")
    for key, value in asdict(quick.run).items():
        given = getattr(config.run, key)
        assert given == (value[: len(given)] if key.startswith("all_") else value), key


def test_the_page_of_clusters_has_the_costs_that_its_command_prints(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "cluster.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    rrbench (run --paper all .*)$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RRBENCH_ZOO", raising=False)
    write_rows(tmp_path / "results" / "rows.csv", [])  # no row is published
    answer = command(*shlex.split(line))
    assert answer.code == 0, answer.err
    counts, cost, _, eight, all_64 = answer.out.splitlines()[-5:]
    rows, trainings = re.findall(r"^(\d+) cells on (\d+) checkpoints", counts)[0]
    assert f"{trainings} trainings and the {rows} rows" in text
    gradients, hours = re.findall(r"^([\d,]+) gradient evaluations, about (\d+) h on cuda", cost)[0]
    (shown,) = re.findall(r"\*\*all\*\* \| \*\*([\d.]+) billion\*\* \| \*\*([\d.]+)\*\*", text)
    assert float(shown[0]) == pytest.approx(int(gradients.replace(",", "")) / 1e9, abs=0.005)
    assert float(shown[1]) == pytest.approx(int(hours), abs=0.5)
    parts = re.findall(r"^\| [^*|]+ \| ([\d.]+) billion \| ([\d.]+) \|$", text, re.MULTILINE)
    assert sum(float(each) for each, _ in parts) == pytest.approx(float(shown[0]), abs=0.1)
    assert sum(float(each) for _, each in parts) == pytest.approx(float(shown[1]), abs=0.15)
    assert eight == "about 3.0 h with 8 workers"
    assert all_64 == "about 88 min with 64 workers"
    assert "With 8 GPUs it takes about 3.0 hours, with 64 about 88 minutes" in text


def test_the_page_of_python_names_every_option_under_its_function() -> None:
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    for function in (rrbench.run, rrbench.evaluate, rrbench.load_model, rrbench.table):
        section = text.partition(f"\n## rrbench.{function.__name__}\n")[2].partition("\n## ")[0]
        options = list(inspect.signature(function).parameters)
        assert [name for name in options if f"`{name}`" not in section] == [], function.__name__
        rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
        assert [name for name in named if name not in options] == [], "an option that there is not"
    assert [name for name in rrbench._HOMES if f"`{name}`" not in text and f"rrbench.{name}" not in text] == []


def test_the_page_of_the_threat_model_puts_every_attack_where_it_belongs() -> None:
    text = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| \*\*(\w+)\*\* \| ([^|]*) \|", text, re.MULTILINE)
    listed = {word: set(re.findall(r"`([^`]*)`", names)) for word, names in lines}
    sight = {
        name: card.attributes["is_adaptive"]
        for name, card in plugins("attack").items()
        if card.package == "rrbench" and name != "clean"
    }
    adaptive = {
        name if answer == "true" else f"{name}({answer})" for name, answer in sight.items() if answer != "false"
    }
    assert listed["blind"] | listed["transfer"] == {name for name, answer in sight.items() if answer != "true"}
    assert listed["adaptive"] | listed["square"] | listed["worst"] == adaptive
    assert sum(map(len, listed.values())) == len(sight) + 2, "cw-l2 and cw-linf are on two lines, no other attack is"


def test_models_of_libraries_that_are_not_installed_are_built_with_what_the_page_calls(
    fenced: Callable[[Path], list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS / "other-models.md"
    front: dict[str, Any] = {}
    exec(re.findall(r"'''\\\n(.*?)'''", page.read_text(encoding="utf-8"), re.DOTALL)[0], front)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    asked: list[object] = []

    def library(name: str, **functions: object) -> None:
        made = ModuleType(name)
        vars(made).update(functions)
        monkeypatch.setitem(sys.modules, name, made)

    def made(*given: object, **named: object) -> nn.Module:
        asked.append(given + tuple(named.values()))
        return plain

    expected = {"mean": (0.5, 0.25, 0.0), "std": (0.5, 0.25, 1.0)}
    library("timm", create_model=made, data=SimpleNamespace(resolve_model_data_config=lambda model: expected))
    library("robustbench")
    library("robustbench.utils", load_model=made)
    library("normalised", Normalised=front["Normalised"])
    images = torch.rand(2, 3, 2, 2)
    whitened = torch.stack([2 * images[:, 0] - 1, 4 * images[:, 1] - 1, images[:, 2]], 1)
    for needed, seen in (("timm", whitened), ("RobustBench", images)):
        (block,) = [
            text for _, text in fenced(page) if text.startswith(f"{NOT_RUN}needs {needed}") and "def build" in text
        ]
        namespace: dict[str, Any] = {}
        exec(compile(block, page.name, "exec"), namespace)
        torch.testing.assert_close(namespace["build"]()(images), plain(seen))
    assert asked == [("resnet18.a1_in1k", True), ("Carmon2019Unlabeled", "cifar10", "Linf")]


def test_the_page_of_installing_has_every_extra_and_this_version() -> None:
    text = (DOCS / "install.md").read_text(encoding="utf-8")
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(project["optional-dependencies"])
    assert set(re.findall(r"rrbench-([0-9.]+)-py3", text)) == {project["version"]}


def test_nothing_promises_what_no_registry_has() -> None:
    """An extra is named with the clone or the wheel that has it, until rrbench is in a registry."""
    root = DOCS.parent
    texts = [root / "README.md", *DOCS.glob("*.md"), *(root / "rrbench").rglob("*.py")]
    promise = re.compile(r"pip install +'?rrbench(?!-)")
    assert [path.name for path in texts if promise.search(path.read_text(encoding="utf-8"))] == []
