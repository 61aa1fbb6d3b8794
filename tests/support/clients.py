"""What clients of a router show it, and it shows them."""

from __future__ import annotations

from pathlib import Path

from eldr_kube.pki import Authority
from tests.support.files import put


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def certificate(folder: Path, name: str) -> Path:
    """Write a certificate for localhost, its key and, as ``ca.crt``, who signed it, over what is there; return the first."""
    made = folder / name
    made.mkdir(parents=True)
    authority = Authority(made, "ca")
    pair = authority.issue("tls", hosts=("localhost",))
    put(folder / "ca.crt", authority.certificate.read_bytes())
    put(folder / "tls.key", pair.key.read_bytes())
    put(folder / "tls.crt", pair.certificate.read_bytes())
    return folder / "tls.crt"
