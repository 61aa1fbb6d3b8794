"""Who may reach which pod of a deployment."""

import pytest
from click.testing import CliRunner

from eldr import contract
from eldr_operator.cli import command
from eldr_operator.workloads import network
from eldr_operator.workloads.network import Outside
from tests.support.policies import Peer, admits
from tests.unit.operator.builders import make_vllm

ROUTER, ENGINE, ADMIN = contract.PORT_ROUTER, contract.PORT_ENGINE, contract.PORT_ADMIN
SIDE_CHANNEL = 5600
MONITORING = {"team": "metrics"}


def peer(namespace="ns", *, of=None, **labels):
    told = {contract.LABEL_DEPLOYMENT: of} if of else {}
    return Peer(namespace, {"kubernetes.io/metadata.name": namespace} | labels, told)


PEERS = {
    "own": peer(of="x"),
    "another deployment": peer(of="y"),
    "of that name elsewhere": peer("other", of="x"),
    "a client": peer(),
    "a client elsewhere": peer("other"),
    "the operator": peer("eldr-system"),
    "Prometheus": peer("other", team="metrics"),
    "a load balancer": Peer("", {}, {}),
}


def reached(made, who):
    return {
        port for port in (ROUTER, ENGINE, ADMIN, SIDE_CHANNEL) if admits(made, PEERS[who], peer(of="x"), port)
    }


@pytest.mark.parametrize(
    ("who", "ports"),
    [
        ("own", {ROUTER, ENGINE, ADMIN, SIDE_CHANNEL}),
        ("another deployment", {ROUTER}),
        ("of that name elsewhere", {ROUTER}),
        ("a client", {ROUTER}),
        ("a client elsewhere", {ROUTER}),
        ("the operator", {ROUTER, ADMIN}),
        ("Prometheus", {ROUTER, ENGINE, ADMIN}),
        ("a load balancer", {ROUTER}),
    ],
)
def test_who_reaches_which_port(who, ports):
    made = network.policies(make_vllm(), Outside("eldr-system", MONITORING))
    assert reached(made, who) == ports
    if who in {"the operator", "Prometheus"}:
        assert reached(network.policies(make_vllm(), Outside()), who) == {ROUTER}


def test_what_pods_send_is_not_limited():
    """Spans reach a collector, wherever it is."""
    (made,) = network.policies(make_vllm(), Outside("eldr-system", MONITORING))
    assert made["spec"]["policyTypes"] == ["Ingress"]
    assert "egress" not in made["spec"]


def test_without_a_policy_everybody_reaches_everything():
    made = network.policies(make_vllm(networkPolicy="Disabled"), Outside("eldr-system"))
    assert made == []
    assert reached(made, "a client") == {ROUTER, ENGINE, ADMIN, SIDE_CHANNEL}


@pytest.mark.parametrize("given", [["metrics"], ["=metrics"], ["a=b", "a=c"]], ids=str)
def test_labels_of_namespaces_that_say_nothing_are_refused(given):
    options = [f"--monitoring-namespaces={each}" for each in given]
    done = CliRunner().invoke(command, ["--all-namespaces", *options])
    assert done.exit_code == 2
    assert f"expected LABEL=VALUE, each label once, got '{given[-1]}'" in done.output
