"""The process's settings, as the command line gives them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from eldr.contract import PORT_ADMIN, PORT_ROUTER
from eldr.shown import shown
from eldr_router.api.cost import MAX_BODY


class SettingsError(ValueError):
    """Settings that cannot work; the message names the option and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that is fixed for the life of the process; times in seconds.

    See ``eldr router --help`` for what each one means.
    """

    source: str = "file"
    workers: Path | None = None
    centroids: Path | None = None
    namespace: str = ""
    deployment: str = ""
    peers: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = PORT_ROUTER
    loopback: bool = False
    admin_host: str = ""
    admin_port: int = PORT_ADMIN
    admin_token: str = ""
    admin_token_file: Path | None = None
    api_keys: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    admin_tls_certificate: Path | None = None
    admin_tls_key: Path | None = None
    admin_authority: Path | None = None
    log_dir: Path | None = None
    log_bytes: int = 256 << 20
    log_seconds: float = 7 * 86400.0
    drain_seconds: float = 300.0
    lame_duck_seconds: float = 2.0
    prefill_timeout_seconds: float = 120.0
    decode_idle_timeout_seconds: float = 600.0
    client_idle_timeout_seconds: float = 620.0
    connect_timeout_seconds: float = 2.0
    max_body: int = MAX_BODY
    max_bodies: int = 512 << 20
    max_waiting: int = 0
    max_wait_seconds: float = 10.0
    access_log: bool = False
    attempts: int = 3
    ready_seconds: float = 10.0
    join_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.source == "file" and self.workers is None:
            raise SettingsError(
                "--workers: the file source needs a worker file; see docs/reference/router.md"
            )
        if self.source == "kubernetes" and not (self.namespace and self.deployment):
            raise SettingsError("--namespace and --deployment: the kubernetes source needs both")
        if not self.admin_token and self.admin_token_file is None and not is_loopback(self.admin):
            raise SettingsError(
                f"--admin-host: {self.admin} is reachable from outside, but ELDR_ADMIN_TOKEN is not set; "
                "set it or --admin-token-file, or use --admin-host 127.0.0.1"
            )
        for what, pair in (
            ("tls", (self.tls_certificate, self.tls_key)),
            ("admin-tls", (self.admin_tls_certificate, self.admin_tls_key)),
        ):
            if pair.count(None) == 1:
                raise SettingsError(
                    f"--{what}-certificate and --{what}-key: one is of no use without the other; give both"
                )
        if self.max_bodies < self.max_body:
            raise SettingsError(
                f"--max-bodies-mebibytes: {self.max_bodies >> 20} is less than one body may have "
                f"(--max-body-mebibytes {self.max_body >> 20}); raise it"
            )
        if parse_peers(self.peers)[1] and self.admin_authority is None:
            raise SettingsError(
                "--peer: https needs --admin-authority, the certificates of who signed that of the other router"
            )

    @property
    def admin(self) -> str:
        """Address of the admin port."""
        return self.admin_host or self.host


def is_loopback(host: str) -> bool:
    """Return whether an address cannot be reached from other machines."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_peers(urls: Iterable[str]) -> tuple[list[tuple[str, int]], dict[tuple[str, int], str]]:
    """Return other routers' admin addresses, and names of TLS ones."""
    addresses, names = [], {}
    for url in urls:
        is_secure = url.lower().startswith("https://")
        address = parse_url("--peer", f"http{url[5:]}" if is_secure else url, PORT_ADMIN)
        addresses.append(address)
        if is_secure:
            names[address] = address[0]
    return addresses, names


def parse_url(name: str, url: object, port: int) -> tuple[str, int]:
    """Return host and port of a URL; SettingsError names the field."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        if parts.scheme == "http" and parts.hostname and parts.path in ("", "/") and not parts.query:
            parts.hostname.encode("idna")  # ValueError: nothing could ever be connected to
            if parts.port != 0:
                return parts.hostname, parts.port or port
    except ValueError:
        pass
    raise SettingsError(f"{name}: expected http://host:port, got {shown(url)}")
