"""``eldr engine-plugin``: put the plug-in where a stock engine image can import it."""

from __future__ import annotations

import shutil
import tempfile
from importlib.metadata import distribution
from pathlib import Path

import click

import eldr

MODULES = ("__init__", "contract", "engine_limit", "wire")
_METADATA = ("METADATA", "entry_points.txt")
_CACHE = "__pycache__"
_TEMPORARY = ".eldr-plugin-"


class NotACopyError(Exception):
    """What would be replaced is not an earlier copy; the message says what to do."""


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
    source, target = Path(eldr.__file__).resolve().parent, folder / "eldr"
    older = list(folder.glob("eldr-*.dist-info"))
    _check(source, target, older)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_TEMPORARY}*"):  # by a process that was killed
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder) as name:
        made, away = Path(name) / "new", Path(name) / "old"
        made.mkdir()
        away.mkdir()
        metadata = _make(source, made)
        # whenever this is killed, a package has metadata beside it: the next run knows it by that
        for old in (target, *older):  # of two metadata, Python may read either
            if old.exists():
                old.rename(away / old.name)
        for new in (metadata, "eldr"):
            (made / new).rename(folder / new)


def _make(source: Path, folder: Path) -> str:
    """Make a copy, and return the name of its metadata."""
    (folder / "eldr").mkdir()
    for module in MODULES:
        shutil.copy(source / f"{module}.py", folder / "eldr")
    shutil.copytree(source / "engine", folder / "eldr" / "engine", ignore=shutil.ignore_patterns(_CACHE))
    installed = distribution("eldr")
    metadata = folder / f"eldr-{installed.version}.dist-info"
    metadata.mkdir()
    for name in _METADATA:
        text = installed.read_text(name)
        if text is None:
            raise FileNotFoundError(f"eldr is installed without {name}")
        (metadata / name).write_text(text)
    return metadata.name


def _check(source: Path, target: Path, metadata: list[Path]) -> None:
    """Refuse to replace anything but an earlier copy: a package with nothing but our metadata beside it."""
    where = target.resolve()
    problem = ""
    if where == source or where in source.parents or source in where.parents:
        problem = "its eldr is the source of the copy"
    elif any(
        one.is_symlink() or not one.is_dir() or {f.name for f in one.iterdir()} - {*_METADATA}
        for one in metadata
    ):
        problem = "its eldr is an installation"
    elif target.is_symlink() or (target.exists() and not (target.is_dir() and metadata)):
        problem = "its eldr is not an earlier copy"
    if problem:
        raise NotACopyError(f"FOLDER {target.parent}: {problem}; name another folder, one of its own")
