"""Runs every command and every Python block of the documentation unchanged."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
        text = written.replace("my-idea", "idea-of-the-docs").replace("my-push", "push-of-the-docs")
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
