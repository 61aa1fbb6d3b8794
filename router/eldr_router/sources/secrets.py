"""API keys and certificates in files, such as those of mounted Secrets: read at the start, and again when they change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from eldr.shown import shown
from eldr_router.settings import Settings, SettingsError

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
_MOST_BYTES = 4096

Stamp = tuple[tuple[str, int, int, int], ...]


class Secrets:
    """What this router asks of its clients, and shows them.

    Attributes
    ----------
    keys : tuple of bytes or None
        SHA-256 digests of the API keys; None: clients need none.
    tls : ssl.SSLContext or None
        For clients; None: they speak plain HTTP.

    Raises
    ------
    SettingsError
        If files cannot be read, or hold no key or no certificate.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stamps: dict[Path, Stamp] = {}
        self._problems: dict[Path, str] = {}
        self.keys: tuple[bytes, ...] | None = None
        self.tls: ssl.SSLContext | None = None
        self._watched: list[tuple[Path, Callable[[], None]]] = []
        if settings.api_keys is not None:
            self._watched.append((settings.api_keys, self._read_keys))
        if settings.tls_certificate is not None:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._watched.append((settings.tls_certificate.parent, self._read_certificate))
        for folder, read in self._watched:
            self._stamps[folder] = _stamp(folder)
            read()

    async def run(self) -> None:
        """Read again what changes. What cannot be read is logged, and what was read before stays in effect."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for folder, read in self._watched:
                if (stamp := _stamp(folder)) != self._stamps[folder]:
                    self._read_again(folder, read, stamp)

    def _read_again(self, folder: Path, read: Callable[[], None], stamp: Stamp) -> None:
        problem = ""
        try:
            read()
        except SettingsError as error:
            problem = str(error)
            if problem != self._problems.get(folder):
                log.warning("%s; what was read before stays in effect", problem)
        else:
            self._stamps[folder] = stamp
            log.info("%s: read again", folder)
        self._problems[folder] = problem

    def _read_keys(self) -> None:
        assert self._settings.api_keys is not None  # noqa: S101 - else it is not watched
        self.keys = read_keys(self._settings.api_keys)

    def _read_certificate(self) -> None:
        certificate, key = str(self._settings.tls_certificate), str(self._settings.tls_key)
        assert self.tls is not None  # noqa: S101 - else it is not watched
        # a trial first, as a context keeps the certificate of a pair whose key does not belong to it
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.tls):
            try:
                context.load_cert_chain(certificate, key)
            except OSError as error:
                raise SettingsError(
                    f"--tls-certificate {certificate}, --tls-key {key}: {error}; give a PEM chain and its key"
                ) from None


def read_keys(folder: Path) -> tuple[bytes, ...]:
    """Return digests of the keys in a folder: each file holds one, as in a mounted Secret.

    Raises
    ------
    SettingsError
        If there is none, or a file holds something else.
    """
    try:
        # names that begin with a dot are what a kubelet puts beside the keys
        files = [path for path in sorted(folder.iterdir()) if path.name[0] != "." and path.is_file()]
        digests = tuple(sha256(_read_key(path)).digest() for path in files)
    except OSError as error:
        raise SettingsError(f"--api-keys: {error}") from None
    if not digests:
        raise SettingsError(f"--api-keys {folder}: holds no key; put one into each file")
    return digests


def _read_key(path: Path) -> bytes:
    with path.open("rb") as file:
        key = file.read(_MOST_BYTES + 1).strip()
    if not key or len(key) > _MOST_BYTES or not all(0x21 <= byte < 0x7F for byte in key):
        wanted = f"one key of 1 to {_MOST_BYTES} printable ASCII characters without spaces"
        raise SettingsError(f"--api-keys: {shown(path.name)} must hold {wanted}")
    return key


def _stamp(folder: Path) -> Stamp:
    """Return what changes when a file of a folder does; a kubelet replaces them all by one link."""
    try:
        found = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    except OSError:
        return ()
    return tuple((name, seen.st_ino, seen.st_mtime_ns, seen.st_size) for name, seen in found)
