"""`eldr smoke`: which deployment it asks, what it takes for an answer, and what it says if there is none."""

import json
import re

import pytest
import yaml
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.smoke.choice import NoTargetError, choose
from eldr_kube.ports import free_port
from tests.support.api_server import answering, as_json

ALL = f"/apis/{contract.API_VERSION}/eldrdeployments"
TEAM = f"/apis/{contract.API_VERSION}/namespaces/team/eldrdeployments"
COMPLETIONS = "/v1/completions"
COMPLETION = {"choices": [{"text": " It is."}], "usage": {"completion_tokens": 8}}


def deployment(name, namespace="team", url="http://x", **conditions):
    told = [
        {"type": type_, "status": status, "reason": "Told", "message": f"{type_} it is"}
        for type_, status in conditions.items()
    ]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "status": {"conditions": told, "model": f"{name}-model", "url": url},
    }


STARTS = deployment("starts", Ready="False", Available="False")
ROLLS = deployment("rolls", Ready="False", Available="True")
READY = deployment("ready", Ready="True", Available="True")


@pytest.mark.parametrize(
    ("found", "name", "chosen"),
    [
        ([STARTS, ROLLS, READY], "", "ready"),
        ([STARTS, ROLLS], "", "rolls"),
        ([ROLLS, READY], "rolls", "rolls"),
    ],
    ids=["ready", "available", "named"],
)
def test_a_ready_deployment_is_asked_before_one_that_only_serves(found, name, chosen):
    assert choose(found, name, "namespace team").name == chosen


@pytest.mark.parametrize(
    ("found", "name", "message"),
    [
        (
            [],
            "",
            "there is no EldrDeployment in namespace team. Create one.*kubectl apply -f examples/simulator.yaml",
        ),
        (
            [STARTS, READY],
            "starts",
            "team/starts cannot serve: Told: Ready it is. See: kubectl describe eldr starts -n team",
        ),
        ([deployment("new")], "", "team/new has no condition yet: does an operator serve its namespace"),
    ],
    ids=["none", "not serving", "not looked after"],
)
def test_without_a_deployment_that_serves_it_says_what_to_do(found, name, message):
    with pytest.raises(NoTargetError, match=message):
        choose(found, name, "namespace team")


def smoke(tmp_path, answers, *arguments):
    """Run the command against a server that plays the API and the router; return what came of it, and what was asked."""

    def answer(path):
        found = answers[path]
        return found if isinstance(found, tuple) else as_json(found)

    with answering(answer, tmp_path / "kubeconfig") as taken:
        url = yaml.safe_load((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        given = [
            "smoke",
            "--kubeconfig",
            str(tmp_path / "kubeconfig"),
            *(one.replace("URL", url) for one in arguments),
        ]
        return CliRunner().invoke(main, given), taken


def test_it_sends_a_completion_of_the_deployments_model(tmp_path):
    answers = {TEAM: {"items": [STARTS, READY]}, COMPLETIONS: COMPLETION}
    done, taken = smoke(tmp_path, answers, "--url", "URL")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("EldrDeployment team/ready answered: 8 tokens of ready-model in ")
    ((path, body),) = taken
    assert (path, body["model"]) == (COMPLETIONS, "ready-model")


def test_a_key_out_of_a_file_may_end_with_a_line_break(tmp_path):
    answers = {TEAM: {"items": [READY]}, COMPLETIONS: COMPLETION}
    done, _ = smoke(tmp_path, answers, "--url", "URL", "--api-key", "sesame-123\n")
    assert done.exit_code == 0, done.output
    for wrong in ("ü€", "two words", "a\nb"):
        done, _ = smoke(tmp_path, answers, "--url", "URL", "--api-key", wrong)
        assert done.exit_code == 2, done.output
        assert "printable ASCII characters without spaces" in done.output
        assert wrong not in done.output


def test_it_looks_in_every_namespace_or_in_several(tmp_path):
    other = f"/apis/{contract.API_VERSION}/namespaces/other/eldrdeployments"
    answers = {
        ALL: {"items": [READY]},
        TEAM: {"items": []},
        other: {"items": [READY]},
        COMPLETIONS: COMPLETION,
    }
    for options in (["-A"], ["-n", "team", "-n", "other"]):
        done, _ = smoke(tmp_path, answers, "--url", "URL", *options)
        assert done.exit_code == 0, done.output
    done, _ = smoke(tmp_path, answers, "-A", "-n", "team")
    assert done.exit_code == 2
    assert "leave out --namespace" in done.output


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((503, '{"error": {"message": "no decode engine"}}'), "answers with status 503: .*no decode engine"),
        ((200, "<html>"), "answers with something other than a completion: <html>"),
        ((200, json.dumps(COMPLETION | {"usage": {"completion_tokens": 0}})), "answers without a token"),
    ],
    ids=["error", "another server", "no token"],
)
def test_a_wrong_answer_fails_with_what_came(tmp_path, answer, message):
    done, _ = smoke(tmp_path, {TEAM: {"items": [READY]}, COMPLETIONS: answer}, "--url", "URL")
    assert done.exit_code == 1
    assert re.search(message, done.output), done.output


def test_an_address_without_a_scheme_is_refused(tmp_path):
    done, _ = smoke(tmp_path, {}, "--url", "nope")
    assert done.exit_code == 2
    assert "--url nope: must begin with http:// or https://" in done.output


@pytest.mark.slow
def test_an_address_that_nobody_listens_on_is_named(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    done, _ = smoke(tmp_path, {TEAM: {"items": [READY]}}, "--url", url, "--timeout-seconds", "1")
    assert done.exit_code == 1
    assert f"{url}/v1/completions cannot be reached" in done.output


PODS = "/api/v1/namespaces/team/pods"
PROXIED = f"{PODS}/ready-0:8000/proxy{COMPLETIONS}"


def pod(address):
    return {"items": [{"metadata": {"name": "ready-0"}, "spec": {}, "status": {"podIP": address}}]}


def test_outside_of_the_cluster_a_router_is_asked_through_the_api_server(tmp_path):
    answers = {TEAM: {"items": [READY]}, PODS: pod("10.1.2.3"), PROXIED: COMPLETION}
    done, taken = smoke(tmp_path, answers, "--api-key", "sesame")
    assert done.exit_code == 0, done.output
    assert done.output.rstrip().endswith("from pod ready-0 through the API server")
    ((path, body),) = taken
    assert (path, body["model"]) == (PROXIED, "ready-model")


def test_a_routers_own_tls_is_asked_for_through_the_api_server(tmp_path):
    secure = deployment("ready", url="https://x", Ready="True")
    proxied = f"{PODS}/https:ready-0:8000/proxy{COMPLETIONS}"
    answers = {TEAM: {"items": [secure]}, PODS: pod("10.1.2.3"), proxied: COMPLETION}
    done, _ = smoke(tmp_path, answers)
    assert done.exit_code == 0, done.output


def test_a_pod_on_this_machine_is_asked_directly(tmp_path, monkeypatch):
    """As in the cluster of `make kube-up`: an API server refuses to lead to addresses of its own machine."""
    answers = {TEAM: {"items": [READY]}, PODS: pod("127.0.0.1"), COMPLETIONS: COMPLETION}
    with answering(lambda path: as_json(answers[path]), tmp_path / "config") as taken:
        url = yaml.safe_load((tmp_path / "config").read_text())["clusters"][0]["cluster"]["server"]
        monkeypatch.setattr(contract, "PORT_ROUTER", int(url.rpartition(":")[2]))
        done = CliRunner().invoke(main, ["smoke", "--kubeconfig", str(tmp_path / "config")])
    assert done.exit_code == 0, done.output
    assert [path for path, _ in taken] == [COMPLETIONS]


def refusal(status, message, **more):
    return status, json.dumps({"message": message} | more)


PROXY = {TEAM: {"items": [READY]}, PODS: pod("10.1.2.3")}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            PROXY | {PROXIED: refusal(503, "no connection", kind="Status")},
            ["pod ready-0 through the API server: no connection"],
        ),
        (
            PROXY | {PROXIED: (401, '{"error": {"message": "the API key is missing"}}')},
            ["the API key is missing", "ELDR_API_KEY"],
        ),
        (PROXY | {PODS: {"items": []}}, ["EldrDeployment team/ready has no pod with a router"]),
        ({TEAM: {"items": None}}, ["expected a list of them in items"]),
    ],
    ids=["no way", "no key", "no router", "no list"],
)
def test_what_keeps_it_from_an_answer_is_said(tmp_path, answers, said):
    done, _ = smoke(tmp_path, answers)
    assert done.exit_code == 1
    assert all(words in done.output for words in said), done.output


def test_a_name_that_does_not_resolve_fails_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("eldr.smoke.request.time.sleep", lambda _: pytest.fail("it waits"))
    done, _ = smoke(tmp_path, {TEAM: {"items": [READY]}}, "--url", "http://x.team.svc.cluster.invalid")
    assert done.exit_code == 1
    assert "Failed to resolve" in done.output
    assert "needs the cluster's network and DNS; give another one by --url" in done.output
