"""The Job that downloads a model: when there is one, when it is another one, and what its pod tells."""

import errno
from pathlib import Path

import pytest

from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.workloads import downloads, fetch
from eldr_operator.workloads.images import Images
from tests.unit.operator.builders import make_cr, make_vllm

IMAGES = Images("own:1", "vllm:1")
MODEL = {"uri": "org/model", "cache": {"claimName": "weights"}}
CONDITIONS = Path(__file__).parents[3] / "docs" / "reference" / "conditions.md"


def made(engine=None, **model):
    return make_vllm(engine, model=MODEL | model)


def snapshot(*objects):
    children = {(each["kind"], each["metadata"]["name"]): each for each in objects if each["kind"] == "Job"}
    return Snapshot(children, [each for each in objects if each["kind"] == "Pod"], "token")


def job(cr, done=""):
    found = downloads.job(cr, IMAGES)
    status = {"conditions": [{"type": done, "status": "True", "message": "why"}]} if done else {}
    return found | {"status": status}


def pod(cr, *, unscheduled="", **container):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unscheduled}
    status = {
        "conditions": [condition] if unscheduled else [],
        "containerStatuses": [{"name": "download"} | container] if container else [],
    }
    labels = {"batch.kubernetes.io/job-name": downloads.name(cr)}
    return {"kind": "Pod", "metadata": {"name": "p", "labels": labels}, "spec": {}, "status": status}


def ended(words, code=1):
    return {"terminated": {"exitCode": code, "message": words}}


@pytest.mark.parametrize(
    "model",
    [
        {"cache": None},
        {"download": "Never"},
        {"uri": "/models/a"},
        {"uri": "./a"},
        {"uri": "s3://a/b"},
        {"source": {"claimName": "models"}},
    ],
)
def test_nothing_to_download(model):
    cr = made(**model)
    assert downloads.job(cr, IMAGES) is None
    assert downloads.state(cr, snapshot()) is None
    assert not downloads.is_missing(cr, None, snapshot())


def test_without_the_new_fields_there_is_no_job():
    assert downloads.job(make_vllm(model={"uri": "org/model"}), IMAGES) is None
    assert downloads.job(make_cr(model=MODEL), IMAGES) is None, "the simulator loads none"


def test_what_makes_another_job():
    env = [{"name": "HF_ENDPOINT", "value": "http://hub"}, {"name": "https_proxy", "value": "http://p"}]
    names = {
        downloads.name(cr)
        for cr in (
            made(),
            made(revision="v1"),
            made(tokenSecret={"name": "a"}),
            made(cache={"claimName": "b"}),
            made({"env": env[:1]}),
            made({"env": env}),
        )
    }
    assert len(names) == 6
    same = made({"env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}], "image": "mine:1"}, name="served")
    assert downloads.name(same) == downloads.name(made())


def test_the_way_to_the_hub_is_the_engines_and_nothing_else_is():
    env = [
        {"name": "HF_ENDPOINT", "value": "http://hub"},
        {"name": "HF_HUB_OFFLINE", "value": "1"},
        {"name": "no_proxy", "value": "a"},
        {"name": "VLLM_API_KEY", "value": "hidden"},
    ]
    cr = made({"env": env}, revision="v1", tokenSecret={"name": "hub", "key": "k"})
    (container,) = job(cr)["spec"]["template"]["spec"]["containers"]
    found = {each["name"]: each.get("value") for each in container["env"]}
    assert (found["HF_ENDPOINT"], found["no_proxy"]) == ("http://hub", "a")
    assert found["HF_HUB_OFFLINE"] == "0", "engines may be kept off the hub, it is not"
    assert "VLLM_API_KEY" not in found
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "k"}}} in container[
        "env"
    ]
    assert container["image"] == "vllm:1"
    assert container["args"][2:] == ["org/model", "v1"]
    assert "$(" not in container["args"][1], "Kubernetes would expand it"


def test_its_pod_runs_where_engines_may():
    spec = {"nodeSelector": {"gpu": "a"}, "imagePullSecrets": [{"name": "pull"}], "hostNetwork": True}
    cr = make_vllm(model=MODEL, prefill={"podTemplate": {"spec": spec | {"tolerations": None}}})
    made = job(cr)["spec"]["template"]["spec"]
    assert (made["nodeSelector"], made["imagePullSecrets"]) == ({"gpu": "a"}, [{"name": "pull"}])
    assert "hostNetwork" not in made
    assert "tolerations" not in made


def test_jobs_of_another_model_go_and_an_unfinished_one_that_is_out_of_date():
    before, now = made(revision="v1"), made(revision="v2")
    old, new = job(before, "Complete"), downloads.job(now, IMAGES)
    assert downloads.surplus(now, new, snapshot(old, job(now))) == [old]
    assert downloads.is_missing(now, new, snapshot(old))
    assert not downloads.is_missing(now, new, snapshot(job(now)))
    later = downloads.job(now, Images("own:1", "vllm:2"))
    assert downloads.surplus(now, later, snapshot(job(now))) == [job(now)]
    assert downloads.surplus(now, later, snapshot(job(now, "Complete"))) == [], "what is there is there"
    assert downloads.surplus(now, None, snapshot(job(now, "Complete"))) == [job(now, "Complete")]
    others = job(now)
    others["metadata"] |= {"ownerReferences": []}
    assert downloads.surplus(now, None, snapshot(others)) == []


CRASHED = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended("NoSpace: full")}


@pytest.mark.parametrize(
    ("told", "reason", "text"),
    [
        ({}, "Downloading", "downloads org/model at its main revision into claim weights"),
        ({"state": {"running": {}}}, "Downloading", "engines with this model start after that"),
        (CRASHED, "NoSpace", "full; enlarge the claim of spec.model.cache"),
        (
            {"state": ended("Unauthorized: no")},
            "Unauthorized",
            "in spec.model.tokenSecret. It is tried again",
        ),
        (
            {"state": ended("Traceback", 137)},
            "DownloadFailed",
            "container download ended with 137; see the Job",
        ),
        ({"state": ended("", 0)}, "Downloading", "downloads"),
        ({"state": {"waiting": {"reason": "ImagePullBackOff"}}}, "ImagePull", "ImagePullBackOff"),
        (
            {"unscheduled": '0/1 nodes: persistentvolumeclaim "weights" not found'},
            "ClaimPending",
            "create the claim in this namespace",
        ),
        ({"unscheduled": "0/1 nodes: taints"}, "InsufficientCapacity", "taints"),
    ],
)
def test_what_its_pod_tells(told, reason, text):
    cr = made()
    found = downloads.state(cr, snapshot(job(cr), pod(cr, **told)))
    assert (found.status, found.reason) == ("False", reason)
    assert text in found.message
    assert downloads.name(cr) in found.message


def test_what_the_job_tells():
    cr = made(revision="v1")
    done = downloads.state(cr, snapshot(job(cr, "Complete"), pod(cr, **CRASHED)))
    assert done[1:] == ("True", "Downloaded", "org/model at v1 lies in claim weights")
    failed = downloads.state(cr, snapshot(job(cr, "Failed")))
    assert failed[1:3] == ("False", "DownloadFailed")
    assert "why; delete the Job to try again" in failed.message
    refused = downloads.state(cr, snapshot(job(cr)), "exceeded quota")
    assert refused[1:3] == ("False", "PodsRefused")
    assert downloads.state(cr, snapshot()).reason == "Downloading"


def test_every_word_of_the_container_has_a_remedy_and_a_row():
    for reason in downloads.REMEDIES:
        assert reason in CONDITIONS.read_text()


class AnswerError(Exception):
    def __init__(self, status):
        super().__init__(f"{status} Client Error. (Request ID: abc)\n\nRequest ID: x\nInvalid rev id")
        self.response = type("Response", (), {"status_code": status})()


class ConnectError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AnswerError(401), "Unauthorized"),
        (AnswerError(403), "Unauthorized"),
        (AnswerError(404), "NotFound"),
        (AnswerError(503), "Unreachable"),
        (ConnectError("refused"), "Unreachable"),
        (OSError(errno.ENOSPC, "full"), "NoSpace"),
        (RuntimeError("xet: No space left on device (os error 28)"), "NoSpace"),
        (PermissionError(errno.EACCES, "no"), "NotWritable"),
        (OSError(errno.EROFS, "read-only"), "NotWritable"),
        (ValueError("a"), "DownloadFailed"),
    ],
)
def test_errors_in_a_word(error, reason):
    assert fetch.reason(error) == reason
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = error
    assert fetch.reason(wrapped) == reason
    assert reason in downloads.REMEDIES


def test_last_words_are_the_same_each_time():
    assert fetch.text(AnswerError(404)) == "404 Client Error. Invalid rev id"
    assert fetch.text(ValueError("")) == "ValueError"
