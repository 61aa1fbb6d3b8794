"""Keys, certificates and tokens in files, read when they change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from eldr import admin_tls
from eldr.shown import shown
from eldr_router.settings import Settings, SettingsError

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
_MOST_BYTES = 4096

Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class _Watched:
    """A folder, and what reads it."""

    folder: Path
    read: Callable[[], None]
    stamp: Stamp = ()
    problem: str = ""

    def read_again(self, stamp: Stamp) -> None:
        """Read what has changed."""
        before, self.problem = self.problem, ""
        try:
            self.read()
        except SettingsError as error:
            self.problem = str(error)
            if self.problem != before:
                log.warning("%s; what was read before stays in effect", self.problem)
        else:
            self.stamp = stamp
            log.info("%s: read again", self.folder)


class Secrets:
    """What this router asks of others, and shows them.

    Attributes
    ----------
    keys : tuple of bytes or None
        SHA-256 digests of the API keys; None: clients need none.
    admin_token : str
        Of the admin ports of this router and the others; empty: none is asked for.
    tls, admin_tls : ssl.SSLContext or None
        For clients, and for the admin port; None: it speaks plain HTTP.
    trust : ssl.SSLContext
        For admin ports of other routers. Without an authority it trusts everybody.

    Raises
    ------
    SettingsError
        If files cannot be read, or hold no key or no certificate.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.keys: tuple[bytes, ...] | None = None
        self.trust = admin_tls.unverified()
        self._watched: list[_Watched] = []
        self.admin_token = settings.admin_token
        if settings.admin_token_file is not None:
            self._watched.append(_Watched(settings.admin_token_file.parent, self._read_token))
        if settings.api_keys is not None:
            self._watched.append(_Watched(settings.api_keys, self._read_keys))
        self.tls = self._shown("tls", settings.tls_certificate, settings.tls_key)
        self.admin_tls = self._shown("admin-tls", settings.admin_tls_certificate, settings.admin_tls_key)
        if settings.admin_authority is not None:
            self._watched.append(_Watched(settings.admin_authority.parent, self._read_authority))
        for watched in self._watched:
            watched.stamp = _stamp(watched.folder)
            watched.read()

    def _shown(self, what: str, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
        """Return what shows a certificate, once it is read."""
        if certificate is None or key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        read = partial(_read_pair, context, what, certificate, key)
        self._watched.append(_Watched(certificate.parent, read))
        return context

    async def run(self) -> None:
        """Read again what changes.

        If it cannot be read, that is logged, and what was read before stays.
        """
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for watched in self._watched:
                if (stamp := _stamp(watched.folder)) != watched.stamp:
                    watched.read_again(stamp)

    def _read_keys(self) -> None:
        assert self._settings.api_keys is not None  # noqa: S101 - else it is not watched
        self.keys = read_keys(self._settings.api_keys)

    def _read_token(self) -> None:
        assert self._settings.admin_token_file is not None  # noqa: S101 - else it is not watched
        option = "--admin-token-file"
        try:
            self.admin_token = _read_key(self._settings.admin_token_file, option).decode()
        except OSError as error:
            raise SettingsError(f"{option}: {error}") from None

    def _read_authority(self) -> None:
        assert self._settings.admin_authority is not None  # noqa: S101 - else it is not watched
        path = self._settings.admin_authority
        try:
            self.trust = admin_tls.verifying(path.read_text())
        except (OSError, ValueError) as error:
            raise SettingsError(f"--admin-authority {path}: {error}") from None


def _read_pair(shown: ssl.SSLContext, what: str, certificate: Path, key: Path) -> None:
    # a trial first, as a context keeps the certificate of a pair whose key does not belong to it
    for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), shown):
        try:
            # with a password, or a key with a passphrase would ask a terminal for it
            context.load_cert_chain(certificate, key, "")
        except OSError as error:
            raise SettingsError(
                f"--{what}-certificate {certificate}, --{what}-key {key}: {error}; give a PEM chain and its key"
            ) from None


def read_keys(folder: Path) -> tuple[bytes, ...]:
    """Return digests of the keys in a folder, one per file.

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


def _read_key(path: Path, option: str = "--api-keys") -> bytes:
    with path.open("rb") as file:
        key = file.read(_MOST_BYTES + 1).strip()
    if not key or len(key) > _MOST_BYTES or not all(0x21 <= byte < 0x7F for byte in key):
        wanted = f"one key of 1 to {_MOST_BYTES} printable ASCII characters without spaces"
        raise SettingsError(f"{option}: {shown(path.name)} must hold {wanted}")
    return key


def _stamp(folder: Path) -> Stamp:
    """Return what changes when a file of a folder does; a kubelet replaces them all by one link."""
    try:
        return tuple(_seen(path) for path in sorted(folder.iterdir()))
    except OSError:
        return ()


def _seen(path: Path) -> tuple[str, int, int, int]:
    try:
        seen = path.stat()
    except OSError:  # a link to nothing, beside what is read
        return path.name, 0, 0, 0
    return path.name, seen.st_ino, seen.st_mtime_ns, seen.st_size
