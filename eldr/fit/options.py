"""Options that name files or numbers; imports no NumPy."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import click


def writable(_: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before the work."""
    if path is not None and not path.resolve().parent.is_dir():
        raise click.BadParameter(f"the folder {path.resolve().parent} does not exist", param=parameter)
    return path


def picture(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture in a format that is not known."""
    if path is not None and path.suffix not in {".png", ".svg"}:
        raise click.BadParameter(f"{path.name}: expected a name that ends in .png or .svg", param=parameter)
    return writable(context, parameter, path)


class Moment(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A time: Unix seconds, or ISO 8601 with its zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time as Unix seconds, or fail."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = self._parsed(str(value), param, ctx)
        if not 0 <= seconds < math.inf:
            self._wrong(value, param, ctx)
        return seconds

    def _parsed(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self._wrong(text, param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{text}: expected a zone as well, as in {text}Z", param, ctx)
        return moment.timestamp()

    def _wrong(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        expected = "expected Unix seconds or an ISO time, as 2026-01-31T20:15:00Z"
        self.fail(f"{str(value)!r}: {expected}", param, ctx)
