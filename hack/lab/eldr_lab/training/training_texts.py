"""Texts to train on: Debian's documentation packages, the interpreter's library, this machine's licences and changelogs."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eldr_lab.training.html_pages import html_page
from eldr_tiny_moe import sources
from eldr_tiny_moe.corpus import Machine

PACKAGES = (
    "debian-handbook",
    "installation-guide-amd64",
    "debian-reference-fr",
    "debian-reference-zh-cn",
    "manpages",
    "manpages-dev",
    "manpages-ru",
)
HANDBOOK = "debian-handbook/usr/share/doc/debian-handbook/html/{}/*.html"
GUIDE = "installation-guide-amd64/usr/share/doc/installation-guide-amd64/{}/*.html"
SHORTEST, LONGEST = 1500, 60_000
HELD_OUT = 0.15
"""Share of each kind's documents that is kept from the training."""


@dataclass(frozen=True, slots=True)
class Split:
    """Documents of one kind."""

    train: Sequence[str]
    held_out: Sequence[str]


def unpack(folder: Path, packages: Iterable[str] = PACKAGES) -> None:
    """Download packages with apt and unpack each into a folder of its name, nothing is installed; present ones are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        if (folder / package).is_dir():
            continue
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        archive = next(folder.glob(f"{package}_*.deb"))
        partial = folder / f"{package}.partial"
        subprocess.run(["dpkg-deb", "--extract", archive, partial], check=True)
        partial.rename(folder / package)
        archive.unlink()


def files(
    folder: Path, machine: Machine
) -> Mapping[str, Sequence[tuple[Callable[[Path], str], Iterable[Path]]]]:
    """Return, by kind, files and how to read them."""

    def pages(*patterns: str) -> tuple[Callable[[Path], str], Iterable[Path]]:
        return html_page, (p for pattern in patterns for p in sorted(folder.glob(pattern)))

    def manuals(package: str) -> tuple[Callable[[Path], str], Iterable[Path]]:
        return sources.manual_page, sorted((folder / package).glob("**/man/**/*.gz"))

    doc = machine.share / "doc"
    return {
        "english": [pages(HANDBOOK.format("en-US"), GUIDE.format("en"))],
        "french": [pages(HANDBOOK.format("fr-FR"), GUIDE.format("fr"), "debian-reference-fr/**/*.fr.html")],
        "russian": [pages(HANDBOOK.format("ru-RU"), GUIDE.format("ru")), manuals("manpages-ru")],
        "chinese": [
            pages(HANDBOOK.format("zh-CN"), GUIDE.format("zh_CN"), "debian-reference-zh-cn/**/*.html"),
        ],
        "python": [(sources.read, sorted(machine.stdlib.glob("*.py")))],
        "manual": [manuals("manpages"), manuals("manpages-dev")],
        "licence": [
            (
                sources.read,
                (p for p in sorted((machine.share / "common-licenses").glob("*")) if not p.is_symlink()),
            ),
            (sources.read, sorted(doc.glob("*/copyright"))),
        ],
        "changelog": [(sources.read, sorted(doc.glob("[a-l]*/changelog*.gz")))],
    }


def load(folder: Path, machine: Machine | None = None, seed: int = 0) -> dict[str, Split]:
    """Return the documents by kind, whole documents held out; kinds without any are left out.

    Paragraphs of licences that were seen before are dropped: copyright files repeat the same few.
    """
    splits = {}
    for kind, groups in files(folder, machine or Machine()).items():
        seen: set[str] = set()
        documents = []
        for reader, paths in groups:
            for path in paths:
                text = reader(path)
                if kind == "licence":
                    text = "\n\n".join(_new_paragraphs(text, seen))
                if len(text) >= SHORTEST:
                    documents.append(text[:LONGEST])
        random.Random(f"{seed}:{kind}").shuffle(documents)
        kept = max(1, round(HELD_OUT * len(documents)))
        if len(documents) > kept:
            splits[kind] = Split(train=documents[kept:], held_out=documents[:kept])
    return splits


def _new_paragraphs(text: str, seen: set[str]) -> Iterable[str]:
    for paragraph in text.split("\n\n"):
        key = "".join(paragraph.lower().split())
        if len(key) >= 80 and key not in seen:
            seen.add(key)
            yield paragraph
