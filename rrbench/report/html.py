"""HTML in small pieces: text that is not marked as safe is escaped."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple


class Safe(str):
    """Text that is HTML already."""

    __slots__ = ()


class TableField(NamedTuple):
    """One field of a table; `sort` is the value to sort by if the text is not."""

    content: str
    sort: float | None = None
    is_number: bool = False


def safe(content: str) -> Safe:
    """Escape text unless it is HTML already."""
    return content if isinstance(content, Safe) else Safe(escape(content, quote=True))


def element(name: str, *contents: str, **attributes: str) -> Safe:
    """Write an element; in attribute names `_` means `-`, and a trailing `_` is dropped (`class_`)."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"' for key, value in attributes.items())
    return Safe(f"<{name}{written}>{''.join(map(safe, contents))}</{name}>")


def joined(parts: Sequence[str], between: str = "") -> Safe:
    """Put pieces one after the other."""
    return Safe(safe(between).join(map(safe, parts)))


def number(value: float | None, digits: int = 2) -> TableField:
    """Print a number; an undefined one is a dash and sorts last."""
    return TableField("-" if value is None else f"{value:.{digits}f}", value, is_number=True)


def with_interval(value: float | None, interval: tuple[float, float] | None, digits: int = 2) -> TableField:
    """Print a number and its interval, sorted by the number."""
    if value is None or interval is None:
        return number(value, digits)
    bounds = element("span", f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]", class_="bounds")
    return TableField(joined([f"{value:.{digits}f} ", bounds]), value, is_number=True)


def table(caption: str, header: Sequence[str], lines: Sequence[Sequence[TableField | str]]) -> Safe:
    """Write a table whose first column names its lines; the page's script makes every column sortable.

    `rrbench.rows.tables.render` is not used: sorting needs each field's value beside its text.
    """
    entries = [[field if isinstance(field, TableField) else TableField(field) for field in line] for line in lines]
    is_number = [bool(entries) and all(line[index].is_number for line in entries) for index in range(len(header))]
    head = [
        element("th", name, scope="col", **({"class_": "number"} if right else {}))
        for name, right in zip(header, is_number, strict=True)
    ]
    body = []
    for line in entries:
        first, *rest = [_field(field, is_first=index == 0) for index, field in enumerate(line)]
        body.append(element("tr", first, *rest))
    parts = [
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    ]
    # A keyboard can reach a scrolling region only if it can be focused.
    return element("div", element("table", *parts), class_="scroll", role="region", aria_label=caption, tabindex="0")


def _field(field: TableField, *, is_first: bool) -> Safe:
    attributes = {"scope": "row"} if is_first else {}
    if field.is_number:
        attributes["class_"] = "number"
    if field.is_number or field.sort is not None:
        attributes["data_sort"] = "" if field.sort is None else repr(float(field.sort))
    return element("th" if is_first else "td", field.content, **attributes)
