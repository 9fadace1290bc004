"""CITATION.cff is what tools for citations read, and says what pyproject says."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = {"cff-version", "message", "title", "authors"}  # of CFF 1.2.0


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")  # comes with ray
    return dict(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")))


def test_the_citation_says_what_pyproject_says(citation: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation.keys() >= REQUIRED
    assert citation["cff-version"] == "1.2.0"
    said = (
        citation["title"],
        str(citation["version"]),
        citation["license"],
        citation["abstract"],
        citation["keywords"],
    )
    assert said == tuple(project[key] for key in ("name", "version", "license", "description", "keywords"))


def test_the_paper_is_a_reference_with_its_eight_authors(citation: dict[str, Any]) -> None:
    (paper,) = citation["references"]
    assert paper["type"] == "conference-paper"
    assert f'"{paper["title"]}"' in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Pang", "Zhang", "He", "Dong", "Su", "Chen", "Zhu", "Liu"]
    assert paper["year"] == 2022
    assert paper["identifiers"][0]["value"] == "arXiv:2105.14785"


def test_the_workflows_test_every_push_and_publish_only_what_was_tested() -> None:
    yaml = pytest.importorskip("yaml")
    folder = ROOT / ".github" / "workflows"
    test, publish = (
        yaml.safe_load((folder / name).read_text(encoding="utf-8")) for name in ("test.yml", "publish.yml")
    )
    assert set(test[True]) == {"push", "pull_request", "workflow_call"}  # YAML reads the word `on` as true
    assert "make check" in str(test["jobs"])
    assert publish[True] == {"push": {"tags": ["v*"]}}
    jobs = publish["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    assert jobs["build"]["needs"] == "test"
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}, "trusted publishing: no password is stored"
    assert publish["permissions"] == test["permissions"] == {"contents": "read"}
