"""Code blocks of the pages that users copy from, and what is to be done with each."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md")))
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A block of a page.

    Attributes
    ----------
    mark : str
        The comment on the line before it: ``run`` (by `make test`), ``run-all`` (by `make test-all`) or ``needs: ...``.
    """

    page: Path
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def languages() -> set[str]:
    """Return the languages of all blocks."""
    return {found["language"] for page in PAGES for found in _BLOCK.finditer(page.read_text())}


def blocks(language: str) -> Iterator[Block]:
    """Yield the blocks in a language."""
    for page in PAGES:
        content = page.read_text()
        for found in _BLOCK.finditer(content):
            line = content.count("\n", 0, found.start("language")) + 1
            if found["language"] == language:
                yield Block(page, line, language, found["mark"] or "", textwrap.dedent(found["text"]))
