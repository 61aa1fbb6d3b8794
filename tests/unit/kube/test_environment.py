"""Variables and arguments as the kubelet expands them."""

from __future__ import annotations

import pytest

from eldr_kube.agent.environment import (
    MissingSourceError,
    container_env,
    expand,
)

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "1"}},
    "spec": {"nodeName": "node"},
}


# Of the table of Kubernetes' own third_party/forked/golang/expansion tests.
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(VAR_A)", "A"),
        ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
        ("$$$$(VAR_A)", "$$(VAR_A)"),
        ("$VAR_A$(VAR_B)", "$VAR_AB"),
        ("foo$(VAR_MISSING)", "foo$(VAR_MISSING)"),
        ("$($(VAR_A))", "$($(VAR_A))"),
        ("$(VAR_A", "$(VAR_A"),
        ("$(VAR_DASH-ED.DOT)", "dashed"),
        ("$", "$"),
        ("\n$(VAR_EMPTY)\n", "\n\n"),
    ],
)
def test_expansion(text: str, result: str):
    variables = {"VAR_A": "A", "VAR_B": "B", "VAR_DASH-ED.DOT": "dashed", "VAR_EMPTY": ""}
    assert expand(text, variables) == result


async def lookup(kind: str, name: str) -> dict[str, str] | None:
    return {"ConfigMap/c": {"k": "v", "bad=name": "x"}, "Secret/s": {"t": "hidden"}}.get(f"{kind}/{name}")


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
