"""Values of command-line options that name files or numbers; nothing here imports NumPy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click


def writable(_: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before the work rather than after it."""
    if path is not None and not path.resolve().parent.is_dir():
        raise click.BadParameter(f"the folder {path.resolve().parent} does not exist", param=parameter)
    return path


def picture(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture in a format that is not known."""
    if path is not None and path.suffix not in {".png", ".svg"}:
        raise click.BadParameter(f"{path.name}: expected a name that ends in .png or .svg", param=parameter)
    return writable(context, parameter, path)


class FiniteRange(click.FloatRange):
    """A number in a range, neither NaN nor infinity, which are in no order or within every open end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found}: expected a finite number", param, ctx)
        return found
