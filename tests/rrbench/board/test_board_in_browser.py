"""The board in a real browser: it sorts, chooses lines, fits a phone, and can be read in light and dark."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from rrbench.rows.row import ResultRow

JOINT = 4  # the column of the joint number under the worst case, and others
NAME, CLEAN = 2, 9
ENTER, TAB = "\ue007", "\ue004"
NAMES = """
return [...document.querySelectorAll("table.board > tbody")].filter((line) => line.checkVisibility())
  .map((line) => `${line.dataset.rejector} of ${line.dataset.network.split(", ")[1]}`)
"""
RANKED = ["confidence of pgd-at", "rr of pgd-at+rr", "never-reject of pgd-at", "energy of pgd-at"]
BELOW = ["kd of pgd-at", "confidence of pgd-at+rr"]


@pytest.fixture
def board(made_board: Path, browser: Browser) -> Iterator[Browser]:
    browser.colours("light")
    browser.open(made_board, width=1280)
    yield browser
    assert browser.log() == []


def heading(column: int) -> str:
    return f"#arena1 table.board > thead th:nth-child({column}) button"


def pick(browser: Browser, selector: str, value: str) -> None:
    """Choose as a hand would: set the value, and tell the page."""
    change = f"field.value = {value!r}; field.dispatchEvent(new Event('input', {{ bubbles: true }}))"
    browser.run(f"const field = document.querySelector('{selector}'); {change}")


def test_a_heading_sorts_both_ways_and_never_lifts_what_has_no_worst_case(board: Browser) -> None:
    assert board.run(NAMES) == [*RANKED, *BELOW]
    board.click(heading(JOINT))
    assert board.run(NAMES) == [*RANKED[::-1], *BELOW]
    board.click(heading(JOINT))
    assert board.run(NAMES) == [*RANKED, *BELOW]
    assert board.run('return [...document.querySelectorAll("#arena1 th[aria-sort]")].map((th) => th.ariaSort)') == [
        "descending"
    ]
    board.click(heading(NAME))
    names = board.run(NAMES)
    assert [name.split()[0] for name in names] == ["confidence", "confidence", "energy", "kd", "never-reject", "rr"]


def test_every_line_is_sorted_with_what_it_opens_to(board: Browser) -> None:
    board.click(heading(CLEAN))
    script = """return [...document.querySelectorAll("table.board > tbody")].map((line) =>
      [parseFloat(line.rows[0].cells[8].textContent), line.querySelector(".inside tbody td").textContent])"""
    found = board.run(script)
    assert [value for value, _ in found] == sorted(value for value, _ in found)
    assert all(float(inside) == value for value, inside in found), "the clean row is the first that it opens to"


def test_one_network_shows_its_rejectors_and_one_rejector_its_networks(board: Browser) -> None:
    board.click('#choice button[data-view="network"]')
    assert board.run(NAMES) == [RANKED[0], *RANKED[2:], BELOW[0]], "the best network's"
    assert board.run('return document.querySelector("#count").textContent') == (
        "small-cnn, pgd-at and its rejectors: 4 of 6 lines"
    )
    pick(board, "#which", "small-cnn, pgd-at+rr")
    assert board.run(NAMES) == [RANKED[1], BELOW[1]]
    board.click('#choice button[data-view="rejector"]')
    assert board.run(NAMES) == [RANKED[0], BELOW[1]]
    pressed = 'return [...document.querySelectorAll("#choice button")].map((each) => each.ariaPressed)'
    assert board.run(pressed) == ["false", "false", "true"]
    board.click('#choice button[data-view=""]')
    assert board.run(NAMES) == [*RANKED, *BELOW]


def test_a_view_is_in_the_address_and_a_line_leads_to_it(board: Browser) -> None:
    board.click("#arena1 tbody:nth-of-type(2) summary")
    board.click('#arena1 tbody:nth-of-type(2) button[data-view="network"]')
    assert board.run(NAMES) == [RANKED[1], BELOW[1]]
    assert board.run("return location.hash") == "#network=small-cnn%2C+pgd-at%2Brr"
    board.reload()
    assert board.run(NAMES) == [RANKED[1], BELOW[1]]
    board.run("location.hash = ''")
    board.reload()
    assert board.run(NAMES) == [*RANKED, *BELOW]


def test_words_a_budget_and_the_rank_choose_lines(
    made_rows: list[ResultRow], write_rows: Callable[..., Path], board: Browser
) -> None:
    larger = [replace(row, eps="1/4") for row in made_rows if row.eps and row.attack != "worst-case"]
    board.open(write_rows([*made_rows, *larger]), width=1280)
    assert board.run(NAMES) == [*RANKED, *BELOW], "what nobody attacked to the worst case is folded away"
    pick(board, "#words", "RR  pgd")
    assert board.run(NAMES) == [RANKED[1], BELOW[1], BELOW[1], RANKED[1]], "at both budgets; 98 is above 74"
    pick(board, "#words", "nobody")
    assert board.run(NAMES) == []
    assert board.run('return document.querySelector("#count").textContent') == "0 of 12 lines"
    pick(board, "#words", "")
    pick(board, "#arena", "arena2")
    assert len(board.run(NAMES)) == 6
    assert board.run('return document.querySelector("#arena1").checkVisibility()') is False
    pick(board, "#arena", "")
    board.click("#ranked")
    assert board.run(NAMES) == RANKED


def test_a_keyboard_is_enough(board: Browser) -> None:
    board.run(f"document.querySelector('{heading(JOINT)}').focus()")
    board.press(ENTER)
    assert board.run(NAMES) == [*RANKED[::-1], *BELOW]
    board.run('document.querySelector("#choice button").focus()')
    board.press(TAB)
    board.press(ENTER)
    assert board.run("return document.activeElement.dataset.view") == "network"
    assert len(board.run(NAMES)) == 4
    board.run('document.querySelector("#arena1 tbody:not([hidden]) summary").focus()')
    board.press(ENTER)
    assert board.run('return document.querySelector("#arena1 tbody:not([hidden]) details").open') is True


def test_without_its_scripts_it_is_a_sorted_table_that_opens(made_board: Path, browser: Browser) -> None:
    browser.scripts(allowed=False)
    try:
        browser.open(made_board, width=1280)
        assert browser.run(NAMES) == [*RANKED, *BELOW]
        assert browser.run('return document.querySelector("#choice").checkVisibility()') is False
        assert browser.run('return document.querySelectorAll("thead button, .inside button:not([hidden])").length') == 0
        browser.click("#arena1 tbody:nth-of-type(2) summary")
        assert browser.run('return document.querySelectorAll(".more details[open] .inside").length') == 1
    finally:
        browser.scripts(allowed=True)


# What sticks out of the page and is not inside a region that scrolls by itself.
OUTSIDE = """
return [...document.querySelectorAll("body *")].filter((each) => each.offsetParent !== null
  && each.getBoundingClientRect().right > window.innerWidth + 0.5
  && !each.closest(".inside .scroll")).map((each) => each.outerHTML.slice(0, 90))
"""


@pytest.mark.parametrize("width", [380, 768, 1280])
def test_nothing_overflows(
    made_rows: list[ResultRow],
    write_rows: Callable[..., Path],
    browser: Browser,
    width: int,
) -> None:
    long = "a-rejector-of-a-student(with=a,very=long,list=of,settings=that,goes=on)"
    changes: dict[str, Any] = {"rejector": long, "trained_as": f"pgd-at+{long}", "note": f"{long} " * 5}
    browser.open(write_rows([*made_rows, *(replace(row, **changes) for row in made_rows[:3])]), width=width)
    browser.run('for (const each of document.querySelectorAll("details")) each.open = true')
    assert browser.run("return document.documentElement.scrollWidth") <= width
    if width < 1280:
        assert browser.run(OUTSIDE) == []
    browser.click(heading(JOINT))
    assert len(browser.run(NAMES)) == 7, "a phone sorts, too"
    assert browser.log() == []


# The least contrast of any text with what is behind it, by the formula of WCAG 2.
CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (channels) => channels.slice(0, 3).map((each) => each / 255)
  .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
  .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
const behind = (node) => {
  for (let each = node; each; each = each.parentElement) {
    const colour = parse(getComputedStyle(each).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const ratio = (node) => {
  const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const texts = [...document.querySelectorAll("body *")].filter((each) => each.offsetParent !== null
  && [...each.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
return Math.min(...texts.map(ratio));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_in_light_and_dark(made_board: Path, browser: Browser, scheme: str) -> None:
    browser.colours(scheme)
    browser.open(made_board, width=1280)
    browser.run('for (const each of document.querySelectorAll("details")) each.open = true')
    assert browser.run(CONTRAST) >= 4.5
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 380) is (scheme == "light")
    browser.colours("light")


def test_nothing_a_row_says_is_run(
    make_row: Callable[..., ResultRow], write_rows: Callable[..., Path], browser: Browser
) -> None:
    evil = "<img src=x onerror=alert(1)>'\"&<script>alert(2)</script>"
    rows = [make_row(evil, "clean", 90.0, trained_as=evil), make_row(evil, "worst-case", 50.0, trained_as=evil)]
    browser.open(write_rows(rows), width=1280)
    assert browser.run('return document.querySelector("table.board tbody th").textContent') == evil
    browser.click('#choice button[data-view="rejector"]')
    assert browser.run('return document.querySelector("#which").value') == evil
    assert browser.run('return document.querySelectorAll("img, main script").length') == 0
    assert browser.log() == []
