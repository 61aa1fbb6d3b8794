"""How pods with a new template take the place of those that run, and what is announced before a role has no engine."""

from datetime import timedelta

import pytest

from eldr.contract import LABEL_REVISION
from eldr_operator import clock
from eldr_operator.conditions import NOT_REFUSED, Refusal
from eldr_operator.models import DecodeRolloutSpec, PrefillRolloutSpec, RolloutSpec
from eldr_operator.workloads import gaps, roles, rollout
from eldr_operator.workloads.revisions import ANNOTATION_REVISION
from eldr_operator.workloads.roles import Wanted
from tests.unit.operator.builders import NOW, ago

FULL = "0/2 nodes are available: 2 Insufficient amd.com/gpu. preemption: 0/2 nodes are available."


def waiting(seconds=3600, reason="Unschedulable", message=FULL, gpus="1", **metadata):
    """Return a pod that has had no node for so many seconds."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    if seconds is not None:
        condition["lastTransitionTime"] = clock.stamp(ago(seconds))
    return {
        "metadata": {"name": "p", **metadata},
        "spec": asking(gpus),
        "status": {"conditions": [condition]},
    }


def asking(gpus):
    return {"containers": [{"resources": {"requests": {"amd.com/gpu": gpus, "cpu": "100m"}}}, {}]}


def running(gpus="1", name="q", **metadata):
    return {"metadata": {"name": name, **metadata}, "spec": {"nodeName": "n", **asking(gpus)}}


def deployment(*, surge, replicas=2, updated=2, existing=2, observed=1):
    status = {"observedGeneration": observed, "replicas": existing, "updatedReplicas": updated}
    strategy = {"rollingUpdate": {"maxSurge": surge}}
    return {
        "metadata": {"generation": 1},
        "spec": {"replicas": replicas, "strategy": strategy},
        "status": status,
    }


SURGING = deployment(surge=1, replicas=1, existing=2, updated=1)
PAUSED = {"spec": {"replicas": 2, "paused": True}}


def paced(*pods, live=None, refusal=NOT_REFUSED, **spec):
    made = rollout.of_deployment(PrefillRolloutSpec(**spec), live, pods, NOW, refusal)
    return made["strategy"]["rollingUpdate"], made["paused"]


def bounds(surge, unavailable):
    return {"maxSurge": surge, "maxUnavailable": unavailable}


FIRST, AFTER = bounds(1, 0), bounds(0, 1)
"""A new pod comes first, or after another one has gone."""


@pytest.mark.parametrize(
    ("seconds", "reason", "expected"),
    [
        (59, "Unschedulable", FIRST),
        (60, "Unschedulable", AFTER),
        (3600, "SchedulingGated", FIRST),
        (None, "Unschedulable", FIRST),
    ],
)
def test_a_pod_without_a_node_makes_others_give_way_after_a_minute(seconds, reason, expected):
    pod = waiting(seconds, reason)
    assert paced(running(), pod, live=SURGING)[0] == expected


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (deployment(surge=0, updated=1), AFTER),  # the others still must
        (deployment(surge=0, observed=0), AFTER),
        (deployment(surge=0), FIRST),
        (deployment(surge=1, updated=1, existing=3), FIRST),
        (deployment(surge="25%"), FIRST),
        ({"metadata": {}, "spec": {}}, FIRST),
    ],
)
def test_they_give_way_until_the_rollout_is_over(live, expected):
    assert paced(live=live)[0] == expected


@pytest.mark.parametrize(
    ("pod", "makes_room"),
    [
        (
            {
                "message": "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 Insufficient amd.com/gpu."
            },
            True,
        ),
        ({"message": "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."}, False),
        ({"message": "0/2 nodes are available: 2 Insufficient example.com/other."}, False),
        ({"gpus": "2"}, False),
        ({"deletionTimestamp": "t"}, False),
    ],
)
def test_nobody_makes_room_for_a_pod_that_would_not_start_in_its_place(pod, makes_room):
    pod = waiting(**pod)
    assert paced(pod, running(), live=SURGING)[0] == (AFTER if makes_room else FIRST)
    assert paced(pod, live=SURGING)[0] == FIRST, "there is nobody to make room"


@pytest.mark.parametrize(
    ("wanted", "makes_room"),
    [("100Gi", True), ("102400Mi", True), ("96636764160", True), ("110Gi", False)],
)
def test_amounts_are_compared_however_they_are_written(wanted, makes_room):
    lacking = "0/2 nodes are available: 2 Insufficient amd.com/gpu, 2 Insufficient memory."
    new, old = waiting(message=lacking), running()
    for pod, memory in ((new, wanted), (old, "100Gi")):
        pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = memory
    assert paced(new, old, live=SURGING)[0] == (AFTER if makes_room else FIRST)


def still(replicas, seconds):
    live = deployment(surge=0, replicas=replicas, existing=replicas, updated=0)
    changed = clock.stamp(ago(seconds))
    live["status"]["conditions"] = [{"type": "Progressing", "status": "True", "lastUpdateTime": changed}]
    return live


def ready(**metadata):
    pod = running(**metadata)
    return pod | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def evicted():
    pod = running(creationTimestamp="2026-01-01T00:00:00Z")
    return pod | {"status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}]}}


@pytest.mark.parametrize(
    ("pods", "replicas", "seconds", "unavailable"),
    [
        ([ready(), ready()], 3, 3600, 2),
        ([ready(), ready()], 3, 59, 1),  # something has just changed
        ([ready(), running(creationTimestamp="2026-01-01T00:00:00Z")], 3, 3600, 1),  # a successor starts
        ([ready(), ready(deletionTimestamp="t")], 3, 3600, 1),  # the place of one that ends is not free yet
        ([ready(), ready(), ready()], 3, 3600, 1),  # it came on top
        ([ready()], 2, 3600, 1),  # one is always left
        ([ready(), ready(), evicted()], 3, 3600, 2),  # it has neither a place nor a successor
    ],
)
def test_replicas_that_have_no_node_keep_no_rollout_from_going_on(pods, replicas, seconds, unavailable):
    found = paced(*pods, waiting(), live=still(replicas, seconds))[0]
    assert found == bounds(0, unavailable)


QUOTA = (
    'pods "x-prefill-a-b" is forbidden: exceeded quota: gpus, '
    "requested: requests.amd.com/gpu=1,pods=1, used: requests.amd.com/gpu=8,pods=2, limited: requests.amd.com/gpu=8,pods=2"
)


@pytest.mark.parametrize(
    ("seconds", "message", "gpus", "makes_room"),
    [
        (60, QUOTA, "1", True),
        (59, QUOTA, "1", False),
        (None, QUOTA, "1", False),
        (60, QUOTA, "2", False),
        (60, QUOTA.replace("limited: requests.amd.com/gpu=8", "limited: requests.amd.com/gpu=6"), "1", False),
        (60, QUOTA.replace("requests.amd.com/gpu", "requests.storage"), "1", False),
        (60, "violates PodSecurity", "1", False),
    ],
)
def test_a_pod_that_a_full_quota_refuses_makes_another_one_give_way_after_a_minute(
    seconds, message, gpus, makes_room
):
    live = deployment(surge=1, updated=0)
    live["spec"]["template"] = {"spec": asking(gpus)}
    refusal = Refusal(message, None if seconds is None else ago(seconds))
    found = paced(running(), running(), live=live, refusal=refusal)[0]
    assert found == (AFTER if makes_room else FIRST)
    assert paced(live=live, refusal=refusal)[0] == FIRST


def test_a_pod_that_has_ended_gives_nothing_free():
    assert rollout.makes_room_at(None, [waiting(), running()])
    assert not rollout.makes_room_at(None, [waiting(), evicted()])
    assert paced(waiting(), evicted(), live=SURGING)[0] == FIRST


def test_a_pod_that_runs_has_a_node_whatever_its_scheduler_said():
    pod = waiting()
    assert rollout.waiting_in_vain([pod, waiting(0)], NOW) == 1
    pod["status"]["phase"] = "Running"
    assert rollout.waiting_in_vain([pod], NOW) == 0


def test_when_to_look_again():
    assert rollout.seconds_left([waiting(20), running(), waiting()], NOW) == [41.0]


def test_fields_that_are_set_are_taken():
    assert paced(waiting(), running(), max_surge=2, max_unavailable=3)[0] == bounds(2, 3)
    assert paced(waiting(), running(), live=SURGING, max_unavailable=3)[0] == bounds(0, 3)
    assert paced(max_unavailable=3)[0] == bounds(1, 3)


def test_a_deployment_is_paused_once_it_has_pods_and_stays_so_without_them():
    lost = deployment(surge=1, existing=0, updated=0)
    is_paused = [
        paced(pause="Enabled", live=live)[1] for live in (None, lost, deployment(surge=1), lost | PAUSED)
    ]
    assert is_paused == [False, False, True, True]
    assert not paced(live=lost | PAUSED)[1]


@pytest.mark.parametrize(
    ("spec", "partition"), [({}, 0), ({"partition": 2}, 2), ({"pause": "Enabled", "partition": 1}, 5)]
)
def test_a_stateful_set_keeps_ordinals(spec, partition):
    made = rollout.of_stateful_set(DecodeRolloutSpec(**spec), 5)
    assert made["updateStrategy"]["rollingUpdate"] == {"partition": partition}


def stateful_set(updated):
    status = {"observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "updatedReplicas": updated}
    return {"metadata": {"generation": 1}, "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("updated", "kept", "is_paused", "reason"),
    [
        (1, 2, False, "AllReady"),
        (0, 2, False, "RolloutInProgress"),
        (0, 9, False, "AllReady"),
        (2, 0, True, "RolloutPaused"),
        (3, 0, True, "AllReady"),
    ],
)
def test_what_a_role_tells_of_it(updated, kept, is_paused, reason):
    found = roles.role(
        Wanted("DecodeReady", 3, RolloutSpec(pause="Enabled" if is_paused else "Disabled"), kept),
        stateful_set(updated),
        [],
        NOW,
    )
    assert found.condition.reason == reason


@pytest.mark.parametrize(
    ("named", "wanted", "is_ready"),
    [("new", "new", True), ("old", "new", False), (None, "new", True), ("old", "", True)],
)
def test_a_role_is_not_ready_for_what_is_only_being_written(named, wanted, is_ready):
    live = stateful_set(3)
    live["metadata"]["annotations"] = {ANNOTATION_REVISION: named} if named else None
    assert roles.role(Wanted("DecodeReady", 3, revision=wanted), live, [], NOW).is_ready == is_ready


def test_what_was_late_before_is_not_late_with_what_is_only_being_written():
    live = stateful_set(3)
    live["metadata"]["annotations"] = {ANNOTATION_REVISION: "old"}
    condition = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "late"}
    live["status"]["conditions"] = [condition]
    for wanted, late in (("old", "late"), ("new", "")):
        assert roles.role(Wanted("PrefillReady", 3, revision=wanted), live, [], NOW).late == late


PROBED = {"spec": {"containers": [{"startupProbe": {"periodSeconds": 5, "failureThreshold": 60}}, {}]}}


@pytest.mark.parametrize(
    ("seconds", "hash_", "is_ready", "expected"),
    [
        (900, "new", False, ""),
        (901, "new", False, "pod p has not been ready for 900 s"),
        (901, "old", False, ""),
        (901, "new", True, ""),
        (None, "new", False, ""),
    ],
)
def test_a_new_pod_of_a_stateful_set_that_does_not_get_ready(seconds, hash_, is_ready, expected):
    live = {"spec": {"template": PROBED}, "status": {"updateRevision": "new"}}
    ready = {"type": "Ready", "status": str(is_ready)}
    if seconds is not None:
        ready["lastTransitionTime"] = clock.stamp(ago(seconds))
    created = {"creationTimestamp": clock.stamp(NOW - timedelta(days=3))} if seconds is not None else {}
    labels = {"controller-revision-hash": hash_}
    pod = {"metadata": {"name": "p", "labels": labels, **created}, "status": {"conditions": [ready]}}
    assert rollout.late(RolloutSpec(), live, [pod], NOW) == expected
    assert rollout.late(RolloutSpec(), None, [pod], NOW) == ""
    pod["metadata"]["deletionTimestamp"] = "t"
    assert rollout.late(RolloutSpec(), live, [pod], NOW) == ""


PATIENCE = timedelta(seconds=60)


def only(revision, *, replicas=1, ready=1, gap=None, partition=0):
    annotations = {ANNOTATION_REVISION: revision} | ({gaps.ANNOTATION_GAP: clock.stamp(gap)} if gap else {})
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"replicas": replicas, "updateStrategy": strategy},
        "status": {"readyReplicas": ready},
    }


def partition(made):
    return made["spec"]["updateStrategy"]["rollingUpdate"]["partition"]


def announced(made):
    return made["metadata"]["annotations"].get(gaps.ANNOTATION_GAP)


def rolling(revision="new", *, replicas=3, ready=3, updated=3, current="b", observed=2):
    """A StatefulSet of the API server; its rollout is over unless something else is said."""
    live = only(revision, replicas=replicas, ready=ready)
    live["metadata"]["generation"] = 2
    live["status"] |= {
        "observedGeneration": observed,
        "replicas": replicas,
        "updatedReplicas": updated,
        "currentRevision": current,
        "updateRevision": "b",
    }
    return live


WANTED = only("new")


@pytest.mark.parametrize(
    "live",
    [
        rolling("old"),
        rolling(observed=1),
        rolling(current="a"),
        rolling(updated=2),
        rolling(current="a", replicas=2, ready=1),
    ],
    ids=["told of no rollout yet", "not seen yet", "under way", "going back", "one of two serves"],
)
def test_scaled_to_one_in_the_middle_of_a_rollout_all_stay_until_it_is_over(live):
    kept = gaps.kept_up(WANTED, live, [waiting(59)], NOW)
    assert kept["spec"]["replicas"] == live["spec"]["replicas"]
    assert kept | {"spec": kept["spec"] | {"replicas": 1}} == WANTED


@pytest.mark.parametrize(
    ("wanted", "live"),
    [
        (WANTED, None),
        (WANTED, rolling()),
        (WANTED, rolling(current="a", replicas=1)),
        (WANTED, rolling(current="a", ready=0)),
        (only("new", replicas=2), rolling(current="a")),
        (only("new", partition=1), rolling(current="a")),
        (WANTED, only("new", replicas=3, ready=0)),
    ],
    ids=["none", "over", "one already", "nobody serves", "two stay", "paused", "no status"],
)
def test_nobody_stays_longer_than_that(wanted, live):
    assert gaps.kept_up(wanted, live, [], NOW) is wanted


@pytest.mark.parametrize(("seconds", "is_kept"), [(59, True), (60, False), (None, True)])
def test_where_a_rollout_waits_for_pods_that_are_refused_scaling_to_one_goes_on(seconds, is_kept):
    live = rolling(current="a", replicas=2, ready=1)
    refusal = Refusal("exceeded quota", None if seconds is None else ago(seconds))
    assert (gaps.kept_up(WANTED, live, [], NOW, refusal) is not WANTED) == is_kept


def test_where_a_rollout_waits_for_a_pod_without_a_node_scaling_to_one_goes_on_and_announces_the_gap():
    live = rolling(current="a", replicas=2, ready=1)
    pods = [running(labels={LABEL_REVISION: "old"}), waiting(60, labels={LABEL_REVISION: "new"})]
    made = gaps.announced(gaps.kept_up(WANTED, live, pods, NOW), live, pods, NOW)
    assert (made["spec"]["replicas"], partition(made)) == (1, 1)
    assert announced(made) == clock.stamp(NOW + PATIENCE)


def test_the_only_decode_pod_waits_from_the_change_on():
    made = gaps.announced(WANTED, only("old"), [], NOW)
    assert partition(made) == 1
    assert announced(made) == clock.stamp(NOW + PATIENCE)
    live = made | {"status": {"readyReplicas": 1}}
    later = NOW + PATIENCE - timedelta(seconds=1)
    assert gaps.announced(WANTED, live, [], later) == made, "it is counted from the change"
    assert gaps.begins_at(DecodeRolloutSpec(), live, [], later) == NOW + PATIENCE
    assert gaps.announced(WANTED, live, [], NOW + PATIENCE) is WANTED
    assert gaps.begins_at(DecodeRolloutSpec(), live, [], NOW + PATIENCE) is None
    assert partition(gaps.announced(only("third"), live, [], later)) == 1, "another change is announced anew"


def test_a_clock_that_was_ahead_keeps_nobody_waiting():
    live = only("new", gap=NOW + timedelta(hours=1), partition=1)
    made = gaps.announced(WANTED, live, [], NOW)
    assert announced(made) == clock.stamp(NOW + PATIENCE)


@pytest.mark.parametrize(
    "live",
    [
        None,
        WANTED,
        only("old", ready=0),
        only("old") | {"metadata": {}},
        only("old") | {"status": {}},
    ],
)
def test_nobody_waits_where_no_engine_would_go(live):
    assert gaps.announced(WANTED, live, [], NOW) is WANTED


def test_of_several_decode_pods_others_serve():
    wanted = only("new", replicas=2)
    assert gaps.announced(wanted, only("old"), [], NOW) is wanted
    assert gaps.begins_at(DecodeRolloutSpec(), only("x", replicas=2, gap=NOW + PATIENCE), [], NOW) is None


@pytest.mark.parametrize(
    ("spec", "live", "pod", "is_told"),
    [
        ({}, {}, {}, True),
        ({"max_surge": 1}, {}, {}, False),
        ({}, {"replicas": 2}, {}, False),
        ({}, {"surge": 0}, {}, False),  # it has begun, and is told so
        ({}, {}, {"gpus": "2"}, False),
    ],
)
def test_the_only_prefill_pod_makes_room_after_the_patience(spec, live, pod, is_told):
    live = deployment(**{"surge": 1, "replicas": 1, **live})
    found = gaps.begins_at(PrefillRolloutSpec(**spec), live, [waiting(20, **pod), running()], NOW)
    assert found == (ago(20) + PATIENCE if is_told else None)
