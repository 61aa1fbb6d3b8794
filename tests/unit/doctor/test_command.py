"""`eldr doctor` against a server that plays the API: what is read, what is said, and its exit codes."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.doctor.cli import command
from eldr.doctor.report import CHECKS, CONDITIONS, document, examine
from tests.support.api_server import as_json, knowing
from tests.support.reference import undocumented
from tests.unit.doctor import healthy

DEPLOYMENT = f"/apis/{contract.API_VERSION}/namespaces/team/eldrdeployments/x"
CORE = "/api/v1/namespaces/team"
APPS = "/apis/apps/v1/namespaces/team"
NET = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies"
SERVICE = f"{CORE}/services/x"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/team/leases/{contract.SERVED_LEASE}"
ROUTER = f"{CORE}/pods/x-prefill-0:8000/proxy/v1/models"
FORBIDDEN = (403, '{"kind": "Status", "message": "you may not"}')


def listed(*items):
    return as_json({"items": list(items)})


@pytest.fixture
def answers(tmp_path):
    """What the server answers, by path: a deployment that is well."""
    router = healthy.pod("prefill")
    router["status"]["podIP"] = "10.0.0.7"
    found = {
        DEPLOYMENT: as_json(healthy.deployment()),
        f"{APPS}/deployments": listed(),
        f"{APPS}/statefulsets": listed(),
        f"{CORE}/pods": listed(router),
        "/api/v1/nodes": listed(healthy.node()),
        f"{CORE}/resourcequotas": listed(),
        f"{CORE}/limitranges": listed(),
        NET: listed(),
        SERVICE: as_json(healthy.SERVICE),
        LEASE: as_json({"spec": healthy.LEASE["spec"] | {"renewTime": datetime.now(UTC).isoformat()}}),
        ROUTER: as_json({"data": []}),
    }
    with knowing(found, tmp_path) as patches:
        yield found
    assert patches == [], "it reads only"


def run(*arguments, code):
    done = CliRunner().invoke(main, ["doctor", *arguments])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.usefixtures("answers")
def test_a_healthy_deployment_has_no_problem():
    said = run("x", code=0)
    assert said.startswith("x in namespace team, ")
    assert "no problems found" in said
    assert "skipped" not in said


def test_problems_are_said_with_their_remedies_and_the_exit_code_is_1(answers):
    spec = {"engine": {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}]}}
    answers[DEPLOYMENT] = as_json(healthy.deployment(**spec))
    answers["/api/v1/nodes"] = listed(healthy.node(**{"amd.com/gpu": "0"}))
    said = run("x", code=1)
    assert "2 problems found" in said
    assert "devices amd.com/gpu: none of 1 nodes offers it do: install its device plug-in" in said
    assert "references Secret hub: it does not exist in namespace team" in said


def test_json_has_the_documented_shape(answers):
    answers[ROUTER] = (503, '{"error": {"message": "no prefill engine"}}')
    told = json.loads(CliRunner().invoke(main, ["doctor", "x", "--json"]).stdout)
    assert [one["check"] for one in told["problems"]] == ["routers"]
    assert "503" in told["problems"][0]["problem"]
    assert {one["check"]: one["problems"] for one in told["checks"]}["routers"] == 1


def test_values_of_secrets_are_not_shown(answers):
    spec = {"engine": {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}]}}
    answers[DEPLOYMENT] = as_json(healthy.deployment(**spec))
    answers[f"{CORE}/secrets/hub"] = as_json({"metadata": {"name": "hub"}, "data": {"other": "aGlkZGVu"}})
    said = run("x", "--json", code=1)
    assert "it has other" in said
    assert "aGlkZGVu" not in said


def test_checks_without_rights_are_skipped_and_the_rest_looks(answers):
    for path in ("/api/v1/nodes", f"{CORE}/resourcequotas", NET, SERVICE, ROUTER):
        answers[path] = FORBIDDEN
    said = run("x", code=0)
    for what in ("list nodes", "list resourcequotas", "list networkpolicies", "get services"):
        assert f"skipped: may not {what}" in said
    assert "skipped: may not get pods/proxy" in said


def test_the_log_of_an_engine_that_ended_is_read(answers):
    ended = healthy.pod()
    ended["status"]["containerStatuses"][0] |= {
        "ready": False,
        "restartCount": 2,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    answers[f"{CORE}/pods"] = listed(ended)
    answers[f"{CORE}/pods/x-decode-0/log"] = (200, "GatedRepoError: 403 Client Error\n")
    said = run("x", code=1)
    assert "engine of pod x-decode-0: the hub does not let it read org/model (403)" in said


def test_a_router_is_asked_as_its_pod_speaks(answers):
    """Not as the spec says: a rollout may be under way."""
    router = healthy.pod("prefill")
    router["status"]["podIP"] = "10.0.0.7"
    router["spec"]["initContainers"] = [
        {"name": "router", "args": ["router", "--tls-certificate=/etc/tls.crt"]}
    ]
    answers[f"{CORE}/pods"] = listed(router)
    answers[ROUTER.replace("/pods/", "/pods/https:")] = as_json({"data": []})
    answers[ROUTER] = (500, "not by HTTP")
    assert "no problems found" in run("x", code=0)


def test_where_it_cannot_look_the_exit_code_is_2(answers):
    assert "NotFound: there is no EldrDeployment none in namespace team" in run("none", code=2)
    answers[DEPLOYMENT] = FORBIDDEN
    assert "Forbidden: you may not; eldr doctor takes get of eldrdeployments" in run("x", code=2)
    for body in ("<html>", '{"metadata": {"name": 3}, "spec": {}}'):
        answers[DEPLOYMENT] = (200, body)
        assert "ClusterUnreachable: EldrDeployment x" in run("x", code=2)
    assert "NoKubeconfig" in run("x", "--context", "nosuch", code=2)


def test_what_a_router_was_sent_does_not_reach_the_terminal(answers):
    answers[ROUTER] = (500, "\x1b[2J wiped")
    assert "\x1b" not in run("x", code=1)


def test_checks_fields_and_options_are_documented():
    told = document(examine(healthy.facts(), healthy.NOW))
    names = [*told, *(check.name for check in CHECKS), CONDITIONS, "about", "problem", "remedy", "skipped"]
    assert undocumented("doctor", names, command) == []
