"""``eldr engine-plugin``: put the plug-in where a stock engine image can import it."""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from pathlib import Path

import click

import eldr

MODULES = ("__init__", "contract", "wire")


@click.command("engine-plugin")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def command(*, folder: Path) -> None:
    """Copy the vLLM plug-in into FOLDER, to be named in PYTHONPATH of an engine.

    Nothing but ELDR's own modules and its entry points is copied: whatever they need, vLLM brings. The operator runs
    this in an init container of every vLLM pod.
    """
    try:
        copy(folder)
    except OSError as error:
        raise click.ClickException(
            f"FOLDER {folder}: {error.strerror or error}; name a folder that can be written"
        ) from error
    click.echo(f"eldr {eldr.__version__} for vLLM in {folder}")


def copy(folder: Path) -> None:
    """Copy package and metadata into a folder, replacing an older copy."""
    source = Path(eldr.__file__).parent
    target = folder / "eldr"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for module in MODULES:
        shutil.copy(source / f"{module}.py", target)
    shutil.copytree(source / "engine", target / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    installed = distribution("eldr")
    for older in folder.glob("eldr-*.dist-info"):  # of two, Python may read either
        shutil.rmtree(older)
    metadata = folder / f"eldr-{installed.version}.dist-info"
    metadata.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        text = installed.read_text(name)
        if text is None:
            raise FileNotFoundError(f"eldr is installed without {name}")
        (metadata / name).write_text(text)
