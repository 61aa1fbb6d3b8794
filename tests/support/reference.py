"""What the reference says of a command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def undocumented(page: str, names: Iterable[str], command: click.Command) -> list[str]:
    """Return the names and the command's options that a page of the reference lacks."""
    text = (PAGES / f"{page}.md").read_text()
    options = (option for one in command.params for option in one.opts if option.startswith("-"))
    return [name for name in (*names, *options) if f"`{name}`" not in text]
