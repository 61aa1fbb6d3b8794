"""Reader of the HTML pages to train on."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from eldr_tiny_moe.sources import read, squeeze


class _Text(HTMLParser):
    """Collects the text of a page; block elements become line breaks."""

    BLOCKS = frozenset(("p", "div", "li", "h1", "h2", "h3", "pre", "tr", "br"))
    HIDDEN = frozenset(("script", "style", "head"))

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self._hidden += tag in self.HIDDEN
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in self.HIDDEN and self._hidden > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def html_page(path: Path) -> str:
    """Return the text of an HTML page."""
    parser = _Text()
    parser.feed(read(path))
    parser.close()
    return squeeze("".join(parser.parts))
