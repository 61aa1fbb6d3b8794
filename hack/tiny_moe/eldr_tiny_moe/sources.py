"""Readers of the texts that a Debian machine holds: gzipped files, manual pages, message catalogs, HTML."""

from __future__ import annotations

import gzip
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

CATALOG_MAGIC = 0x950412DE
HEADINGS = re.compile(r"\.(?:SH|SS|B|I|BR|IR|BI|RB|RI|IB)\s+(.*)")
ROFF_ESCAPES = re.compile(r"\\f(?:\[[^]]*\]|.)|\\s[-+]?\d|\\[&/,|^]|\\\(..|\\\[[^\]]*\]")


def read(path: Path) -> str:
    """Return a text file's content, unpacked; what is no UTF-8 is left out."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", "ignore")


def manual_page(path: Path) -> str:
    """Return the prose of a roff page without its commands."""
    lines = []
    for line in read(path).splitlines():
        if line.startswith((".", "'")):
            heading = HEADINGS.match(line)
            if heading is None:
                continue
            line = heading[1].replace('"', "")  # noqa: PLW2901
        lines.append(ROFF_ESCAPES.sub("", line).replace("\\-", "-").replace("\\e", "\\"))
    return _squeeze("\n".join(lines))


def catalog(path: Path, shortest: int = 12) -> str:
    """Return the translated messages of a compiled gettext catalog, one a line, short ones left out."""
    data = path.read_bytes()
    if len(data) < 20 or struct.unpack_from("<I", data)[0] != CATALOG_MAGIC:
        return ""
    count, _, table = struct.unpack_from("<III", data, 8)
    messages = []
    for i in range(1, count):  # message 0 is the header
        length, offset = struct.unpack_from("<II", data, table + 8 * i)
        message = data[offset : offset + length].split(b"\0")[0].decode("utf-8", "ignore").strip()
        if len(message) >= shortest:
            messages.append(message)
    return "\n".join(messages)


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
    return _squeeze("".join(parser.parts))


def _squeeze(text: str) -> str:
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"[ \t]+", " ", text)).strip()
