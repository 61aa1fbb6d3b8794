"""TLS of admin ports, from a Secret and a ConfigMap, on the embedded cluster: switched on and off while routers run."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import httpx
import pytest

from eldr import contract
from eldr_kube.pki import Authority
from tests.e2e.conftest import NAME, System, fit, usual
from tests.support.clients import authority, issued
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.costly, pytest.mark.timeout(600)]

SECRET, MAP = "e2e-admin-tls", "e2e-ca"
HOST = f"{NAME}.default.svc"
SPEC = usual(0.1) | {"decode": {"replicas": 1}, "centroids": {"ackTimeoutSeconds": 5}}


def show(system: System, signer: Authority, folder: Path, days: float = 30) -> None:
    """Write the Secret."""
    path = issued(signer, folder, HOST, days)
    pair = {name: path.with_name(name).read_text() for name in ("tls.crt", "tls.key")}
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "type": "kubernetes.io/tls"}
    system.apply(head | {"stringData": pair})


def set_tls(system: System, value: object) -> None:
    patch = json.dumps({"spec": {"router": {"adminTLS": value}}})
    system.cluster.kubectl("patch", "eldr", NAME, "--type=merge", "-p", patch)


def answers(system: System, scheme: str, context: ssl.SSLContext | bool = True) -> list[int]:
    """How many other routers each router hears, of those that answer by a scheme."""
    found = []
    with httpx.Client(verify=context, headers=system.authorization()) as client:
        for address in system.addresses(contract.ROLE_PREFILL):
            url = f"{scheme}://{address}:{contract.PORT_ADMIN}{contract.PATH_STATE}"
            try:
                state = client.get(url, extensions={"sni_hostname": HOST}).raise_for_status().json()
            except httpx.TransportError:
                continue
            found.append(sum(peer.get("problem") is None for peer in state["peers"]))
    return found


def test_admin_ports_speak_tls_while_the_field_is_set(system: System, tmp_path: Path):
    signer = authority(tmp_path, "authority")
    context = ssl.create_default_context(cafile=str(signer.certificate))
    show(system, signer, tmp_path / "shown")
    data = {"ca.crt": signer.certificate.read_text()}
    system.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MAP}, "data": data})
    assert answers(system, "http") == [1, 1]

    set_tls(system, {"secretName": SECRET, "authorityConfigMap": MAP})
    wait_for(lambda: answers(system, "https", context) == [1, 1], "routers to ask each other by TLS", 240)
    assert answers(system, "http") == []
    wait_for(system.ready, "EldrDeployment Ready", 120)
    system.wait("CentroidsActive", reason="LearnedPrior")
    running = system.uids()

    show(system, signer, tmp_path / "shown", days=-0.5)
    text = "its certificate is refused: certificate has expired"
    wait_for(
        lambda: text in system.condition("eldr", NAME, "CentroidsActive").get("message", ""),
        "the expiry",
        180,
    )
    assert system.condition("eldr", NAME, "CentroidsActive")["reason"] == "RoutersUnreachable"
    assert system.ready(), "requests are served all the same"

    show(system, signer, tmp_path / "shown")
    wait_for(lambda: answers(system, "https", context) == [1, 1], "the renewed certificate", 180)
    system.wait("CentroidsActive", reason="LearnedPrior")
    assert system.uids() == running, "no pod was replaced"

    system.apply(fit("by-tls"))

    def told() -> str:
        return json.dumps(system.kube.get(contract.KIND_FIT, "by-tls").get("status", {}))

    wait_for(lambda: "no usable record" in told() or "records" in told(), "the fit to read the logs", 120)
    assert "RoutersUnreachable" not in told(), told()

    set_tls(system, None)
    wait_for(lambda: answers(system, "http") == [1, 1], "routers to ask each other by plain HTTP", 240)
    wait_for(system.ready, "EldrDeployment Ready", 120)
    system.cluster.kubectl("delete", "secret/" + SECRET, "configmap/" + MAP)
