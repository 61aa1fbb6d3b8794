"""Spec to manifests. The golden files are rewritten by ``ELDR_GOLDEN=write pytest tests/unit/operator``."""

import json
import os
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from eldr import contract
from eldr_operator.fits.job import fit_job
from eldr_operator.locality import memory, routing
from eldr_operator.models import EldrDeployment, parse
from eldr_operator.workloads import desired, downloads, engines
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.unit.operator.builders import NOW, make_cr, make_fit, make_set

EXAMPLES = Path(__file__).parents[3] / "examples"
GOLDEN = Path(__file__).parent / "golden"
IMAGE = "ghcr.io/eldr/eldr:test"
OUTSIDE = Outside("eldr-system")


TABLE = routing.Table(
    epoch=3, active=make_set("b"), previous=make_set("a"), staged=make_set("c"), activated_at=NOW
)


def example(name: str) -> EldrDeployment:
    manifests = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    manifest = next(one for one in manifests if one["kind"] == "EldrDeployment")
    manifest["metadata"] |= {
        "namespace": "ns",
        "uid": "uid-of-owner",
        "creationTimestamp": "2026-11-01T00:00:00Z",
    }
    return parse(EldrDeployment, manifest)


def children(cr, table):
    """Everything that is written for a deployment: the routing table comes last."""
    download = downloads.job(cr, Images(IMAGE))
    return [
        *([] if download is None else [download]),
        *desired.children(cr, table.shards, Images(IMAGE), OUTSIDE),
        memory.config_map(cr, memory.Memory(table=table)),
    ]


def by_kind(cr, table=routing.Table()):  # noqa: B008 - frozen
    return {(m["kind"], m["metadata"]["name"]): m for m in children(cr, table)}


@pytest.mark.parametrize("name", ["simulator", "mi300x", "shared-weights"])
def test_golden(name):
    made = children(example(name), TABLE)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("ELDR_GOLDEN") == "write":
        text = yaml.dump_all(json.loads(json.dumps(made)), Dumper=yaml.SafeDumper, sort_keys=False, width=110)
        path.write_text(text)
    assert list(yaml.safe_load_all(path.read_text())) == json.loads(json.dumps(made))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simulator", "mi300x", "shared-weights"])
def test_manifests_fit_the_schemas(name):
    cr = example(name)
    for manifest in [
        *children(cr, TABLE),
        fit_job(cr, make_fit("f", "Pending"), IMAGE),
    ]:
        kubernetes_validate.validate(json.loads(json.dumps(manifest)), "1.36", strict=True)


def test_who_may_wait_is_written_where_the_spec_says_so():
    def written(**router):
        return json.loads(routing.document(make_cr(router=router), TABLE))

    assert not written().keys() & {"max_waiting", "max_wait_seconds"}, (
        "else options among router.args would not count"
    )
    found = written(maxWaiting=0, maxWaitSeconds=3)
    assert (found["max_waiting"], found["max_wait_seconds"]) == (0, 3)


def pod(role, **spec):
    kind = "StatefulSet" if role == "decode" else "Deployment"
    return by_kind(make_cr(**spec))[kind, f"x-{role}"]["spec"]["template"]["spec"]


def test_grace_period_is_the_time_both_containers_need():
    drain = {role: {"drainSeconds": n} for role, n in (("prefill", 20), ("router", 100), ("decode", 40))}
    prefill = pod("prefill", **drain)
    assert prefill["terminationGracePeriodSeconds"] == 20 + 100 + 15
    assert "--shutdown-timeout=20" in prefill["containers"][0]["args"]
    assert pod("decode", **drain)["terminationGracePeriodSeconds"] == 40 + 15


@pytest.mark.parametrize(
    ("decode", "resources"),
    [
        (
            {"gpus": 4, "resources": {"requests": {"cpu": "8"}}},
            {"requests": {"cpu": "8", "a/b": "4"}, "limits": {"a/b": "4"}},
        ),
        ({"gpus": 0}, {}),
    ],
)
def test_accelerators_are_requested_and_limited(decode, resources):
    (engine,) = pod("decode", decode=decode, accelerator={"resourceName": "a/b"})["containers"]
    assert engine["resources"] == resources


def test_environment_has_each_name_once_and_users_win():
    engine = {"type": "Simulator", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
    (container,) = pod("decode", engine=engine, decode={"env": [{"name": "A", "value": "2"}]})["containers"]
    found = [(each["name"], each.get("value")) for each in container["env"]]
    assert sorted(found, key=str) == [
        *(("A", "2"), ("B", "1")),
        *((name, None) for name in ("POD_IP", "POD_NAME", "POD_NAMESPACE")),
    ]


def arguments(**spec):
    cr = make_cr(decode={"replicas": 5}, model={"uri": "m", "name": "served"})
    job = fit_job(cr, make_fit("f", "Pending", **spec), IMAGE)
    assert job["metadata"]["ownerReferences"][0]["uid"] == "uid-f"
    return job["spec"]["template"]["spec"]["containers"][0]["args"]


def test_arguments_of_a_fit():
    args = arguments(lookbackMinutes=90)
    assert {"--k=5", "--model=served", "--lookback-minutes=90"} <= {*args}
    assert not [arg for arg in args if arg.startswith("--min-samples")], "a person knows what they ask for"


SINCE = {"since": "2026-11-21T10:00:00Z"}


@pytest.mark.parametrize(
    ("trigger", "since", "least"),
    [
        ("Bootstrap", SINCE, 1000),
        ("Schedule", SINCE, 1000),
        ("Drift", SINCE, 800),
        ("Scale", SINCE, 1000),
        ("Repair", SINCE, 1000),
        # as many as routers hold, of which some may be unusable
        ("Bootstrap", {}, 800),
        ("Scale", {}, 800),
        ("Repair", {}, 800),
        # it comes whatever routers hold
        ("Schedule", {}, 1000),
    ],
)
def test_how_many_usable_records_a_fit_needs(trigger, since, least):
    assert f"--min-samples={least}" in arguments(trigger=trigger, **since)


def test_a_patch_cannot_change_what_pods_are_found_by():
    labels = {contract.LABEL_ROLE: "prefill", contract.LABEL_ROUTER: "true", "team": "a"}
    cr = make_cr(decode={"podTemplate": {"metadata": {"labels": labels}}})
    template = by_kind(cr)["StatefulSet", "x-decode"]["spec"]["template"]
    assert template["metadata"]["labels"][contract.LABEL_ROLE] == "decode"
    assert template["metadata"]["labels"]["team"] == "a"
    assert contract.LABEL_ROUTER not in template["metadata"]["labels"], (
        "it would become a backend of the Service"
    )
    nulled = make_cr(decode={"podTemplate": {"metadata": {"labels": None}}})
    found = by_kind(nulled)["StatefulSet", "x-decode"]["spec"]["template"]["metadata"]["labels"]
    assert found[contract.LABEL_ROLE] == "decode"


@pytest.mark.parametrize(
    ("engine", "role", "seconds"),
    [
        ("vLLM", {}, 60),
        ("vLLM", {"gpus": 0}, None),
        ("vLLM", {"rollout": {"minReadySeconds": 0}}, None),
        ("vLLM", {"gpus": 0, "rollout": {"minReadySeconds": 5}}, 5),
        ("Simulator", {"gpus": 1}, None),
    ],
    ids=str,
)
def test_engines_with_accelerators_must_stay_ready(engine, role, seconds):
    cr = make_cr(engine={"type": engine}, prefill=role, decode=role)
    for make in (engines.prefill, engines.decode):
        assert make(cr, Images("own"))["spec"].get("minReadySeconds") == seconds


@pytest.mark.parametrize("deadline", [None, 30])
def test_a_deployment_has_a_deadline_beyond_its_min_ready_seconds(deadline):
    rollout = {"minReadySeconds": 86_400, "progressDeadlineSeconds": deadline}
    spec = engines.prefill(make_cr(prefill={"rollout": rollout}), Images("own"))["spec"]
    assert spec["progressDeadlineSeconds"] > spec["minReadySeconds"], "or the API server refuses it"
