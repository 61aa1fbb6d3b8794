"""Admin ports by TLS: routers ask each other by it, refuse who cannot prove itself, and certificates change without a restart."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from eldr import admin_tls
from eldr_kube.pki import Authority
from eldr_kube.ports import free_ports
from eldr_router.app import App
from eldr_router.engines.registry import Peer
from eldr_router.settings import Settings, SettingsError, parse_peers
from eldr_router.sources import pods, secrets
from tests.fakes.engines import FakeEngine, engines
from tests.router.conftest import until, write_workers
from tests.support.clients import authority, issued
from tests.support.files import put
from tests.support.router import AUTH, TOKEN


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(secrets, "POLL_SECONDS", 0.02)


@pytest.fixture
def signer(tmp_path: Path) -> Authority:
    return authority(tmp_path, "authority")


class Pair:
    """Two routers that list each other, by ports that are known before they start."""

    def __init__(self, folder: Path, made: list[FakeEngine]) -> None:
        self.folder, self.made = folder, made
        self.ports = free_ports(2)
        self.workers = folder / "workers.yaml"
        write_workers(self.workers, made)

    def trusts(self, number: int, *signers: Authority) -> Path:
        folder = self.folder / f"trust-{number}"
        folder.mkdir(exist_ok=True)
        put(folder / "ca.crt", b"".join(each.certificate.read_bytes() for each in signers))
        return folder / "ca.crt"

    @contextlib.asynccontextmanager
    async def router(self, number: int, scheme: str = "https", **settings) -> AsyncIterator[App]:
        """Start one: it shows what is in folder ``shown-NUMBER``, if there is anything."""
        own, other = self.ports[number], self.ports[1 - number]
        shown = self.folder / f"shown-{number}" / "tls.crt"
        if shown.exists():
            settings |= {"admin_tls_certificate": shown, "admin_tls_key": shown.with_name("tls.key")}
        settings |= {"port": 0, "admin_port": own, "admin_token": TOKEN, "lame_duck_seconds": 0.0}
        app = App(Settings(workers=self.workers, peers=(f"{scheme}://localhost:{other}",), **settings))
        await app.start()
        try:
            yield app
        finally:
            await app.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with engines("p0", "d0") as made:
        yield Pair(tmp_path, made)


def peer_of(app: App) -> Peer:
    (peer,) = app.services.registry.peers.values()
    return peer


def problem(app: App) -> str:
    return peer_of(app).problem or ""


async def together(*apps: App) -> None:
    await until(
        lambda: all(peer_of(app).answered_at and not problem(app) for app in apps), "both to hear each other"
    )


async def test_routers_ask_each_other_by_tls(pair, signer, tmp_path):
    for number in range(2):
        issued(signer, tmp_path / f"shown-{number}")
    trusts = pair.trusts(0, signer)
    async with pair.router(0, admin_authority=trusts) as one, pair.router(1, admin_authority=trusts) as two:
        await together(one, two)
        await until(lambda: one.is_ready() and two.is_ready(), "both to be ready")
        context = ssl.create_default_context(cafile=str(trusts))
        async with httpx.AsyncClient(verify=context) as client:
            url = f"https://localhost:{pair.ports[0]}/eldr/v1/state"
            assert (await client.get(url, headers=AUTH)).status_code == 200
            assert (await client.get(url)).status_code == 401
            with pytest.raises(httpx.TransportError):
                await client.get(url.replace("https", "http"), headers=AUTH)


@pytest.mark.parametrize(
    ("signs", "host", "days", "expected"),
    [
        ("other", "localhost", 30, "its certificate is refused: unable to get local issuer certificate"),
        ("signer", "elsewhere", 30, "not valid for 'localhost'"),
        ("signer", "localhost", -0.5, "its certificate is refused: certificate has expired"),
    ],
)
async def test_who_cannot_prove_itself_is_not_asked_until_its_certificate_is_replaced(
    pair, signer, tmp_path, caplog, signs, host, days, expected
):
    issued(signer, tmp_path / "shown-0")
    issued(signer if signs == "signer" else authority(tmp_path, "other"), tmp_path / "shown-1", host, days)
    trusts = pair.trusts(0, signer)
    async with pair.router(0, admin_authority=trusts) as one, pair.router(1, admin_authority=trusts) as two:
        await until(lambda: expected in problem(one), "the certificate to be refused")
        assert f"router at localhost:{pair.ports[1]} reports no unions" in caplog.text
        issued(signer, tmp_path / "shown-1")  # in the running router
        await together(one, two)
        assert not problem(one)


async def test_another_authority_is_trusted_without_a_restart(pair, signer, tmp_path, caplog):
    caplog.set_level("INFO", "eldr_router.sources.secrets")
    newer = authority(tmp_path, "newer")
    for number in range(2):
        issued(signer, tmp_path / f"shown-{number}")
    trusts = pair.trusts(0, signer)
    async with pair.router(0, admin_authority=trusts) as one, pair.router(1, admin_authority=trusts) as two:
        await together(one, two)
        before = one.secrets.trust
        put(trusts, b"no certificate")
        await until(lambda: "expected certificates in PEM; what was read" in caplog.text, "the problem")
        assert one.secrets.trust is before
        pair.trusts(0, signer, newer)  # both, until all certificates are new
        await until(lambda: one.secrets.trust is not before, "the authority to be read again")
        issued(newer, tmp_path / "shown-1")
        await until(lambda: "shown-1: read again" in caplog.text, "the certificate to be shown")
        shown = one.services.clock()
        await until(lambda: peer_of(one).answered_at > shown, "an answer")
        await together(one, two)
        assert not problem(one)
        pair.trusts(0, signer)  # it is asked by a connection that was made when the newer one was trusted
        await until(
            lambda: "its certificate is refused" in problem(one), "the newer authority's to be refused"
        )
        pair.trusts(0, signer, newer)
        await together(one, two)
        await until(lambda: not problem(one), "both to be trusted again")


async def test_a_router_that_has_no_authority_yet_asks_one_that_speaks_tls(pair, signer, tmp_path):
    """While a rollout adds TLS, in Kubernetes: else the new routers would wait for the old ones for ever."""
    issued(signer, tmp_path / "shown-1")
    async with (
        pair.router(0, "http") as old,
        pair.router(1, "http", admin_authority=pair.trusts(0, signer)) as new,
    ):
        address = ("localhost", pair.ports[1])
        old.routing.set_peers([address], names={address: "qwen3.default.svc"})
        await together(old, new)
        await until(lambda: old.is_ready() and new.is_ready(), "both to be ready")


async def test_who_speaks_no_tls_where_it_is_expected(pair, signer, tmp_path):
    trusts = pair.trusts(0, signer)
    async with pair.router(0, admin_authority=trusts) as one, pair.router(1, admin_authority=trusts):
        await until(lambda: "TLS with it fails: wrong version number" in problem(one), "the problem")


def test_pods_say_what_they_speak():
    def pod(address: str, port: str) -> dict:
        container = {"name": "router", "ports": [{"name": "http"}, {"name": port}]}
        status = {"podIP": address, "phase": "Running"}
        metadata = {"name": address, "labels": {"eldr.dev/router": "true"}}
        return {"metadata": metadata, "spec": {"initContainers": [container]}, "status": status}

    found = [pod("10.0.0.1", admin_tls.PORT), pod("10.0.0.2", admin_tls.PORT_TLS)]
    assert pods.secure(found, "x.ns.svc") == {("10.0.0.2", 9100): "x.ns.svc"}
    assert not admin_tls.is_secure({"metadata": {}})


def test_settings(tmp_path, signer):
    workers = tmp_path / "w"
    for wrong in ({"admin_tls_key": workers}, {"admin_tls_certificate": workers}):
        with pytest.raises(SettingsError, match="--admin-tls-certificate and --admin-tls-key"):
            Settings(workers=workers, **wrong)
    with pytest.raises(SettingsError, match="https needs --admin-authority"):
        Settings(workers=workers, peers=("https://a:1",))
    for wrong in ("https://", "https://a/b", "ftp://a"):
        with pytest.raises(SettingsError, match="--peer: expected"):
            parse_peers([wrong])
    assert parse_peers(["http://a", "HTTPS://b:1"]) == ([("a", 9100), ("b", 1)], {("b", 1): "b"})
    for content in (b"", b"no certificate"):
        put(tmp_path / "ca.crt", content)
        with pytest.raises(SettingsError, match=r"--admin-authority .*ca.crt: expected certificates in PEM"):
            secrets.Secrets(Settings(workers=workers, admin_authority=tmp_path / "ca.crt"))
    with pytest.raises(SettingsError, match="--admin-authority"):
        secrets.Secrets(Settings(workers=workers, admin_authority=tmp_path / "nothing"))
