"""Prompts of several kinds of text, from what this machine holds and from generated text.

The trained model never saw the Python packages (only top-level modules), message catalogs and generated text used here. Manual pages
are those of sections 1 and 8, of which the training had a handful. Changelogs come from packages in the second half of the alphabet
because the training took the first half; single entries may still be the same. Licences are the exception: they are the same few
texts everywhere.
"""

from __future__ import annotations

import random
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eldr_tiny_moe import sources, synthetic

ENOUGH = 60_000
"""Characters that a kind needs; with less, the machine's text is left out."""
LIMIT = 400_000
"""Characters kept of a kind."""
FILE_LIMIT = 40_000
HEAD = 16
"""No two prompts of one drawer start with the same characters (or tokens): caches keyed by prefix find nothing."""

LANGUAGES = {"french": "fr", "russian": "ru", "chinese": "zh_CN"}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a machine keeps its texts.

    Attributes
    ----------
    stdlib : Path
        The interpreter's own library.
    share : Path
        Usually ``/usr/share``.
    """

    stdlib: Path = Path(sysconfig.get_path("stdlib"))
    share: Path = Path("/usr/share")

    def files(self) -> Mapping[str, tuple[Callable[[Path], str], Iterable[Path]]]:
        """Return, by kind, how to read it and the files that hold it."""
        skipped = ("site-packages", "test", "tests", "idle_test", "pydoc_data")
        kinds: dict[str, tuple[Callable[[Path], str], Iterable[Path]]] = {
            "python": (
                sources.read,
                (
                    p
                    for p in self.stdlib.glob("*/**/*.py")
                    if not any(part in skipped for part in p.relative_to(self.stdlib).parts)
                ),
            ),
            "licence": (
                sources.read,
                (p for p in (self.share / "common-licenses").glob("*") if not p.is_symlink()),
            ),
            "manual": (
                sources.manual_page,
                (p for s in ("man1", "man8") for p in (self.share / "man" / s).glob("*.gz")),
            ),
            "changelog": (
                sources.read,
                (p for p in (self.share / "doc").glob("[m-z]*/changelog*.gz") if not p.is_symlink()),
            ),
        }
        for kind, code in LANGUAGES.items():
            kinds[kind] = (
                sources.catalog,
                (self.share / "locale" / code / "LC_MESSAGES").glob("*.mo"),
            )
        return kinds


@dataclass(frozen=True, slots=True)
class Text:
    """All text of one kind.

    Attributes
    ----------
    generated : bool
        Whether it was made up because the machine holds too little.
    """

    text: str
    generated: bool


def load(machine: Machine | None = None, *, seed: int = 0) -> dict[str, Text]:
    """Return the texts of this machine by kind; the same for the same files and seed.

    The kinds ``python`` (on any normal installation), ``numbers``, ``json``, ``french``, ``russian`` and ``chinese`` always
    exist, the languages generated where there are no message catalogs; ``licence``, ``manual`` and ``changelog`` exist where the
    machine has such files.
    """
    found: dict[str, Text] = {}
    for kind, (reader, paths) in (machine or Machine()).files().items():
        ordered = sorted(paths)
        random.Random(f"{seed}:{kind}").shuffle(ordered)
        text = _join(reader, ordered)
        if len(text) >= ENOUGH:
            found[kind] = Text(text, generated=False)
    for kind in synthetic.PIECES:
        if kind not in found:
            found[kind] = Text(synthetic.generate(kind, LIMIT, seed), generated=True)
    return dict(sorted(found.items()))


def _join(reader: Callable[[Path], str], paths: Sequence[Path]) -> str:
    def pieces() -> Iterator[str]:
        length = 0
        for path in paths:
            try:
                piece = reader(path)[:FILE_LIMIT]
            except (OSError, EOFError, zlib.error):  # unreadable or damaged: the next one will do
                continue
            yield piece
            length += len(piece)
            if length >= LIMIT:
                return

    return "\n\n".join(pieces())


class Prompts:
    """Draws prompts; the same ones in the same order for the same texts and seed.

    Parameters
    ----------
    texts : mapping of str to Text
        What :func:`load` returned.
    """

    ATTEMPTS = 1000

    def __init__(self, texts: Mapping[str, Text], seed: int = 0) -> None:
        self._texts = texts
        self._rng = random.Random(seed)
        self._heads: set[Sequence[object]] = set()

    def characters(self, kind: str, n: int) -> str:
        """Return ``n`` characters of a kind, from the start of a word or of a character of a script without spaces."""
        text = self._text(kind, n)
        for _ in range(self.ATTEMPTS):
            start = self._rng.randrange(len(text) - n + 1)
            space = text.find(" ", start, start + 40)
            start = min(space + 1 if space >= 0 else start, len(text) - n)
            prompt = text[start : start + n]
            if prompt.strip() and self._is_new(prompt[:HEAD]):
                return prompt
        raise ValueError(f"{kind}: {self.ATTEMPTS} draws, all with known beginnings; draw fewer prompts")

    def tokens(self, kind: str, n: int, encode: Callable[[str], Sequence[int]]) -> list[int]:
        """Return ``n`` token ids of a kind.

        Parameters
        ----------
        encode : callable
            The tokenizer; a token of it holds at most 16 characters on average.
        """
        for _ in range(self.ATTEMPTS):
            ids = list(encode(self.characters(kind, 16 * n)))[:n]
            if len(ids) == n and self._is_new(tuple(ids[:HEAD])):
                return ids
        raise ValueError(
            f"{kind}: cannot draw {n} tokens with a new beginning; ask for fewer or shorter prompts"
        )

    def _text(self, kind: str, n: int) -> str:
        if kind not in self._texts:
            raise ValueError(f"kind: there is no {kind!r} here, only {', '.join(self._texts)}")
        text = self._texts[kind].text
        if not 1 <= n <= len(text):
            raise ValueError(f"n: expected 1..{len(text)} characters of {kind}, got {n}")
        return text

    def _is_new(self, head: Sequence[object]) -> bool:
        if head in self._heads:
            return False
        self._heads.add(head)
        return True
