"""Who may reach which pod of a deployment."""

import pytest
from click.testing import CliRunner

from eldr import contract
from eldr_operator.cli import command
from eldr_operator.workloads import network
from eldr_operator.workloads.network import Outside
from tests.support.policies import Peer, admits

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
    ],
)
def test_who_reaches_which_port(make_vllm, who, ports):
    made = network.policies(make_vllm(), Outside("eldr-system", MONITORING))
    assert reached(made, who) == ports
    if who == "Prometheus":
        assert reached(network.policies(make_vllm(), Outside("eldr-system")), who) == {ROUTER}


def test_without_a_policy_everybody_reaches_everything(make_vllm):
    made = network.policies(make_vllm(networkPolicy="Disabled"), Outside("eldr-system"))
    assert made == []
    assert reached(made, "a client") == {ROUTER, ENGINE, ADMIN, SIDE_CHANNEL}


def test_labels_of_namespaces_that_say_nothing_are_refused():
    done = CliRunner().invoke(command, ["--all-namespaces", "--monitoring-namespaces=metrics"])
    assert done.exit_code == 2
    assert "expected LABEL=VALUE, got 'metrics'" in done.output
