"""Variables and arguments as the kubelet expands them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_kube.agent.environment import (
    MissingSourceError,
    arguments,
    base_environment,
    container_env,
    expand,
    field_value,
)

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "1"}},
    "spec": {"nodeName": "node"},
}


# The table of Kubernetes' own third_party/forked/golang/expansion tests.
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("$(VAR_A)_$(VAR_B)", "A_B"),
        ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
        ("$$$(VAR_A)", "$A"),
        ("$$$$(VAR_A)", "$$(VAR_A)"),
        ("$VAR_A$(VAR_B)", "$VAR_AB"),
        ("foo$(VAR_MISSING)", "foo$(VAR_MISSING)"),
        ("$($(VAR_A))", "$($(VAR_A))"),
        ("$(VAR_A", "$(VAR_A"),
        ("VAR_A)$(VAR_B)", "VAR_A)B"),
        ("$(VAR_DASH-ED.DOT)", "dashed"),
        ("$", "$"),
        ("\n$(VAR_EMPTY)\n", "\n\n"),
    ],
)
def test_expansion(text: str, result: str):
    variables = {"VAR_A": "A", "VAR_B": "B", "VAR_DASH-ED.DOT": "dashed", "VAR_EMPTY": ""}
    assert expand(text, variables) == result


@pytest.mark.slow
@given(st.text(alphabet=st.characters(exclude_characters="$")))
def test_text_without_dollars_is_left_alone(text: str):
    assert expand(text, {"A": "1"}) == text


def test_args_alone_keep_the_entry_point():
    assert arguments({"args": ["--port=$(PORT)"]}, ("eldr", "router"), {"PORT": "1"}) == [
        "eldr",
        "router",
        "--port=1",
    ]


def test_command_replaces_the_entry_point():
    assert arguments({"command": ["sh"], "args": ["-c"]}, ("eldr",), {}) == ["sh", "-c"]


async def lookup(kind: str, name: str) -> dict[str, str] | None:
    return {"ConfigMap/c": {"k": "v", "bad=name": "x"}, "Secret/s": {"t": "hidden"}}.get(f"{kind}/{name}")


async def test_sources_of_variables():
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)$(P_k)"},
        {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "t"}}},
        {"name": "D", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "t", "optional": True}}},
        {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    container = {"envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}], "env": env}
    found = await container_env(POD, container, "127.1.2.3", lookup)
    assert found == {"P_k": "v", "A": "1", "B": "1v", "C": "hidden", "E": "127.1.2.3"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, "ConfigMap 'none' not found"),
        ({"secretKeyRef": {"name": "s", "key": "none"}}, "Secret 's' has no key 'none'"),
        ({"fieldRef": {"fieldPath": "spec.nothing"}}, "spec.nothing"),
        ({"fileKeyRef": {}}, "fileKeyRef"),
    ],
)
async def test_missing_sources_are_named(source: dict, message: str):
    with pytest.raises(MissingSourceError, match=message):
        await container_env(POD, {"env": [{"name": "X", "valueFrom": source}]}, "127.1.2.3", lookup)


def test_fields():
    assert field_value(POD, "metadata.labels", "") == 'a="1"\nb="2"'
    assert field_value(POD, "metadata.labels['b']", "") == "2"
    assert field_value(POD, "metadata.annotations['none']", "") == ""


def test_agent_s_environment_stays_outside(monkeypatch: pytest.MonkeyPatch):
    for name in ("KUBECONFIG", "PYTHONPATH", "VIRTUAL_ENV", "HTTPS_PROXY", "LD_PRELOAD"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LANG", "C.UTF-8")
    found = base_environment(("/first",))
    assert found["PATH"].startswith("/first:/usr/local/sbin:")
    assert found["LANG"] == "C.UTF-8"
    assert set(found) <= {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
