"""Reports become centroid sets in use: stage, acknowledge, activate, refuse, roll back."""

from __future__ import annotations

import re
import time

import pytest

from eldr import contract
from tests.operator.world import FIT, KIND
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube


def test_bootstrap_once_there_are_enough_samples(world):
    world.up(refit={"minSamples": 50})
    world.router.samples = 49
    wait_for(lambda: world.status["router"]["acks"] == "0/1", "a look at the router")
    assert world.kube.find(FIT, "x-bootstrap") is None
    world.router.samples = 50
    world.until_fit("x-bootstrap", status="Unknown", reason="Running")
    job = world.kube.get("Job", "x-bootstrap")
    container = job["spec"]["template"]["spec"]["containers"][0]
    metadata = world.kube.get(FIT, "x-bootstrap")["metadata"]
    uid = metadata["uid"]
    assert metadata["annotations"] == {contract.ANNOTATION_ATTEMPT: "1"}
    assert container["command"] + container["args"] == [
        *("eldr", "fit", "job", f"--namespace={world.kube.namespace}", "--deployment=x", "--fit=x-bootstrap"),
        *(f"--fit-uid={uid}", "--k=2", "--model=x", "--min-samples=40"),
    ]
    digest = world.report("x-bootstrap")
    world.until_active("x-bootstrap")
    assert (world.routing["epoch"], world.routing["staged"]) == (1, None)
    assert world.routing["active"]["digest"] == digest
    assert world.routing["active"]["shards"] == [
        {"name": contract.shard_name("x-bootstrap", digest, 0), "sha256": "00"}
    ]
    world.condition("CentroidsActive", status="True", reason="Active")
    wait_for(lambda: world.status["router"].get("policyInEffect") == "MarginalUnion", "policy")
    wait_for(lambda: world.status["router"]["acks"] == "1/1", "the router's switch")
    assert [(entry["fit"], entry["epoch"], entry["reason"]) for entry in world.status["history"]] == [
        ("x-bootstrap", 1, "Accepted")
    ]
    told = ("FitRunning", "FitAccepted", "CentroidsActivated")
    world.until_told(*told)
    assert [world.events().count(reason) for reason in told] == [1, 1, 1]


def test_after_the_timeout_it_goes_on_and_names_who_lacks_it(world):
    world.up(prefill={"replicas": 2}, centroids={"ackTimeoutSeconds": 1})
    (_, _), (name, silent) = world.routers.items()
    silent.is_holding = True
    world.serve("one")
    assert world.status["history"][-1]["reason"] == "AckTimeout"
    condition = world.condition("CentroidsActive", status="False", reason="AckTimeout")
    assert f"router {name}" in condition["message"]
    silent.is_holding = False
    world.condition("CentroidsActive", status="True", reason="Active")


def test_a_refused_set_keeps_the_old_one(world):
    world.up()
    world.serve("good")
    world.router.refuse["sha256:" + b"bad".hex().ljust(64, "0")] = "digest differs"
    world.fit("bad")
    world.report("bad")
    condition = world.condition("CentroidsActive", status="True", reason="Refused")
    (name,) = world.routers
    assert condition["message"] == f"the set of EldrFit bad cannot be loaded: router {name}: digest differs"
    assert (world.active(), world.routing["epoch"]) == ("good", 1)
    world.serve("better")
    assert world.routing["epoch"] == 2


def test_a_scheduled_fit_needs_min_samples_usable_records(world):
    world.up(refit={"minSamples": 50, "schedule": "* * * * *"})
    (made,) = wait_for(lambda: world.kube.list("Job"), "the Job of the next minute", 120)
    assert re.fullmatch(r"x-\d{8}-\d{4}", made["metadata"]["name"])
    fit = world.kube.get(FIT, made["metadata"]["name"])["spec"]
    assert fit["trigger"] == "Schedule"
    assert "since" not in fit
    assert "--min-samples=50" in made["spec"]["template"]["spec"]["containers"][0]["args"]


def test_pin_rolls_back_and_forth(world):
    world.up()
    for name in ("one", "two"):
        world.serve(name)
    assert world.status["centroids"]["previous"]["fit"] == "one"
    world.patch(centroids={"pin": "one"})
    world.until_active("one")
    assert world.routing["epoch"] == 3
    world.condition("CentroidsActive", status="True", reason="Pinned")
    assert world.status["history"][-1]["reason"] == "Pinned"
    world.patch(centroids={"pin": "nowhere"})
    condition = world.condition("CentroidsActive", status="True", reason="PinNotFound")
    assert "there is no EldrFit nowhere here; pin one of: one, two" in condition["message"]
    assert world.active() == "one"
    world.patch(centroids={"pin": None})
    world.until_active("two")


def test_a_set_in_use_outlives_its_fit(world):
    world.up()
    for name in ("one", "two"):
        world.serve(name)
    world.kube.delete(FIT, "two")

    def owners(name):
        found = world.kube.list("ConfigMap", f"{contract.LABEL_FIT}={name}")
        return [owner["kind"] for each in found for owner in each["metadata"].get("ownerReferences", [])]

    wait_for(
        lambda: owners("two") == [KIND, KIND], "only the deployment owns them", 60, lambda: owners("two")
    )
    assert world.active() == "two"
    wait_for(lambda: sorted(set(owners("one"))) == [KIND, FIT], "the previous set is kept too")
    second = int(
        time.time()
    )  # times have seconds: what ends in that in which the deleted fit's set began to serve is not newer
    wait_for(lambda: int(time.time()) > second, "the next second")
    for name in ("three", "four"):
        world.serve(name)
    wait_for(lambda: owners("two") == [], "the superseded set of the deleted fit is collected")
    wait_for(lambda: set(owners("one")) == {FIT}, "the superseded set is its fit's alone")
    assert world.kube.get(FIT, "one")["status"]["digest"]


def test_fits_run_one_at_a_time_and_failures_are_told(world):
    world.up()
    world.fit("one")
    world.until_fit("one", reason="Running")
    world.fit("two")
    queued = world.until_fit("two", status="Unknown", reason="Queued")
    assert queued["message"] == "waits for EldrFit one: one fit of a deployment runs at a time"
    assert world.kube.find("Job", "two") is None
    wait_for(lambda: world.kube.list("Pod", "batch.kubernetes.io/job-name=one"), "pod of the Job")
    world.kube.merge("Job", "one", {"spec": {"backoffLimit": 1}})
    world.end_job("one", "Failed")
    failed = world.until_fit("one", status="False", reason="JobFailed")
    assert failed["message"] == "the Job failed (BackoffLimitExceeded); see kubectl logs job/one"
    world.report("two", verdict="Rejected", reason="NotBetter", message="saves 1%, the active set 2%")
    rejected = world.until_fit("two", status="False", reason="Rejected")
    assert rejected["message"] == "NotBetter: saves 1%, the active set 2%"
    assert world.routing["staged"] is None
    world.fit("three")
    world.until_fit("three", reason="Running")
    world.kube.delete("Job", "three")
    world.until_fit("three", status="False", reason="JobFailed")


def test_a_fit_waits_for_its_deployment(world):
    world.fit("early")
    waiting = world.until_fit("early", status="Unknown", reason="DeploymentNotFound")
    assert "there is no EldrDeployment x in this namespace; create it" in waiting["message"]
    world.up()
    world.report("early")
    world.until_active("early")
