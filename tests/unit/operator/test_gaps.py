"""A rollout that leaves a role without any engine is announced, and waits."""

from datetime import timedelta

import pytest

from eldr.contract import LABEL_REVISION
from eldr_operator import clock
from eldr_operator.conditions import Refusal
from eldr_operator.models import DecodeRolloutSpec, PrefillRolloutSpec
from eldr_operator.workloads import gaps
from eldr_operator.workloads.revisions import ANNOTATION_REVISION
from tests.unit.operator.test_rollout import QUOTA, asking, deployment, running, waiting

PATIENCE = timedelta(seconds=60)


def stateful_set(revision, *, replicas=1, ready=1, gap=None, partition=0):
    annotations = {ANNOTATION_REVISION: revision} | ({gaps.ANNOTATION_GAP: clock.stamp(gap)} if gap else {})
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"replicas": replicas, "updateStrategy": strategy},
        "status": {"readyReplicas": ready},
    }


def rolling(revision="new", *, replicas=3, ready=3, updated=3, current="b", observed=2):
    """A StatefulSet of the API server; its rollout is over unless something else is said."""
    live = stateful_set(revision, replicas=replicas, ready=ready)
    live["metadata"]["generation"] = 2
    live["status"] |= {
        "observedGeneration": observed,
        "replicas": replicas,
        "updatedReplicas": updated,
        "currentRevision": current,
        "updateRevision": "b",
    }
    return live


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
def test_scaled_to_one_in_the_middle_of_a_rollout_all_stay_until_it_is_over(live, now):
    wanted = stateful_set("new")
    kept = gaps.kept_up(wanted, live, [waiting(now - PATIENCE + timedelta(seconds=1))], now)
    assert kept["spec"]["replicas"] == live["spec"]["replicas"]
    assert kept | {"spec": kept["spec"] | {"replicas": 1}} == wanted


@pytest.mark.parametrize(
    ("wanted", "live"),
    [
        (stateful_set("new"), None),
        (stateful_set("new"), rolling()),
        (stateful_set("new"), rolling(current="a", replicas=1)),
        (stateful_set("new"), rolling(current="a", ready=0)),
        (stateful_set("new", replicas=2), rolling(current="a")),
        (stateful_set("new", partition=1), rolling(current="a")),
        (stateful_set("new"), stateful_set("new", replicas=3, ready=0)),
    ],
    ids=["none", "over", "one already", "nobody serves", "two stay", "paused", "no status"],
)
def test_nobody_stays_longer_than_that(wanted, live, now):
    assert gaps.kept_up(wanted, live, [], now) is wanted


@pytest.mark.parametrize(("seconds", "is_kept"), [(59, True), (60, False), (None, True)])
def test_where_a_rollout_waits_for_pods_that_are_refused_scaling_to_one_goes_on(now, seconds, is_kept):
    wanted, live = stateful_set("new"), rolling(current="a", replicas=2, ready=1)
    refusal = Refusal("exceeded quota", None if seconds is None else now - timedelta(seconds=seconds))
    assert (gaps.kept_up(wanted, live, [], now, refusal) is not wanted) == is_kept


def test_where_a_rollout_waits_for_a_pod_without_a_node_scaling_to_one_goes_on_and_announces_the_gap(now):
    wanted, live = stateful_set("new"), rolling(current="a", replicas=2, ready=1)
    pods = [running(labels={LABEL_REVISION: "old"}), waiting(now - PATIENCE, labels={LABEL_REVISION: "new"})]
    made = gaps.announced(gaps.kept_up(wanted, live, pods, now), live, pods, now)
    assert (made["spec"]["replicas"], partition(made)) == (1, 1)
    assert made["metadata"]["annotations"][gaps.ANNOTATION_GAP] == clock.stamp(now + PATIENCE)


def partition(made):
    return made["spec"]["updateStrategy"]["rollingUpdate"]["partition"]


def test_the_only_decode_pod_waits_from_the_change_on(now):
    made = gaps.announced(stateful_set("new"), stateful_set("old"), [], now)
    assert partition(made) == 1
    assert made["metadata"]["annotations"][gaps.ANNOTATION_GAP] == clock.stamp(now + PATIENCE)
    live = made | {"status": {"readyReplicas": 1}}
    later = now + PATIENCE - timedelta(seconds=1)
    assert gaps.announced(stateful_set("new"), live, [], later) == made, "it is counted from the change"
    assert gaps.begins_at(DecodeRolloutSpec(), live, [], later) == now + PATIENCE
    wanted = stateful_set("new")
    assert gaps.announced(wanted, live, [], now + PATIENCE) is wanted
    assert gaps.begins_at(DecodeRolloutSpec(), live, [], now + PATIENCE) is None
    assert partition(gaps.announced(stateful_set("third"), live, [], later)) == 1, (
        "another change is announced anew"
    )


def test_a_clock_that_was_ahead_keeps_nobody_waiting(now):
    live = stateful_set("new", gap=now + timedelta(hours=1), partition=1)
    made = gaps.announced(stateful_set("new"), live, [], now)
    assert made["metadata"]["annotations"][gaps.ANNOTATION_GAP] == clock.stamp(now + PATIENCE)


@pytest.mark.parametrize(
    "live",
    [
        None,
        stateful_set("new"),
        stateful_set("old", ready=0),
        stateful_set("old") | {"metadata": {}},
        stateful_set("old") | {"status": {}},
    ],
)
def test_nobody_waits_where_no_engine_would_go(now, live):
    wanted = stateful_set("new")
    assert gaps.announced(wanted, live, [], now) is wanted


def test_of_several_decode_pods_others_serve(now):
    wanted = stateful_set("new", replicas=2)
    assert gaps.announced(wanted, stateful_set("old"), [], now) is wanted
    assert (
        gaps.begins_at(DecodeRolloutSpec(), stateful_set("x", replicas=2, gap=now + PATIENCE), [], now)
        is None
    )


@pytest.mark.parametrize(
    ("spec", "live", "pod", "is_told"),
    [
        ({}, {}, {}, True),
        ({"max_surge": 1}, {}, {}, False),
        ({}, {"replicas": 2}, {}, False),
        ({}, {"surge": 0}, {}, False),  # it has begun, and is told so
        ({}, {}, {"gpus": "2"}, False),
        ({}, {}, {"deletionTimestamp": "t"}, False),
    ],
)
def test_the_only_prefill_pod_makes_room_after_the_patience(now, spec, live, pod, is_told):
    since = now - timedelta(seconds=20)
    live = deployment(**{"surge": 1, "replicas": 1, **live})
    found = gaps.begins_at(PrefillRolloutSpec(**spec), live, [waiting(since, **pod), running()], now)
    assert found == (since + PATIENCE if is_told else None)


@pytest.mark.parametrize(("gpus", "is_told"), [("1", True), ("2", False)])
def test_the_only_prefill_pod_makes_room_in_a_quota_too(now, gpus, is_told):
    since = now - timedelta(seconds=20)
    live = deployment(surge=1, replicas=1)
    live["spec"]["template"] = {"spec": asking(gpus)}
    found = gaps.begins_at(PrefillRolloutSpec(), live, [running()], now, Refusal(QUOTA, since))
    assert found == (since + PATIENCE if is_told else None)
