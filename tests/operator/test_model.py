"""Weights that a Job downloads before engines start, on a real API server; nobody runs the Job's pod."""

from __future__ import annotations

import pytest

from eldr import contract
from tests.operator.world import KIND, World, simulated
from tests.support.kube import Kube, Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

_JOBS = f"{contract.LABEL_DEPLOYMENT}=x,app.kubernetes.io/component=model"


def job(world: World, *others: str) -> str:
    """Return the name of the only Job, once it is none of those."""

    def found() -> str | None:
        names = [each["metadata"]["name"] for each in world.kube.list("Job", _JOBS)]
        return names[0] if len(names) == 1 and names[0] not in others else None

    return str(world.until(found, "one Job"))


def templates(world: World) -> list[object]:
    found = [world.kube.get(*each) for each in (("Deployment", "x-prefill"), ("StatefulSet", "x-decode"))]
    return [each["spec"]["template"] for each in found]


def pod_of(world: World, name: str) -> str:
    """Return the name of the Job's pod."""
    pods = lambda: world.kube.list("Pod", f"batch.kubernetes.io/job-name={name}")  # noqa: E731
    (pod,) = wait_for(pods, "the Job's pod")
    return str(pod["metadata"]["name"])


def fail(world: World, pod: str, words: str) -> None:
    """Say what a kubelet says of a container that ends with these words again and again."""
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": words}}
    container = {"name": "download", "image": "i", "imageID": "", "ready": False, "restartCount": 1}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    status = {"containerStatuses": [container | {"state": waiting, "lastState": ended}]}
    world.kube.strategic("Pod", pod, {"status": status}, "status")


def test_engines_wait_for_weights_and_keep_what_they_have_while_others_come(world: World):
    model = {"uri": "org/model", "cache": {"claimName": "weights"}}
    at_once = {"rollout": {"minReadySeconds": 0}}
    # A scheduler without nodes would report that it finds none.
    unscheduled = at_once | {"podTemplate": {"spec": {"schedulerName": "nobody"}}}
    world.kube.create(KIND, {"name": "x"}, spec={"model": model, "prefill": unscheduled, "decode": at_once})
    first = job(world)
    world.condition("ModelReady", status="False", reason="Downloading")
    world.condition("Ready", status="False", reason="Downloading")
    assert world.kube.find("Service", "x")
    assert not world.kube.find("Deployment", "x-prefill")
    assert not world.kube.find("StatefulSet", "x-decode")
    world.end_job(first, "Succeeded")
    world.condition("ModelReady", status="True", reason="Downloaded")
    world.make_ready()
    before = templates(world)

    world.patch(model={"revision": "v2"}, decode={"replicas": 3})
    second = job(world, first)
    pod = pod_of(world, second)
    world.condition("Progressing", status="True", reason="Downloading")
    wait_for(lambda: world.workload("decode")["spec"]["replicas"] == 3, "scaled")
    world.make_ready()
    assert templates(world) == before

    fail(world, pod, "NotFound: 404 Client Error. Invalid rev id: v2")
    told = world.condition("ModelReady", status="False", reason="NotFound")["message"]
    assert "Invalid rev id: v2; correct spec.model.revision" in told
    assert world.condition("Ready", status="False", reason="NotFound")["message"] == told
    world.until_told("ModelNotFound")
    assert templates(world) == before

    world.patch(model={"revision": "v3"})
    third = job(world, second)
    world.end_job(third, "Succeeded")
    world.condition("ModelReady", status="True")
    world.make_ready()
    after = templates(world)
    assert all("--revision=v3" in each["spec"]["containers"][0]["args"] for each in after)
    assert job(world, first, second) == third

    world.patch(model={"download": "Never"})
    world.until(lambda: not world.kube.list("Job", _JOBS), "no Job")
    wait_for(lambda: not world.kube.condition(KIND, "x", "ModelReady"), "no condition")
    world.make_ready()
    assert templates(world) == after, "it rolls no pod"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"uri": "a/b", "revision": "v1", "source": {"claimName": "c"}}, "model.revision is one of the hub, and model.source"),
        ({"uri": "/models/a", "revision": "v1"}, "model.revision needs a name on the Hugging Face hub in model.uri"),
        ({"uri": "s3://a/b", "revision": "v1"}, "a bucket holds has no revision, so remove it"),
        ({"uri": "a/b", "revision": "a b"}, "model.revision must be a commit, tag or branch of the hub"),
        ({"uri": "a/../b", "source": {"claimName": "c"}}, "model.uri must be a path inside the claim of model.source"),
        ({"uri": "a/b", "cache": {}}, "spec.model.cache.claimName"),
        ({"uri": "a/b", "source": {"claimName": "-a"}}, "spec.model.source.claimName"),
        ({"uri": "a/b", "tokenSecret": {"name": "a", "key": "a b"}}, "spec.model.tokenSecret.key"),
        ({"uri": "/a/b/", "source": {"claimName": "c"}, "cache": {"claimName": "d"}}, None),
        ({"uri": "a/b", "revision": "refs/pr/1", "tokenSecret": {"name": "s"}, "cache": {"claimName": "c"}}, None),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unattended")
def test_fields_of_the_model(kube: Kube, model, message):
    spec = simulated(engine={"type": "vLLM"}) | {"model": model}
    if message is None:
        assert kube.create(KIND, {"name": "x"}, spec=spec)
        return
    with pytest.raises(Refused) as refusal:
        kube.create(KIND, {"name": "x"}, spec=spec)
    assert message in str(refusal.value)
    assert "spec.model" in str(refusal.value)


@pytest.mark.usefixtures("unattended")
def test_the_simulator_loads_no_model(kube: Kube):
    with pytest.raises(
        Refused, match=r"source and cache need engine\.type vLLM; the Simulator loads no model"
    ):
        kube.create(KIND, {"name": "x"}, spec=simulated(model={"cache": {"claimName": "c"}}))


@pytest.mark.usefixtures("unattended")
def test_what_the_uri_means_stays(kube: Kube):
    kube.create(KIND, {"name": "x"}, spec=simulated(engine={"type": "vLLM"}, model={"uri": "a/b"}))
    with pytest.raises(Refused, match=r"model\.source cannot be added or removed"):
        kube.merge(KIND, "x", {"spec": {"model": {"source": {"claimName": "c"}}}})
    kube.merge(KIND, "x", {"spec": {"model": {"revision": "v1", "cache": {"claimName": "c"}}}})
