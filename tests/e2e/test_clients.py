"""API keys and TLS of clients, from Secrets, on the embedded cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from eldr import contract
from tests.e2e.conftest import NAME, System, usual
from tests.support.clients import bearer, certificate
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.costly, pytest.mark.timeout(600)]

KEYS, TLS, EMPTY = "e2e-keys", "e2e-tls", "e2e-empty"
SPEC = usual(0.1) | {
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
    "router": {"apiKeysSecret": KEYS, "tlsSecret": TLS},
}


def secret(name: str, kind: str, data: dict[str, str]) -> dict:
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
    return head | {"type": kind, "stringData": data}


def keys(*values: str) -> dict:
    return secret(KEYS, "Opaque", {f"client-{number}": value for number, value in enumerate(values)})


def tls(path: Path) -> dict:
    pair = {name: path.with_name(name).read_text() for name in ("tls.crt", "tls.key")}
    return secret(TLS, "kubernetes.io/tls", pair)


@pytest.fixture(scope="module")
def made(cluster, tmp_path_factory) -> Iterator[Path]:
    """The Secrets; return the certificate."""
    path = certificate(tmp_path_factory.mktemp("tls"), "first")
    manifests = {"apiVersion": "v1", "kind": "List", "items": [keys("alice", "bob"), tls(path)]}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifests))
    yield path
    cluster.kubectl("delete", "secret", KEYS, TLS)


def test_a_client_needs_a_key_and_speaks_tls(made: Path, request: pytest.FixtureRequest):
    system: System = request.getfixturevalue("system")  # its pods wait for the Secrets
    (address,) = system.addresses(contract.ROLE_PREFILL)
    base = f"https://{address}:{contract.PORT_ROUTER}"
    running = {pod["metadata"]["uid"] for pod in system.pods(contract.ROLE_PREFILL)}
    assert system.get("eldr")["status"]["url"] == f"https://{NAME}.default.svc"
    (port,) = system.kube.get("Service", NAME)["spec"]["ports"]
    assert (port["name"], port["port"]) == ("https", 443)

    def status(key: str) -> int:
        body = {"model": NAME, "prompt": "hello", "max_tokens": 4}
        # the certificate names localhost, as that of a Service names the Service
        return httpx.post(
            f"{base}/v1/completions", json=body, headers=bearer(key), verify=False, timeout=120
        ).status_code

    assert [status("alice"), status("bob"), status("eve")] == [200, 200, 401]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{address}:{contract.PORT_ROUTER}/health")
    assert problems(system) == [], "401 is an answer"

    system.apply(keys("alice", "carol"), tls(certificate(made.parent, "second")))
    wait_for(lambda: (status("bob"), status("carol")) == (401, 200), "the keys to be read again", 120)
    assert status("alice") == 200
    assert {pod["metadata"]["uid"] for pod in system.pods(contract.ROLE_PREFILL)} == running

    system.apply(secret(EMPTY, "Opaque", {"client": " "}))
    ask_for(system, EMPTY)
    wait_for(lambda: "must hold one key" in str(problems(system)), "the doctor to see it", 120)
    assert status("alice") == 200, "who runs serves on"
    ask_for(system, KEYS)
    wait_for(system.ready, "EldrDeployment Ready again", 120)
    system.cluster.kubectl("delete", "secret", EMPTY)


def ask_for(system: System, name: str) -> None:
    patch = json.dumps({"spec": {"router": {"apiKeysSecret": name}}})
    system.cluster.kubectl("patch", "eldr", NAME, "--type=merge", "-p", patch)


def problems(system: System) -> list[dict]:
    """What `eldr doctor` finds."""
    return json.loads(system.doctor().stdout)["problems"]
