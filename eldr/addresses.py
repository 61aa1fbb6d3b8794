"""How an address and a port are written."""

from __future__ import annotations

Address = tuple[str, int]
"""Host and port."""


def authority(host: str, port: int) -> str:
    """Return ``host:port`` as it stands in URLs and Host headers, IPv6 addresses in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
