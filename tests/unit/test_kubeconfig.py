"""Kubeconfigs that lead nowhere: every command says in a line what is wrong with the file, or with its credentials."""

import json
import sys

import pytest
import yaml
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.kubeconfig import ApiServer, ClusterError
from tests.support.api_server import answering, as_json

PATH = f"/apis/{contract.API_VERSION}/namespaces/team/eldrdeployments/x"
COMMANDS = {
    "status": (["status", "x"], 1),
    "doctor": (["doctor", "x"], 2),
    "compare": (["compare", "x", "--restore"], 1),
    "smoke": (["smoke", "x"], 1),
    "rollout": (["rollout", "status", "x"], 1),
    "simulate": (["simulate", "--from-cluster", "x"], 1),
}
GOOD = {"token": "t"}
TOKEN = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}


@pytest.mark.parametrize(("arguments", "code"), COMMANDS.values(), ids=COMMANDS)
def test_a_file_that_is_no_kubeconfig_is_named_by_every_command(tmp_path, monkeypatch, arguments, code):
    file = tmp_path / "binary"
    file.write_bytes(b"\x80\xff\x00\x01")
    monkeypatch.setenv("KUBECONFIG", str(file))
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == code, found.output
    assert found.output.startswith(f"Error: NoKubeconfig: {file} is not a kubeconfig: it is not text")
    assert found.output.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x00\x01", "unacceptable character"),
        (b"just text", "it has no clusters, contexts and users"),
        (b"[1, 2]", "it has no clusters, contexts and users"),
        (b"clusters: text", "clusters is not a list of named objects"),
        (b"users: [1]", "users is not a list of named objects"),
        (b"users: [{name: [u]}]", "a name in users is not a text"),
        (b"{[", "while parsing"),
        (b"[" * 5000, ""),
        (b"{current-context: x, contexts: [{name: x, context: 3}], clusters: []}", ""),
    ],
)
def test_why_a_file_is_no_kubeconfig_is_said_in_a_line(tmp_path, content, why):
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ClusterError) as found:
        ApiServer(None, None, str(file), rights="r")
    assert found.value.reason == "NoKubeconfig"
    said = str(found.value)
    assert said.startswith(f"{file} is not a kubeconfig: ")
    assert why in said
    assert "\n" not in said


def exec_of(*command):
    program, *arguments = command
    api = TOKEN["apiVersion"]
    return {"exec": {"apiVersion": api, "command": program, "args": arguments, "interactiveMode": "Never"}}


def server(tmp_path, user, context_user="u"):
    file = tmp_path / "config"
    config = yaml.safe_load(file.read_text())
    config["users"] = [{"name": "u", "user": user}]
    config["contexts"][0]["context"]["user"] = context_user
    file.write_text(yaml.safe_dump(config))
    return ApiServer(None, None, str(file), rights="r")


@pytest.mark.process
@pytest.mark.parametrize(
    ("user", "words"),
    [
        (exec_of("no-such-plugin"), ["credential plug-in no-such-plugin of user u", "No such file"]),
        (
            exec_of(sys.executable, "-c", "import sys; sys.exit('session expired')"),
            [f"credential plug-in {sys.executable}", "session expired"],
        ),
        (exec_of("echo", "{}"), ["credential plug-in echo", "missing key"]),
        (exec_of("echo", json.dumps(TOKEN | {"status": {}})), ["credential plug-in echo", "missing token"]),
        (exec_of("echo", json.dumps(TOKEN | {"status": {"token": ""}})), ["credential plug-in echo"]),
        ({"exec": {}}, ["credential plug-in"]),
        ({"auth-provider": {"name": "azure"}}, ["auth-provider azure of user u", "does not know it"]),
        ({"auth-provider": {"name": "gcp"}}, ["auth-provider gcp of user u"]),
    ],
)
def test_credentials_that_fail_are_named_and_nobody_is_asked(tmp_path, user, words):
    with (
        answering(lambda _: pytest.fail("asked as nobody"), tmp_path / "config"),
        pytest.raises(ClusterError) as found,
    ):
        server(tmp_path, user)
    assert found.value.reason == "NoCredentials"
    assert [word for word in words if word not in str(found.value)] == []


def test_a_user_that_is_not_there_is_named(tmp_path):
    with (
        answering(lambda _: pytest.fail("asked as nobody"), tmp_path / "config"),
        pytest.raises(ClusterError, match="user nosuch of context here does not exist; set KUBECONFIG"),
    ):
        server(tmp_path, GOOD, "nosuch")


@pytest.mark.process
@pytest.mark.parametrize(
    ("user", "context_user"),
    [
        (GOOD, "u"),
        (exec_of("echo", json.dumps(TOKEN)), "u"),
        ({}, "u"),
        (GOOD, ""),
        ({"username": "a", "password": "b"}, "u"),
    ],
)
def test_credentials_that_are_there_and_a_proxy_that_needs_none_go_on_working(tmp_path, user, context_user):
    resource = {"metadata": {"name": "x"}, "spec": {}}
    with answering(lambda _: as_json(resource), tmp_path / "config"):
        assert server(tmp_path, user, context_user).deployment("x") == resource
