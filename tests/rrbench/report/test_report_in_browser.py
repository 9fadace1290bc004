"""The report in a real browser, over WebDriver: it renders, sorts, fits a phone and logs no error."""

from pathlib import Path

import pytest

from browser import Browser
from rrbench.report import write_report

ROBUST = """
const table = document.querySelector("#weakest table");
const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "robust");
return [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[column].textContent));
"""


@pytest.fixture(scope="module")
def robust_button(report_page: Path, browser: Browser) -> str:
    browser.open(report_page, width=1280)
    script = """const cells = [...document.querySelector("#weakest table").tHead.rows[0].cells];
    return cells.findIndex((cell) => cell.textContent === "robust")"""
    return f"#weakest thead th:nth-child({browser.run(script) + 1}) button"


def test_it_renders_with_every_section_and_picture(report_page: Path, browser: Browser) -> None:
    browser.open(report_page, width=1280)
    headings = browser.run('return [...document.querySelectorAll("h2")].map((each) => each.textContent)')
    assert headings[:3] == ["Summary", "Each rejector at its weakest", "Plots"]
    assert len(headings) == 8
    pictures = "return Promise.all([...document.images].map((each) => each.decode().then(() => each.naturalWidth)))"
    assert browser.run(pictures) == 2 * 16 * 3 * [8], "of two rejectors sixteen inputs: clean, attacked, the change"
    assert browser.run('return document.querySelectorAll("#plots .plot svg").length') == 5, (
        "two of risk, three of radii"
    )
    assert browser.run('return document.querySelector("#summary .lead").getBoundingClientRect().height') > 20
    assert browser.log() == []


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_it_round(
    report_page: Path, browser: Browser, robust_button: str
) -> None:
    browser.open(report_page, width=1280)
    before = browser.run(ROBUST)
    browser.click(robust_button)
    assert browser.run(ROBUST) == sorted(before)
    browser.click(robust_button)
    assert browser.run(ROBUST) == sorted(before, reverse=True)
    assert browser.run('return document.querySelectorAll("#weakest th[aria-sort]").length') == 1
    assert browser.run('return document.querySelector("#weakest th[aria-sort]").ariaSort') == "descending"
    assert browser.log() == []


def test_names_sort_as_words_and_what_is_undefined_stays_last(report_page: Path, browser: Browser) -> None:
    browser.open(report_page, width=1280)
    script = """const table = document.querySelectorAll("#results table")[%d];
    return [...table.tBodies[0].rows].map((row) => row.cells[%d].textContent)"""
    clean, attacked, attack, auc = 0, 1, 2, 5
    browser.click(f"#results .scroll:nth-of-type({attacked + 1}) thead th:nth-child({attack + 1}) button")
    names = browser.run(script % (attacked, attack))
    assert names == sorted(names)
    assert len(set(names)) == 2
    for _ in range(2):
        browser.click(f"#results .scroll:nth-of-type({clean + 1}) thead th:nth-child({auc + 1}) button")
        values = browser.run(script % (clean, auc))
        assert "-" in values, "where nothing is wrong, there is no auc"
        assert values.index("-") == len(values) - values.count("-")


def test_it_fits_a_phone(report_page: Path, browser: Browser) -> None:
    browser.open(report_page, width=390)
    assert browser.run("return window.innerWidth") == 390
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.run('return document.querySelector("#results .scroll").scrollWidth') > 390, (
        "the table scrolls itself"
    )
    assert browser.run(RIGHTMOST % ".plot svg, .commands code, .gallery img") <= 390


RIGHTMOST = """
return Math.max(...[...document.querySelectorAll("%s")].map((each) => each.getBoundingClientRect().right))
"""


def test_at_1280_pixels_no_column_of_the_ranking_and_no_command_is_cut_off(report_page: Path, browser: Browser) -> None:
    browser.open(report_page, width=1280)
    assert browser.run(RIGHTMOST % "#weakest > .scroll th, .commands code") <= 1280 - 24, "the page has a margin"
    names = browser.run(
        'return [...document.querySelectorAll("#weakest > .scroll thead th")].map((th) => th.innerText)'
    )
    assert [name.split()[0] for name in names][5] == "clean"
    assert browser.log() == []


def test_nothing_a_row_says_becomes_markup(reported: Path, tmp_path: Path, browser: Browser) -> None:
    evil = "<img src=x onerror=alert(1)>'\"&<script>alert(2)</script>"
    rows = tmp_path / "rows.csv"
    lines = (reported / "rows.csv").read_text().splitlines()
    quoted = '"' + evil.replace('"', '""') + '"'
    rows.write_text("\n".join([lines[0], *(line.replace(",confidence,", f",{quoted},", 1) for line in lines[1:])]))
    write_report(rows, tmp_path / "report.html")
    browser.open(tmp_path / "report.html", width=1280)
    assert browser.run('return document.querySelector("#results tbody th").textContent') == evil
    assert browser.run('return document.querySelectorAll("img, main script").length') == 0
    assert browser.log() == []
