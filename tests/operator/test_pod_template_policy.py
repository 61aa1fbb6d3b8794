"""What the chart forbids in ``podTemplate``: the real API server refuses it, and nothing else."""

from __future__ import annotations

import pytest
import yaml

from eldr import contract
from tests.support.helm import rendered
from tests.support.kube import Kube, Refused
from tests.support.processes import wait_for

KIND = contract.KIND_DEPLOYMENT
POLICY = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
ROLES = ("prefill", "decode", "router", "refit")
EVERYTHING = "podTemplates.forbid={ServiceAccounts,HostPaths,Privileges}"


def engine(**context) -> dict:
    return {"containers": [{"name": "engine", "securityContext": context}]}


FORBIDDEN = {
    "serviceAccountName": {"serviceAccountName": "admin"},
    "hostPath": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "root", "hostPath": {"path": "/"}}]},
    "hostNetwork": {"hostNetwork": True},
    "privileged": engine(privileged=True),
    "capabilities": {"initContainers": [{"name": "a", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
}  # fmt: skip
ALLOWED = {
    "nodeSelector": {"gpu": "mi300x"},
    "hostPID": False,
    "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}],
    **engine(privileged=False, capabilities={"drop": ["ALL"]}),
}

NULLS = {
    **dict.fromkeys(("serviceAccountName", "hostNetwork", "initContainers")),
    "volumes": [{"name": "a", "hostPath": None}],
    "containers": [{"name": "engine", "securityContext": None}, {"name": "b", "securityContext": {"privileged": None, "capabilities": None}}],
}  # fmt: skip


def patched(role: str, pod: dict) -> dict:
    """Return a spec with a podTemplate."""
    placement = {"placement": "Deployment"} if role == "router" else {}
    return {role: {"podTemplate": {"spec": pod}, **placement}}


@pytest.fixture
def old(kube: Kube):
    """Return the name of a deployment that was there before the policy, with a finalizer."""
    forbidden = patched("decode", FORBIDDEN["hostPath"])
    kube.create(
        KIND, {"name": "old", "finalizers": ["example.com/x"]}, spec={"model": {"uri": "m"}, **forbidden}
    )
    return "old"


@pytest.fixture
def bounded(kube: Kube):
    made = rendered("--set", EVERYTHING, "--set", f"watchNamespaces={{{kube.namespace}}}")
    manifests = [one for (kind, _), one in made.items() if kind in POLICY]
    assert len(manifests) == 2
    text = yaml.safe_dump_all(manifests)
    kube.cluster.kubectl("apply", "-f", "-", stdin=text)
    yield kube
    kube.cluster.kubectl("delete", "-f", "-", stdin=text)


def refusal(kube: Kube, name: str, **spec) -> str:
    """Create a deployment; return why it is refused, empty if it is not."""
    whole = {"model": {"uri": "m"}, **spec}
    try:
        kube.create(KIND, {"name": name}, spec=whole)
    except Refused as error:
        return str(error)
    kube.delete(KIND, name)
    return ""


@pytest.mark.process
def test_the_api_server_refuses_what_the_chart_forbids(bounded):
    def refused(role: str, what: str) -> str:
        return refusal(bounded, "x", **patched(role, FORBIDDEN[what]))

    told = wait_for(lambda: refused("decode", "hostPath"), "the policy to be in effect")
    assert "may not have volumes of hostPath here; use a claim (value podTemplates.forbid" in told
    for role in ROLES:
        assert "may not set serviceAccountName" in refused(role, "serviceAccountName")
    for what in ("hostNetwork", "privileged", "capabilities"):
        assert "may not ask for privileges" in refused("prefill", what)
    assert refusal(bounded, "y") == ""
    assert refusal(bounded, "n", **patched("decode", NULLS)) == ""
    assert refusal(bounded, "n", decode={"podTemplate": {"spec": None}}) == ""
    allowed = [patched(role, ALLOWED) for role in ROLES]
    assert refusal(bounded, "z", **{role: field for each in allowed for role, field in each.items()}) == ""


@pytest.mark.process
def test_what_was_there_before_may_change_but_for_its_pod_templates_and_end(old, bounded):
    wait_for(
        lambda: refusal(bounded, "x", **patched("decode", FORBIDDEN["hostPath"])),
        "the policy to be in effect",
    )
    bounded.merge(KIND, old, {"metadata": {"labels": {"team": "a"}}})
    bounded.merge(KIND, old, {"spec": {"decode": {"rollout": {"pause": "Enabled"}}}})
    with pytest.raises(Refused, match="may not have volumes of hostPath here"):
        bounded.merge(KIND, old, {"spec": patched("prefill", {"nodeSelector": {"gpu": "mi300x"}})})
    bounded.delete(KIND, old)
    bounded.merge(KIND, old, {"metadata": {"finalizers": None}})
    wait_for(lambda: bounded.find(KIND, old) is None, "its end", 30)


@pytest.mark.process
def test_without_the_value_there_is_no_policy():
    assert not [name for kind, name in rendered() if kind in POLICY]
    made = rendered("--set", "podTemplates.forbid={HostPaths}")
    (validation,) = made[POLICY[0], "eldr-eldr-system-pod-templates"]["spec"]["validations"]
    assert "hostPath" in validation["message"]
    assert "matchResources" not in made[POLICY[1], "eldr-eldr-system-pod-templates"]["spec"]
