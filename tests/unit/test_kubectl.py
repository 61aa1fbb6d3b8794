"""kubectl is the reference for a kubeconfig: whom every client of ELDR asks, and as whom, is what kubectl does with the same files."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kopf._cogs.clients.auth import APIContext

from eldr.kubeconfig import ApiServer, ClusterError
from eldr_kube.binaries import BinariesUnavailableError, clients
from eldr_kube.pki import Authority
from eldr_operator.errors import NoClusterError
from eldr_operator.handlers import registry
from eldr_operator.kube.api import connect
from eldr_operator.kube.streams import Watches
from eldr_router.sources import api as routers
from tests.support.recorded import recording

pytestmark = pytest.mark.process

PATH = "/apis/x"
EXEC = "client.authentication.k8s.io/v1"
Config = dict[str, Any]


def config(*contexts: str, current: str | None = None, **others: Any) -> Config:
    """Return a kubeconfig with contexts NAME of cluster NAME and user NAME, whose token is NAME."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        **({} if current is None else {"current-context": current}),
        "contexts": [{"name": each, "context": {"cluster": each, "user": each}} for each in contexts],
        "clusters": [
            {
                "name": each,
                "cluster": {"server": f"SERVER {each}", "certificate-authority": "FOLDER/pki/ca.crt"},
            }
            for each in contexts
        ],
        "users": [{"name": each, "user": {"token": each}} for each in contexts],
    } | others


def of(user: Config | None = None, **cluster: Any) -> Config:
    """Return a kubeconfig of one context ``a`` whose user and cluster have these fields."""
    found = config("a", current="a")
    found["clusters"][0]["cluster"] |= cluster
    if {"insecure-skip-tls-verify", "certificate-authority-data"} & cluster.keys():
        del found["clusters"][0]["cluster"]["certificate-authority"]
    if user is not None:
        found["users"][0]["user"] = user
    return found


def plugin(command: str, status: Config | None = None, **others: Any) -> Config:
    answer = {"apiVersion": EXEC, "kind": "ExecCredential", "status": status or {"token": "by-plug-in"}}
    environment = [{"name": "ANSWER", "value": json.dumps(answer)}]
    return {
        "exec": {"apiVersion": EXEC, "command": command, "env": environment, "interactiveMode": "Never"}
    } | others


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


class Place:
    """A folder with files, servers ``a`` and ``b``, ``tls``, which is called api.internal, and ``plain`` without TLS."""

    def __init__(self, folder: Path, servers: dict[str, str]) -> None:
        self.folder = folder
        self.servers = servers

    def filled(self, text: str) -> str:
        for server, url in self.servers.items():
            text = text.replace(f"SERVER {server}", url)
        return text.replace("FOLDER", str(self.folder))

    def write(self, name: str, content: Config | str) -> None:
        text = self.filled(content if isinstance(content, str) else json.dumps(content))
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def kubectl() -> Path:
    try:
        return clients() / "kubectl"
    except BinariesUnavailableError as error:
        pytest.skip(f"no kubectl here: {error}")


@pytest.fixture
def seen() -> list[dict[str, object]]:
    return []


@pytest.fixture
def place(tmp_path, seen, monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("KUBE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "pki").mkdir()
    authority = Authority(tmp_path / "pki", "ca")
    internal = authority.issue("server", hosts=("api.internal",))
    here = authority.issue("here", hosts=("127.0.0.1",))
    authority.issue("jane")
    script = tmp_path / "bin" / "eldr-test-plugin"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\nprintf %s "$ANSWER"\n')
    script.chmod(0o755)
    with (
        recording("a", seen, authority, here) as a,
        recording("b", seen, authority, here) as b,
        recording("tls", seen, authority, internal) as tls,
        recording("plain", seen) as plain,
    ):
        yield Place(tmp_path, {"a": a, "b": b, "tls": tls, "plain": plain})


def by_kubectl(kubectl: Path, *arguments: str) -> bool:
    command = [kubectl, *arguments, "get", "--raw", PATH]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def by_the_command_line(context: str | None = None, file: str | None = None) -> None:
    with ApiServer(context, None, file, rights="r") as server:
        server.answer(PATH)


async def by_the_operator() -> None:
    async with connect() as api:
        await api.request("GET", PATH)


async def by_kopf() -> None:
    made = registry(lambda *_, **__: None, Watches([]))
    (login,) = (handler for handler in made._activities.get_all_handlers() if handler.id == "login")
    context = APIContext(await login.fn())
    try:
        async with context.session.get(context.server + PATH) as answer:
            await answer.read()
    finally:
        await context.close()


async def by_a_router() -> None:
    client = await routers.connect()
    try:
        await routers.Api(client).get(PATH)
    finally:
        await client.close()


CLIENTS = {
    "the operator": lambda: asyncio.run(by_the_operator()),
    "its watches": lambda: asyncio.run(by_kopf()),
    "a router": lambda: asyncio.run(by_a_router()),
}
SAME_NAMES = config("a", current="a")
OTHER_FIELDS = config(
    "a", users=[{"name": "a", "user": {"token": "other", "username": "x", "password": "y"}}]
)
FORMS: dict[str, list[Any]] = {
    "two current contexts": [config("a", current="a"), config("b", current="b")],
    "the second file's is empty": [config("a", current="a"), config("b", current="")],
    "the first file's is empty": [config("a", current=""), config("b", current="b")],
    "the first file has none": [config("a"), config("b", current="b")],
    "it names the second file's": [config("a", current="b"), config("b", current="a")],
    "one name in two files": [SAME_NAMES, OTHER_FIELDS],
    "one name in two files, turned": [
        OTHER_FIELDS | {"users": [{"name": "a", "user": {"token": "first"}}]},
        SAME_NAMES,
    ],
    "parts in three files": [
        {"current-context": "a", "contexts": config("a")["contexts"]},
        {"clusters": config("a")["clusters"], "users": None},
        {"users": config("a")["users"]},
    ],
    "missing and empty entries": [config("a", current="a")],
    "an empty file first": ["", config("a", current="a")],
    "the file at home": [("home/.kube/config", config("a", current="a"))],
    "relative to its own file": [
        config("b"),
        ("there/2", of({"tokenFile": "token"})),
        ("there/token", "near"),
        ("token", "far"),
    ],
    "tokenFile with CR LF": [of({"tokenFile": "token"}), ("token", " with\r\n")],
    "token and tokenFile": [of({"token": "a", "tokenFile": "FOLDER/token"}), ("token", "by-file")],
    "token and plug-in": [of(plugin("FOLDER/bin/eldr-test-plugin", token="own"))],
    "plug-in, absolute": [of(plugin("FOLDER/bin/eldr-test-plugin"))],
    "plug-in, relative": [of(plugin("bin/eldr-test-plugin"))],
    "plug-in, beside": [("bin/1", of(plugin("./eldr-test-plugin")))],
    "plug-in, by PATH": [of(plugin("eldr-test-plugin"))],
    "plug-in of the second file": [config("b"), ("bin/2", of(plugin("./eldr-test-plugin")))],
    "user and password": [of({"username": "jane", "password": "p:w"})],
    "empty fields": [
        of(
            {"token": "t", "client-certificate": ""},
            **{"certificate-authority-data": "DATA pki/ca.crt", "proxy-url": ""},
        )
    ],
    "a path in the address": [of(server="SERVER a/k8s/clusters/c-1/")],
    "proxy-url whatever NO_PROXY says": [
        of(server="http://api.internal:6443", **{"proxy-url": "SERVER plain"})
    ],
    "proxy of the environment": [of(server="http://api.internal:6443")],
    "a proxy is not asked for this machine": [of()],
    "authority and name": [
        of(
            server="SERVER tls",
            **{"certificate-authority": "pki/ca.crt", "tls-server-name": "api.internal"},
        )
    ],
    "insecure-skip-tls-verify": [of(server="SERVER tls", **{"insecure-skip-tls-verify": True})],
    "client certificate in files": [
        of(
            {"client-certificate": "pki/jane.crt", "client-key": "pki/jane.key"},
            server="SERVER tls",
            **{"insecure-skip-tls-verify": True},
        )
    ],
    "client certificate as data": [
        of(
            {"client-certificate-data": "DATA pki/jane.crt", "client-key-data": "DATA pki/jane.key"},
            server="SERVER tls",
            **{"certificate-authority-data": "DATA pki/ca.crt", "tls-server-name": "api.internal"},
        )
    ],
}
ENVIRONMENTS = {
    "missing and empty entries": {"KUBECONFIG": ":FOLDER/gone::FOLDER/1:"},
    "the file at home": {"KUBECONFIG": ""},
    "proxy-url whatever NO_PROXY says": {"NO_PROXY": "api.internal"},
    "proxy of the environment": {"HTTP_PROXY": "SERVER plain"},
    "a proxy is not asked for this machine": {"HTTPS_PROXY": "SERVER plain"},
}


def prepared(place: Place, files: list[Any], monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    """Write the files, of which those without a name are 1, 2, ..., and let KUBECONFIG list what is no token."""
    named = [each if isinstance(each, tuple) else (str(number), each) for number, each in enumerate(files, 1)]
    for name, content in named:
        text = content if isinstance(content, str) else json.dumps(content)
        for path in (place.folder / "pki").iterdir():
            text = text.replace(f"DATA pki/{path.name}", data(path))
        place.write(name, text)
    listed = ":".join(str(place.folder / name) for name, _ in named if not name.endswith("token"))
    for name, value in ({"KUBECONFIG": listed} | environment).items():
        monkeypatch.setenv(name, place.filled(value))
    monkeypatch.setenv("PATH", f"{place.folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(place.folder / "pki")


@pytest.mark.parametrize("form", FORMS)
def test_every_client_asks_whom_kubectl_asks_as_whom_kubectl_asks(form, place, seen, kubectl, monkeypatch):
    prepared(place, FORMS[form], monkeypatch, **ENVIRONMENTS.get(form, {}))
    assert by_kubectl(kubectl)
    (expected,) = seen
    if expected["server"] == "plain":
        expected["authorization"] = "Bearer a"  # which kubectl sends to no server without TLS
    seen.clear()
    by_the_command_line()
    assert seen == [expected], "the command line"
    for name, ask in CLIENTS.items():
        seen.clear()
        ask()
        assert seen == [expected], name


@pytest.mark.parametrize("context", ["a", "b"])
def test_a_context_that_is_named_is_the_one(context, place, seen, kubectl, monkeypatch):
    prepared(place, [config("a", current="a"), config("b", current="b")], monkeypatch)
    assert by_kubectl(kubectl, "--context", context)
    by_the_command_line(context)
    assert seen[0] == seen[1]
    assert seen[0]["server"] == context


def test_a_file_that_is_named_is_the_only_one(place, seen, kubectl, monkeypatch):
    prepared(place, [config("a", current="a"), config("b", current="b")], monkeypatch)
    file = str(place.folder / "2")
    assert by_kubectl(kubectl, "--kubeconfig", file)
    by_the_command_line(file=file)
    assert seen[0] == seen[1]
    assert seen[0]["server"] == "b"


NOWHERE = {
    "no file": [],
    "a context that is not there": [config("a", current="b")],
    "a cluster that is not there": [config("a", current="a", clusters=[])],
    "a user that is not there": [config("a", current="a", users=[])],
    "a cluster without an address": [config("a", current="a", clusters=[{"name": "a", "cluster": {}}])],
    "two clusters of one name": [config("a", "a", current="a")],
    "a list": ["[1]"],
    "a tokenFile that is not there": [of({"tokenFile": "gone"})],
    "a certificate that is not there": [
        of({"client-certificate": "gone", "client-key": "gone"}, server="SERVER tls")
    ],
}


@pytest.mark.parametrize("files", NOWHERE.values(), ids=NOWHERE)
def test_where_kubectl_refuses_every_client_does_and_nobody_is_asked(
    files, place, seen, kubectl, monkeypatch
):
    prepared(place, files, monkeypatch)
    assert not by_kubectl(kubectl)
    with pytest.raises(ClusterError):
        by_the_command_line()
    for ask in CLIENTS.values():
        with pytest.raises(Exception):  # noqa: B017 - of each program its own
            ask()
    assert seen == []


def test_a_router_without_a_cluster_says_so_in_a_line(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    command = [sys.executable, "-c", "from eldr.cli import main; main()", "router", "--source=kubernetes"]
    done = subprocess.run(
        [*command, "--namespace=n", "--deployment=x", "--port=0", "--admin-port=0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"Error: {tmp_path / 'none'} does not exist, or is empty\n")


@pytest.mark.parametrize("field", ["as", "as-uid"])
def test_impersonation_is_refused_instead_of_asking_as_oneself(field, place, seen, monkeypatch):
    prepared(place, [of({"token": "admin", field: "jane"})], monkeypatch)
    with pytest.raises(ClusterError, match=f"user a sets {field}: .* choose a context of another user"):
        by_the_command_line()
    with pytest.raises(NoClusterError, match="impersonation"):
        asyncio.run(by_the_operator())
    assert seen == []


@pytest.mark.parametrize("token", ["secret\nx", "secret\tx", "secret\u20ac", "secret\0"])
@pytest.mark.parametrize("form", ["token", "tokenFile", "exec"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_printed(token, form, place, seen, monkeypatch):
    place.write("token", token)
    users = {
        "token": {"token": token},
        "tokenFile": {"tokenFile": "token"},
        "exec": plugin("FOLDER/bin/eldr-test-plugin", {"token": token}),
    }
    prepared(place, [of(users[form])], monkeypatch)
    with pytest.raises(ClusterError) as found:
        by_the_command_line()
    assert found.value.reason == "NoCredentials"
    with pytest.raises(NoClusterError) as also:
        asyncio.run(by_the_operator())
    assert "secret" not in f"{found.value} {also.value}"
    assert seen == []


@pytest.mark.parametrize("form", ["token", "exec"])
def test_a_newline_after_any_token_is_cut_off(form, place, seen, monkeypatch):
    users = {"token": {"token": "t\n"}, "exec": plugin("FOLDER/bin/eldr-test-plugin", {"token": "t\n"})}
    prepared(place, [of(users[form])], monkeypatch)
    by_the_command_line()
    for ask in CLIENTS.values():
        ask()
    assert [one["authorization"] for one in seen] == ["Bearer t"] * 4


def test_a_token_file_is_read_again(place, seen, monkeypatch):
    prepared(place, [of({"tokenFile": "token"}), ("token", "old")], monkeypatch)
    with ApiServer(None, None, str(place.folder / "1"), rights="r") as server:
        for token in ("old", "new"):
            place.write("token", token)
            server.answer(PATH)
        (place.folder / "token").unlink()
        server.answer(PATH)
    assert [one["authorization"] for one in seen] == ["Bearer old", "Bearer new", "Bearer new"]


def test_a_plug_in_is_asked_again_once_its_token_has_expired(place, seen, monkeypatch):
    answer = {"apiVersion": EXEC, "kind": "ExecCredential"}
    status = {"token": "t-NUMBER", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    counting = place.folder / "bin" / "counting"
    counting.write_text(
        '#!/bin/sh\necho x >> "$0.calls"\n'
        f"printf '%s' '{json.dumps(answer | {'status': status})}' | sed \"s/NUMBER/$(wc -l < \"$0.calls\" | tr -d ' ')/\"\n"
    )
    counting.chmod(0o755)
    prepared(place, [of(plugin("FOLDER/bin/counting"))], monkeypatch)

    async def twice():
        async with connect() as api:
            await api.request("GET", PATH)
            await api.request("GET", PATH)

    with ApiServer(None, None, None, rights="r") as server:
        server.answer(PATH)
        server.answer(PATH)
    asyncio.run(twice())
    tokens = [one["authorization"] for one in seen]
    assert len(set(tokens)) == 4, tokens


def test_a_plug_ins_certificate_is_used(place, seen, kubectl, monkeypatch):
    status = {
        "clientCertificateData": (place.folder / "pki" / "jane.crt").read_text(),
        "clientKeyData": (place.folder / "pki" / "jane.key").read_text(),
    }
    user = plugin("FOLDER/bin/eldr-test-plugin", status)
    prepared(place, [of(user, server="SERVER tls", **{"insecure-skip-tls-verify": True})], monkeypatch)
    assert by_kubectl(kubectl)
    by_the_command_line()
    for ask in CLIENTS.values():
        ask()
    assert [one["certificate"] for one in seen] == ["jane"] * 5


def test_a_proxy_that_speaks_another_protocol_is_named(place, monkeypatch):
    prepared(
        place,
        [of(server="http://api.internal", **{"proxy-url": "socks5://jane:secret@127.0.0.1:1"})],
        monkeypatch,
    )
    with pytest.raises(ClusterError, match="speaks socks5: expected http or https") as found:
        by_the_command_line()
    assert "secret" not in str(found.value)


def test_what_yaml_allows_around_it_changes_nothing(place, seen, kubectl, monkeypatch):
    text = "# of our team\n---\n" + yaml.safe_dump(of() | {"preferences": {}, "extensions": []})
    prepared(place, [text], monkeypatch)
    assert by_kubectl(kubectl)
    by_the_command_line()
    assert seen[0] == seen[1]
