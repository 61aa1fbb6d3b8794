"""What clients of a router show it, and what it shows them and other routers."""

from __future__ import annotations

from pathlib import Path

from eldr_kube.pki import Authority
from tests.support.files import put


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def authority(folder: Path, name: str) -> Authority:
    """Make an authority; its files lie in a folder of its own."""
    made = folder / name
    made.mkdir(parents=True)
    return Authority(made, name)


def certificate(folder: Path, name: str) -> Path:
    """Write a certificate for localhost, its key and, as ``ca.crt``, who signed it, over what is there; return the first."""
    signer = authority(folder, name)
    put(folder / "ca.crt", signer.certificate.read_bytes())
    return issued(signer, folder)


def issued(signer: Authority, folder: Path, host: str = "localhost", days: float = 30) -> Path:
    """Write a certificate for a host and its key over what is there; return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = signer.issue("tls", hosts=(host,), days=days)
    put(folder / "tls.key", pair.key.read_bytes())
    put(folder / "tls.crt", pair.certificate.read_bytes())
    return folder / "tls.crt"
