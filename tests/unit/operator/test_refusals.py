"""Events are asked for only where they can say something."""

from datetime import timedelta

import pytest

from eldr_operator import clock
from eldr_operator.conditions import Refusal
from eldr_operator.kube import refusals

MADE = clock.utc_now()
TOLD = Refusal("pod a: no quota", MADE.replace(microsecond=0))
LATER = MADE + timedelta(seconds=30)


class Events:
    """An API server's, and how often they were asked for."""

    def __init__(self):
        self.asked = 0

    async def list(self, kind, namespace, *, fields):
        self.asked += 1
        assert (kind, namespace) == ("Event", "n")
        assert fields == "involvedObject.uid=u,reason=FailedCreate"
        first = {"message": "pod b: no quota", "firstTimestamp": clock.stamp(MADE)}
        later = {"message": "pod a: no quota", "firstTimestamp": clock.stamp(LATER)}
        return [later, first], "1"


def stateful_set(status, replicas=2):
    return {
        "metadata": {"namespace": "n", "uid": "u", "generation": 3, "creationTimestamp": clock.stamp(MADE)},
        "spec": {"replicas": replicas},
        "status": status,
    }


@pytest.mark.parametrize(
    "live",
    [
        None,
        stateful_set({}),
        stateful_set({"observedGeneration": 2, "replicas": 1}),
        stateful_set({"observedGeneration": 3, "replicas": 2}),
        stateful_set({"observedGeneration": 3}, replicas=0),
    ],
    ids=["none", "unseen", "seen as it was", "complete", "none wanted"],
)
async def test_nothing_is_asked(live):
    events = Events()
    assert await refusals.of_stateful_set(events, live, LATER) == Refusal()
    assert not events.asked


async def test_what_its_controller_could_not_create_is_told():
    events = Events()
    live = stateful_set({"observedGeneration": 3, "replicas": 1})
    assert await refusals.of_stateful_set(events, live, LATER) == TOLD
    assert events.asked == 1


async def test_a_new_one_is_left_alone_until_its_controller_had_time():
    events = Events()
    live = stateful_set({"observedGeneration": 3})
    now = MADE + timedelta(seconds=1)
    assert await refusals.of_stateful_set(events, live, now) == Refusal()
    assert not events.asked
    left = refusals.seconds_until_asked(live, now)
    assert left is not None
    assert 0 < left < 30, "and somebody comes back for it"
    later = now + timedelta(seconds=left)
    assert refusals.seconds_until_asked(live, later) is None
    assert await refusals.of_stateful_set(events, live, later) == TOLD


@pytest.mark.parametrize("live", [None, stateful_set({"replicas": 2})], ids=["none", "complete"])
def test_nobody_comes_back_for_nothing(live):
    assert refusals.seconds_until_asked(live, MADE) is None


async def test_a_clock_that_is_behind_keeps_no_refusal_back():
    events, behind = Events(), MADE - timedelta(hours=1)
    live = stateful_set({"observedGeneration": 3, "replicas": 1})
    assert await refusals.of_stateful_set(events, live, behind) == TOLD
    assert refusals.seconds_until_asked(live, behind) is None


MISSING = 'MountVolume.SetUp failed for volume "api-keys" : secret "clients" not found'


class Mounts:
    """Has Events of pods."""

    def __init__(self, *found):
        self.found, self.asked = found, []

    async def list(self, kind, namespace, *, fields):
        assert (kind, namespace) == ("Event", "ns")
        self.asked.append(fields)
        return list(self.found), ""


def starting(uid="1", *, reason="ContainerCreating", age=11, phase="Pending", **metadata):
    made = clock.stamp(LATER - timedelta(seconds=age))
    head = {"name": f"p-{uid}", "namespace": "ns", "uid": uid, "creationTimestamp": made, **metadata}
    waiting = {"name": "router", "state": {"waiting": {"reason": reason}}}
    return {"metadata": head, "status": {"phase": phase, "initContainerStatuses": [waiting]}}


def mount(message=MISSING, seconds=60):
    return {"message": message, "lastTimestamp": clock.stamp(LATER - timedelta(seconds=seconds))}


async def test_a_volume_that_cannot_be_mounted_is_named():
    server = Mounts(mount(), mount("Unable to attach or mount volumes"))
    assert await refusals.of_mounts(server, [starting(), starting("2")], LATER) == f"pod p-1: {MISSING}"
    assert server.asked == ["involvedObject.uid=1,reason=FailedMount"]


@pytest.mark.parametrize(
    "pod",
    [
        starting(age=9),
        starting(reason="ImagePullBackOff"),
        starting(phase="Running"),
        starting(phase="Failed"),
        starting(deletionTimestamp="2026-11-21T11:59:00Z"),
    ],
    ids=["young", "another reason", "running", "failed", "terminating"],
)
async def test_nobody_is_asked_about_a_pod_that_waits_for_something_else(pod):
    server = Mounts(mount())
    assert (await refusals.of_mounts(server, [pod], LATER), server.asked) == ("", [])


async def test_a_mount_that_has_worked_meanwhile_is_no_cause():
    assert await refusals.of_mounts(Mounts(mount(seconds=200)), [starting()], LATER) == ""
