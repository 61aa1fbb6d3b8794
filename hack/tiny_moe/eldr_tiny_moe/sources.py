"""Readers of the texts that a Debian machine holds: gzipped files, manual pages and message catalogs."""

from __future__ import annotations

import gzip
import re
import struct
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
    return squeeze("\n".join(lines))


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


def squeeze(text: str) -> str:
    """Return a text without blank lines, and without several spaces in a row."""
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"[ \t]+", " ", text)).strip()
