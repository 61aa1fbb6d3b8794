"""What a comparison reads through the API server's proxy, and what it says where it cannot."""

import base64
import json

import pytest

from eldr import contract
from eldr.compare.cluster import Target
from eldr.compare.figures import Totals
from eldr.kubeconfig import ApiServer, ClusterError
from tests.support.api_server import as_json, knowing
from tests.unit.compare.test_parts import ENGINE, ROUTER

TEAM = "/api/v1/namespaces/team"
DEPLOYMENT = f"/apis/{contract.API_VERSION}/namespaces/team/eldrdeployments/x"
ENGINE_PAGE, ROUTER_PAGE = (f"{TEAM}/pods/p:{port}/proxy/metrics" for port in (8100, 9100))
STATE = f"{TEAM}/pods/p:9100/proxy{contract.PATH_STATE}"


@pytest.fixture
def answers(tmp_path):
    """One pod that is a router and an engine: the server that plays the API heeds no selectors."""
    pod = {"metadata": {"name": "p"}, "status": {"podIP": "10.0.0.7"}}
    token = base64.b64encode(b"secret").decode()
    found = {
        DEPLOYMENT: as_json({"metadata": {"name": "x"}, "spec": {}, "status": {"router": {"epoch": 4}}}),
        f"{TEAM}/pods": as_json({"items": [pod]}),
        f"{TEAM}/secrets/x-admin": as_json({"data": {"token": token}}),
        ENGINE_PAGE: (200, ENGINE.format(gaps="vllm:inter_token_latency_seconds")),
        ROUTER_PAGE: (200, ROUTER),
        STATE: as_json({"policy": "JSQ"}),
    }
    with knowing(found, tmp_path):
        yield found


@pytest.fixture
def target(answers):
    times = iter((100.0, 102.0))
    with ApiServer(rights="it takes rights") as server:
        yield Target(server, "x", lambda: next(times))


def test_engines_and_routers_are_read_at_the_middle_of_the_time_that_it_takes(target):
    found = target.reading()
    assert (found.at, found.epoch) == (101.0, 4)
    assert found.pods == {
        "engine p": Totals(1500.0, 60.0, 15.0),
        "router p": Totals(ttft_seconds=7.5, ttfts=15.0),
    }


def test_the_policy_of_each_router_is_what_it_says(target):
    assert target.policies() == {"p": "JSQ"}


@pytest.mark.parametrize(
    ("path", "answer", "reason", "words"),
    [
        (ENGINE_PAGE, (200, "x 1\n"), "NoFigures", "engine p: it has no vllm:inter_token_latency_seconds"),
        (
            ENGINE_PAGE,
            (503, json.dumps({"kind": "Status", "message": "dial tcp: i/o timeout"})),
            "PodUnreachable",
            "pod p does not tell its metrics at port 8100: dial tcp: i/o timeout; where NetworkPolicies keep",
        ),
    ],
)
def test_what_cannot_be_read_is_said(target, answers, path, answer, reason, words):
    answers[path] = answer
    with pytest.raises(ClusterError) as caught:
        target.reading()
    assert caught.value.reason == reason
    assert words in str(caught.value)


def test_a_router_whose_state_is_no_json_is_out_of_reach(target, answers):
    answers[STATE] = (200, "<html>")
    with pytest.raises(ClusterError) as caught:
        target.policies()
    assert caught.value.reason == "PodUnreachable"
