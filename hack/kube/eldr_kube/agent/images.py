"""What a container image means on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml


class UnknownImageError(Exception):
    """No pattern matches an image."""


@dataclass(frozen=True, slots=True)
class Image:
    """A local program that stands for an image.

    Attributes
    ----------
    entrypoint : tuple of str
        What runs where a container has no ``command``.
    path : tuple of str
        Folders that come first on PATH.
    env : dict of str to str
        Environment that the image sets.
    workdir : str
        Working directory where a container names none.
    keep : tuple of str
        Folders that stay visible where a volume is mounted over one of their parents, as /tmp often is.
    root : str
        Folder of an unpacked image, which containers see read-only instead of this machine's files.
    """

    entrypoint: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    keep: tuple[str, ...] = ()
    root: str = "/"


class ImageMap:
    """Image patterns, the first match wins.

    Parameters
    ----------
    patterns : dict of str to Image
        Shell patterns of whole image references.
    """

    def __init__(self, patterns: dict[str, Image]) -> None:
        self._patterns = patterns

    def find(self, reference: str) -> Image:
        """Return what an image means; UnknownImageError if no pattern matches; the message lists the patterns."""
        for pattern, image in self._patterns.items():
            if fnmatchcase(reference, pattern):
                return image
        raise UnknownImageError(
            f"image {reference!r} means nothing on this machine: add a pattern for it to the image map "
            f"(--image-map FILE), which knows {', '.join(self._patterns)}"
        )


def default_images() -> dict[str, Image]:
    """Return the built-in map: this environment's ``eldr``, and the host's own programs for small tool images."""
    folder = str(Path(sys.executable).parent)
    checkout = str(Path(__file__).parents[4])
    keep = (sys.prefix, sys.base_prefix, checkout)
    own = Image(entrypoint=(f"{folder}/eldr",), path=(folder,), keep=keep)
    host = Image(entrypoint=("sh",), path=(folder,), keep=keep)
    python = Image(entrypoint=("python3",), path=(folder,), keep=keep)
    return {
        **dict.fromkeys(("eldr", "eldr:*", "*/eldr", "*/eldr:*", "*/eldr@*"), own),
        **dict.fromkeys(("*busybox*", "*alpine*"), host),
        **dict.fromkeys(("python:*", "*/python:*"), python),
    }


def load_images(*paths: Path) -> ImageMap:
    """Load map files over the built-in one; an earlier file wins over a later one.

    A file is YAML: ``PATTERN: {entrypoint: [...], path: [...], env: {...}, workdir: ..., keep: [...], root: ...}``.

    Raises
    ------
    ValueError
        If a file does not have that shape; the message names the entry.
    """
    patterns: dict[str, Image] = {}
    for entries in (*map(_read, paths), default_images()):
        # Dictionaries keep the order in which keys came, and that is the order of precedence.
        patterns |= {pattern: image for pattern, image in entries.items() if pattern not in patterns}
    return ImageMap(patterns)


def dump_images(images: Mapping[str, Image], path: Path) -> None:
    """Write a map file."""
    content = {pattern: json.loads(json.dumps(asdict(image))) for pattern, image in images.items()}
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def _read(path: Path) -> dict[str, Image]:
    content = yaml.safe_load(path.read_text()) or {}
    if isinstance(content, dict):
        return {str(pattern): _image(f"{path}: {pattern}", entry) for pattern, entry in content.items()}
    raise ValueError(f"{path}: expected a mapping of image patterns")


def _image(where: str, entry: Any) -> Image:
    if not isinstance(entry, dict) or set(entry) - {"entrypoint", "path", "env", "workdir", "keep", "root"}:
        raise ValueError(f"{where}: expected entrypoint, path, env, workdir, keep, root, got {entry!r}")
    return Image(
        entrypoint=tuple(str(part) for part in entry.get("entrypoint", ())),
        path=tuple(str(part) for part in entry.get("path", ())),
        env={str(name): str(value) for name, value in entry.get("env", {}).items()},
        workdir=str(entry.get("workdir", "/")),
        keep=tuple(str(part) for part in entry.get("keep", ())),
        root=str(entry.get("root", "/")),
    )
