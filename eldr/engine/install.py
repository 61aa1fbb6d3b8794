"""``eldr engine-plugin``: put the plug-in where a stock engine image can import it."""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from pathlib import Path

import click

import eldr

MODULES = ("__init__", "contract", "engine_limit", "wire")
_MARK = ".eldr-plugin"
"""A file beside a copy, which an installation does not have."""


class NotACopyError(Exception):
    """What would be replaced is not an earlier copy; the message names the remedy."""


@click.command("engine-plugin")
@click.argument("folder", type=click.Path(file_okay=False))
def command(*, folder: str) -> None:
    """Copy the vLLM plug-in into FOLDER, to be named in PYTHONPATH of an engine.

    Nothing but ELDR's own modules and its entry points is copied: whatever they need, vLLM brings. The operator runs
    this in an init container of every vLLM pod. An earlier copy is replaced; any other FOLDER/eldr is refused.
    """
    if not folder:
        raise click.UsageError("FOLDER is empty; name a folder")
    try:
        copy(Path(folder))
    except NotACopyError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(
            f"FOLDER {folder}: {error.strerror or error}; name a folder that can be written"
        ) from error
    click.echo(f"eldr {eldr.__version__} for vLLM in {folder}")


def copy(folder: Path) -> None:
    """Copy package and metadata into a folder, replacing an older copy.

    Raises
    ------
    NotACopyError
        If the folder holds an ``eldr`` that is not such a copy.
    """
    source, target, mark = Path(eldr.__file__).resolve().parent, folder / "eldr", folder / _MARK
    if target.resolve().is_relative_to(source) or source.is_relative_to(target.resolve()):
        raise NotACopyError(
            f"FOLDER {folder}: its eldr is the source of the copy; name another folder, one of its own"
        )
    older = [
        path for path in (target, *folder.glob("eldr-*.dist-info")) if path.exists() or path.is_symlink()
    ]
    if older and not mark.exists():
        raise NotACopyError(
            f"FOLDER {folder}: its {older[0].name} is not an earlier copy; name another folder, one of its own"
        )
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()  # what is there from now on is ours, also if this is killed
    for path in older:
        shutil.rmtree(path)
    installed = distribution("eldr")
    metadata = folder / f"eldr-{installed.version}.dist-info"
    for made in (target, metadata):
        made.mkdir()
    for module in MODULES:
        shutil.copy(source / f"{module}.py", target)
    shutil.copytree(source / "engine", target / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(installed.read_text(name) or "")
