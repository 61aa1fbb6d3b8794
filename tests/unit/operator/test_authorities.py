"""Admin ports by TLS, as the operator asks them: real certificates, ConfigMaps that are wrong, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import ssl
from functools import partial
from pathlib import Path

import pytest

from eldr_kube.pki import Authority
from eldr_operator.errors import ApiError, ApiUnavailableError
from eldr_operator.fits.job import fit_job
from eldr_operator.kube.authorities import Authorities
from eldr_operator.locality import routers
from eldr_operator.locality.polls import Polls
from eldr_operator.locality.router_view import RouterPod, RouterView, ready_routers
from eldr_operator.workloads import router
from tests.support.clients import authority, issued
from tests.unit.operator.builders import NOW, STATE, make_cr, make_fit

NAME = "x.ns.svc"
TLS = {"secretName": "qwen3-admin-tls", "authorityConfigMap": "qwen3-ca"}


class Maps:
    """The ConfigMaps of a namespace, what was read in them, and the time."""

    def __init__(self, *signers: Authority) -> None:
        self.asked, self.error, self.seconds = 0, None, 0.0
        self.authorities = Authorities(self, lambda: self.seconds)
        self.holds(*signers)

    def holds(self, *signers: Authority) -> None:
        self.data = {"ca.crt": "".join(each.certificate.read_text() for each in signers)}

    async def get(self, kind, namespace, name):
        assert (kind, namespace, name) == ("ConfigMap", "ns", "qwen3-ca")
        self.asked += 1
        if self.error:
            raise self.error
        return None if self.data is None else {"data": self.data}

    async def trust(self, seconds=0.0):
        """Return whom to trust so many seconds later."""
        self.seconds += seconds
        return await self.authorities.of("ns", "x", "qwen3-ca")

    async def ask(self, seconds=0.0):
        return await ask(await self.trust(seconds))


@pytest.fixture
def signer(tmp_path: Path) -> Authority:
    return authority(tmp_path, "authority")


@pytest.fixture
async def serve(tmp_path, monkeypatch):
    """Serve a router's state by TLS; return what shows the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(STATE | {"samples": 7}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    monkeypatch.setattr(routers.contract, "PORT_ADMIN", server.sockets[0].getsockname()[1])

    def show(signed: Authority, host: str = NAME, days: float = 30) -> None:
        path = issued(signed, tmp_path / "shown", host, days)
        context.load_cert_chain(path, path.with_name("tls.key"))

    yield show
    server.close()
    await server.wait_closed()


POD = RouterPod("r0", "127.0.0.1", None, is_secure=True)


async def ask(trust) -> RouterView:
    async with routers.session() as client:
        (view,) = await routers.look(partial(routers.fetch, client), [POD], "t", trust)
    return view


async def test_a_certificate_of_the_authority_is_taken_and_others_are_not(serve, signer, tmp_path):
    other, maps = authority(tmp_path, "other"), Maps(signer)
    for signed, host, days, problem in (
        (signer, NAME, 30, ""),
        (other, NAME, 30, "unable to get local issuer certificate"),
        (signer, "y.ns.svc", 30, f"Hostname mismatch, certificate is not valid for '{NAME}'"),
        (signer, NAME, -0.5, "certificate has expired"),
        (signer, NAME, 30, ""),
    ):
        serve(signed, host, days)
        view = await maps.ask()
        assert view.problem == (problem and f"its certificate is refused: {problem}")
        assert (view.is_distrusted, view.samples) == (bool(problem), 0 if problem else 7)


async def test_another_authority_is_read_without_a_restart(serve, signer, tmp_path):
    newer, maps = authority(tmp_path, "newer"), Maps(signer)
    serve(newer)
    assert (await maps.ask()).is_distrusted
    maps.holds(signer, newer)
    assert (await maps.ask()).is_distrusted, "not yet"
    assert maps.asked == 1
    assert not (await maps.ask(30)).problem
    before = await maps.trust()
    assert await maps.trust(30) == before, "what has not changed is not read anew"
    assert maps.asked == 3


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "ConfigMap qwen3-ca does not exist"),
        ({}, "ConfigMap qwen3-ca, ca.crt: expected certificates in PEM"),
        ({"ca.crt": "-----BEGIN"}, "ConfigMap qwen3-ca, ca.crt: expected certificates in PEM"),
    ],
)
async def test_an_authority_that_is_missing(data, problem):
    maps = Maps()
    maps.data = data
    view = await maps.ask()
    assert (view.problem, view.is_distrusted) == (problem, True)


@pytest.mark.parametrize(
    ("error", "told"),
    [(ApiError(403, "Forbidden", "no"), "status 403"), (ApiUnavailableError("away"), "no answer")],
)
async def test_an_authority_that_cannot_be_read_stays_as_it_was(signer, error, told):
    maps = Maps(signer)
    maps.error = error
    found = await maps.trust()
    assert (found.context, found.problem) == (None, f"ConfigMap qwen3-ca cannot be read ({told})")
    maps.error = None
    good = await maps.trust(30)
    maps.error = error
    assert await maps.trust(30) == good


async def test_where_nobody_says_whom_to_trust_every_certificate_is_taken(serve, signer):
    """Pods from before the field was removed; plain HTTP proves no more."""
    serve(signer, "elsewhere")
    assert not (await ask(await Authorities(None).of("ns", "x", ""))).problem


async def test_a_router_that_speaks_no_tls_where_its_pod_says_so(signer, monkeypatch):
    async def answer(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        monkeypatch.setattr(routers.contract, "PORT_ADMIN", server.sockets[0].getsockname()[1])
        view = await Maps(signer).ask()
    assert (view.problem, view.is_distrusted) == ("TLS with it fails: wrong version number", True)


async def test_polls_tell_a_refused_certificate_at_once(serve, signer):
    serve(signer)
    woken = asyncio.Event()
    async with routers.session() as client:
        fetch = partial(routers.fetch, client)
        polls = Polls(fetch, lambda _: woken.set(), lambda: NOW, Maps(signer).authorities)

        def problems():
            seen = polls.latest(("ns", "x"), [POD], "t", "qwen3-ca")
            return seen and [view.problem for view in seen.views]

        try:
            assert problems() is None
            polls.ask_every(("ns", "x"), 0.01)
            async with asyncio.timeout(30):
                await woken.wait()
                assert problems() == [""]
                woken.clear()
                serve(signer, NAME, -0.5)
                await woken.wait()
            assert problems() == ["its certificate is refused: certificate has expired"]
        finally:
            polls.close()


@pytest.mark.parametrize(("spec", "is_secure"), [({"adminTLS": TLS}, True), ({}, False)])
def test_pods_and_fits_know_how_to_ask(spec, is_secure):
    cr = make_cr(router=spec)
    status = {"podIP": "10.0.0.1", "initContainerStatuses": [{"name": "router", "ready": True}]}
    pod = {"metadata": {"name": "p", "labels": {"eldr.dev/router": "true"}}, "status": status}
    pod["spec"] = {"initContainers": [router.container(cr, "i")]}
    assert [found.is_secure for found in ready_routers([pod])] == [is_secure]
    fit = fit_job(cr, make_fit("f", "Pending"), "i")["spec"]["template"]["spec"]
    asked = "--admin-authority=/etc/eldr/admin-authority/ca.crt"
    assert (asked in fit["containers"][0]["args"]) == is_secure
    volumes = [each["configMap"]["name"] for each in fit["volumes"] if "configMap" in each]
    assert volumes == ["qwen3-ca"] * is_secure
