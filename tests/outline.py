"""Reads a page as a browser does, for tests of reports and boards."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "line", "circle", "path", "use", "rect", "input"}


class Outline(HTMLParser):
    """Fails on tags that do not match; gathers what a browser would look up."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in VOID or tag in ("path", "use", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def values(self, *keys: str) -> list[str]:
        return [value for _, key, value in self.attributes if key in keys]
