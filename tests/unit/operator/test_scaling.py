"""How many pods a role has: as somebody else has set it on the role's EldrScaler, or as the spec says."""

import pytest

from eldr import contract
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.workloads import scaling
from tests.unit.operator.builders import make_cr

SPEC = {"prefill": {"replicas": 4}, "decode": {"replicas": 2}}


def scaler(name, replicas, *owners, status=None, written=None, orphan=False, restored=False):
    fields = {"f:spec": {"f:replicas": {}}}
    annotated = {"f:metadata": {"f:annotations": {f"f:{contract.ANNOTATION_REPLICAS}": {}}}}
    fields |= annotated if restored else {}
    managed = [{"manager": owner, "operation": "Update", "fieldsV1": fields} for owner in owners]
    if written is not None and not restored:
        managed.append({"manager": "eldr-operator", "operation": "Apply", "fieldsV1": annotated})
    metadata = {"name": name, "uid": name, "ownerReferences": [{"uid": "cr"}], "managedFields": managed}
    if orphan:
        labels = {"app.kubernetes.io/managed-by": "eldr-operator", "eldr.dev/deployment": "x"}
        metadata |= {"ownerReferences": [], "labels": labels}
        managed.append({"manager": "eldr-operator", "operation": "Apply", "fieldsV1": {"f:metadata": {}}})
    if written is not None:
        metadata["annotations"] = {contract.ANNOTATION_REPLICAS: str(written)}
    return {"kind": "EldrScaler", "metadata": metadata, "spec": {"replicas": replicas}, "status": status}


def snapshot(*objects):
    return Snapshot({(each["kind"], each["metadata"]["name"]): each for each in objects}, [], "")


def replicas(made):
    return {each["metadata"]["name"]: each.get("spec", {}).get("replicas") for each in made}


def counts(cr):
    return cr.spec.prefill.replicas, cr.spec.decode.replicas


@pytest.mark.parametrize(
    "live",
    [
        [],
        [scaler("x-decode", 7, "eldr-operator")],
        [scaler("x-decode", 7, "eldr-operator", "kube-controller-manager")],
        [scaler("x-decode", 7)],
        [scaler("x-decode", 7, "velero-server", written=7, restored=True)],
        [scaler("x-decode", 7, "kubectl") | {"metadata": {"name": "x-decode", "uid": "another"}}],
        [scaler("x-decode", 7) | {"spec": {}}],
    ],
    ids=["none", "ours", "shared", "nobody's", "restored", "of another", "without replicas"],
)
def test_what_nobody_else_has_set_follows_the_spec(live):
    cr = make_cr(**SPEC)
    assert counts(scaling.scaled(cr, snapshot(*live))) == (4, 2)
    assert replicas(scaling.manifests(cr, snapshot(*live))) == {"x-prefill": 4, "x-decode": 2}
    assert scaling.set_by(cr, snapshot(*live)) == {}


@pytest.mark.parametrize(
    "more", [{}, {"written": 2}, {"written": 7}, {"orphan": True}], ids=["usual", "just", "back", "orphan"]
)
def test_what_an_autoscaler_has_set_stays(more):
    decode = scaler("x-decode", 7, "kube-controller-manager", **more)
    live = snapshot(decode, scaler("x-prefill", 1, "eldr-operator"))
    cr = scaling.scaled(make_cr(**SPEC), live)
    assert counts(cr) == (4, 7)
    assert replicas(scaling.manifests(cr, live)) == {"x-prefill": 4, "x-decode": None}
    assert scaling.set_by(cr, live) == {"decode": "kube-controller-manager"}
    made = scaling.manifests(cr, live)
    written = [each["metadata"]["annotations"][contract.ANNOTATION_REPLICAS] for each in made]
    assert written == ["4", ""], "what it sets later may be the same by chance"


def test_autoscalers_read_what_exists():
    cr = make_cr(**SPEC)
    owned = {"name": "x-decode", "uid": "s", "generation": 2, "ownerReferences": [{"uid": "cr"}]}
    workload = {"kind": "StatefulSet", "metadata": owned, "status": {"replicas": 3, "observedGeneration": 2}}
    wanted = {"replicas": 3, "selector": "eldr.dev/deployment=x,eldr.dev/role=decode"}
    ((found, status),) = scaling.statuses(cr, snapshot(workload, scaler("x-decode", 2, "eldr-operator")))
    assert (found["metadata"]["name"], status) == ("x-decode", wanted)
    told = scaler("x-decode", 2, "eldr-operator", status=wanted)
    assert scaling.statuses(cr, snapshot(workload, told)) == []
    ((_, status),) = scaling.statuses(cr, snapshot(told))
    assert status["replicas"] == 0, "no workload is there yet"
    unseen = workload | {"status": {"replicas": 0, "observedGeneration": 1}}
    assert scaling.statuses(cr, snapshot(unseen, told)) == [], "its controller has not seen the newest spec"
