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
from eldr_operator.locality import activation, routers
from eldr_operator.locality.polls import Polls
from eldr_operator.locality.router_view import RouterPod, RouterView, ready_routers
from eldr_operator.locality.routing import Table
from eldr_operator.models import EldrFit, parse
from eldr_operator.workloads import router
from tests.support.clients import authority, issued
from tests.unit.operator.builders import NOW, make_cr

STATE = {
    "policy": "JSQ",
    "active": None,
    "staged": None,
    "refused": [],
    "samples": 7,
    "router": "0a",
    "counters": {},
}
NAME = "x.ns.svc"
TLS = {"secretName": "qwen3-admin-tls", "authorityConfigMap": "qwen3-ca"}


class Maps:
    """The ConfigMaps of a namespace."""

    def __init__(self, *signers: Authority) -> None:
        self.asked, self.error = 0, None
        self.holds(*signers)

    def holds(self, *signers: Authority) -> None:
        self.data = {"ca.crt": "".join(each.certificate.read_text() for each in signers)}

    async def get(self, kind, namespace, name):
        assert (kind, namespace, name) == ("ConfigMap", "ns", "qwen3-ca")
        self.asked += 1
        if self.error:
            raise self.error
        return None if self.data is None else {"data": self.data}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def signer(tmp_path: Path) -> Authority:
    return authority(tmp_path, "authority")


@pytest.fixture
async def serve(tmp_path, monkeypatch):
    """Serve a router's state by TLS; return what shows the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(STATE).encode()
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


async def test_a_certificate_of_the_authority_is_taken_and_others_are_not(serve, signer, tmp_path, clock):
    other = authority(tmp_path, "other")
    trust = await Authorities(Maps(signer), clock).of("ns", "x", "qwen3-ca")
    for signed, host, days, problem in (
        (signer, NAME, 30, ""),
        (other, NAME, 30, "its certificate is refused: unable to get local issuer certificate"),
        (
            signer,
            "y.ns.svc",
            30,
            f"its certificate is refused: Hostname mismatch, certificate is not valid for '{NAME}'",
        ),
        (signer, NAME, -0.5, "its certificate is refused: certificate has expired"),
        (signer, NAME, 30, ""),
    ):
        serve(signed, host, days)
        view = await ask(trust)
        assert (view.problem, view.is_distrusted, view.samples) == (
            problem,
            bool(problem),
            0 if problem else 7,
        )


async def test_another_authority_is_read_without_a_restart(serve, signer, tmp_path, clock):
    newer, maps = authority(tmp_path, "newer"), Maps(signer)
    authorities = Authorities(maps, clock)
    serve(newer)
    assert (await ask(await authorities.of("ns", "x", "qwen3-ca"))).is_distrusted
    maps.holds(signer, newer)
    assert (await ask(await authorities.of("ns", "x", "qwen3-ca"))).is_distrusted, "not yet"
    assert maps.asked == 1
    clock.now = 30.0
    assert not (await ask(await authorities.of("ns", "x", "qwen3-ca"))).problem
    before = await authorities.of("ns", "x", "qwen3-ca")
    clock.now = 60.0
    assert await authorities.of("ns", "x", "qwen3-ca") == before, "what has not changed is not read anew"
    assert maps.asked == 3


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "ConfigMap qwen3-ca does not exist"),
        ({}, "ConfigMap qwen3-ca, ca.crt: expected certificates in PEM"),
        ({"ca.crt": "-----BEGIN"}, "ConfigMap qwen3-ca, ca.crt: expected certificates in PEM"),
    ],
)
async def test_an_authority_that_is_missing(data, problem, clock):
    maps = Maps()
    maps.data = data
    view = await ask(await Authorities(maps, clock).of("ns", "x", "qwen3-ca"))
    assert (view.problem, view.is_distrusted) == (problem, True)


@pytest.mark.parametrize(
    ("error", "told"),
    [(ApiError(403, "Forbidden", "no"), "status 403"), (ApiUnavailableError("away"), "no answer")],
)
async def test_an_authority_that_cannot_be_read_stays_as_it_was(signer, clock, error, told):
    maps = Maps(signer)
    maps.error = error
    authorities = Authorities(maps, clock)
    found = await authorities.of("ns", "x", "qwen3-ca")
    assert (found.context, found.problem) == (None, f"ConfigMap qwen3-ca cannot be read ({told})")
    clock.now, maps.error = 30.0, None
    good = await authorities.of("ns", "x", "qwen3-ca")
    clock.now, maps.error = 60.0, error
    assert await authorities.of("ns", "x", "qwen3-ca") == good


async def test_where_nobody_says_whom_to_trust_every_certificate_is_taken(serve, signer, clock):
    """Pods from before the field was removed; plain HTTP proves no more."""
    serve(signer, "elsewhere")
    assert not (await ask(await Authorities(None, clock).of("ns", "x", ""))).problem


async def test_a_router_that_speaks_no_tls_where_its_pod_says_so(signer, clock, monkeypatch):
    async def answer(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        monkeypatch.setattr(routers.contract, "PORT_ADMIN", server.sockets[0].getsockname()[1])
        view = await ask(await Authorities(Maps(signer), clock).of("ns", "x", "qwen3-ca"))
    assert (view.problem, view.is_distrusted) == ("TLS with it fails: wrong version number", True)


async def test_polls_tell_a_refused_certificate_at_once(serve, signer, tmp_path, clock):
    serve(signer)
    woken = asyncio.Event()
    async with routers.session() as client:
        fetch = partial(routers.fetch, client)
        polls = Polls(fetch, lambda _: woken.set(), lambda: NOW, Authorities(Maps(signer), clock))
        try:
            polls.latest(("ns", "x"), [POD], "t", "qwen3-ca")
            polls.ask_every(("ns", "x"), 0.01)
            async with asyncio.timeout(30):
                await woken.wait()
                assert not polls.latest(("ns", "x"), [POD], "t", "qwen3-ca").views[0].problem
                woken.clear()
                serve(signer, NAME, -0.5)
                await woken.wait()
            (view,) = polls.latest(("ns", "x"), [POD], "t", "qwen3-ca").views
            assert "certificate has expired" in view.problem
        finally:
            polls.close()


def test_the_condition_says_what_to_do():
    cr = make_cr(router={"adminTLS": TLS})
    views = [
        RouterView(POD, problem="its certificate is refused: certificate has expired", is_distrusted=True)
    ]
    unreached = NOW.replace(year=NOW.year - 1)
    found = activation.decide(cr, [], Table(), views, NOW, unreached_since=unreached).condition
    assert (found.status, found.reason) == ("Unknown", "RoutersUnreachable")
    assert (
        f"router r0 (its certificate is refused: certificate has expired); Secret {TLS['secretName']}"
        in found.message
    )
    assert f"needs a certificate for {cr.name}.{cr.namespace}.svc" in found.message
    assert "ca.crt of ConfigMap qwen3-ca" in found.message


def test_what_pods_and_fits_get():
    cr, plain = make_cr(router={"adminTLS": TLS}), make_cr()
    made = router.container(cr, "i")
    given = [
        "--admin-tls-certificate=/etc/eldr/admin-tls/tls.crt",
        "--admin-tls-key=/etc/eldr/admin-tls/tls.key",
        "--admin-authority=/etc/eldr/admin-authority/ca.crt",
    ]
    assert [arg for arg in made["args"] if arg.startswith(("--admin-tls", "--admin-authority"))] == given
    assert "--tls-certificate" not in str(made["args"])
    assert made["readinessProbe"]["httpGet"]["scheme"] == "HTTP", "probes ask clients' port"
    mounts = {each["name"]: each["mountPath"] for each in made["volumeMounts"]}
    sources = {each["name"]: each for each in router.volumes(cr)}
    assert sources["admin-tls"]["secret"]["secretName"] == "qwen3-admin-tls"
    assert sources["admin-authority"]["configMap"]["name"] == "qwen3-ca"
    assert {name: mounts[name] for name in ("admin-tls", "admin-authority")} == {
        "admin-tls": "/etc/eldr/admin-tls",
        "admin-authority": "/etc/eldr/admin-authority",
    }
    for each, is_secure in ((cr, True), (plain, False)):
        status = {
            "podIP": "10.0.0.1",
            "initContainerStatuses": [{"name": "router", "ready": True}],
        }
        labels = {"eldr.dev/router": "true"}
        pod = {"metadata": {"name": "p", "labels": labels}, "status": status}
        pod["spec"] = {"initContainers": [router.container(each, "i")]}
        assert [found.is_secure for found in ready_routers([pod])] == [is_secure]
    metadata = {"name": "f", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-11-01T00:00:00Z"}
    fit = parse(EldrFit, {"metadata": metadata, "spec": {"deploymentRef": {"name": "x"}}})
    pod = fit_job(cr, fit, "i")["spec"]["template"]["spec"]
    assert "--admin-authority=/etc/eldr/admin-authority/ca.crt" in pod["containers"][0]["args"]
    assert pod["volumes"][1]["configMap"]["name"] == "qwen3-ca"
    assert "admin-authority" not in str(fit_job(plain, fit, "i"))
