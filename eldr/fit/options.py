"""Values of command-line options that name files or numbers; nothing here imports NumPy."""

from __future__ import annotations

import math
from pathlib import Path

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


def finite(_: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN and infinity."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value}: expected a finite number", param=parameter)
    return value
