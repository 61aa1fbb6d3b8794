"""A rollout that leaves a role without any engine is announced, and waits."""

from datetime import timedelta

import pytest

from eldr.contract import LABEL_REVISION
from eldr_operator import clock
from eldr_operator.conditions import Refusal
from eldr_operator.models import DecodeRolloutSpec, PrefillRolloutSpec
from eldr_operator.workloads import gaps
from eldr_operator.workloads.revisions import ANNOTATION_REVISION
from tests.unit.operator.builders import NOW, ago
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


def partition(made):
    return made["spec"]["updateStrategy"]["rollingUpdate"]["partition"]


def announced(made):
    return made["metadata"]["annotations"].get(gaps.ANNOTATION_GAP)


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


WANTED = stateful_set("new")


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
        (stateful_set("new", replicas=2), rolling(current="a")),
        (stateful_set("new", partition=1), rolling(current="a")),
        (WANTED, stateful_set("new", replicas=3, ready=0)),
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
    made = gaps.announced(WANTED, stateful_set("old"), [], NOW)
    assert partition(made) == 1
    assert announced(made) == clock.stamp(NOW + PATIENCE)
    live = made | {"status": {"readyReplicas": 1}}
    later = NOW + PATIENCE - timedelta(seconds=1)
    assert gaps.announced(WANTED, live, [], later) == made, "it is counted from the change"
    assert gaps.begins_at(DecodeRolloutSpec(), live, [], later) == NOW + PATIENCE
    assert gaps.announced(WANTED, live, [], NOW + PATIENCE) is WANTED
    assert gaps.begins_at(DecodeRolloutSpec(), live, [], NOW + PATIENCE) is None
    assert partition(gaps.announced(stateful_set("third"), live, [], later)) == 1, (
        "another change is announced anew"
    )


def test_a_clock_that_was_ahead_keeps_nobody_waiting():
    live = stateful_set("new", gap=NOW + timedelta(hours=1), partition=1)
    made = gaps.announced(WANTED, live, [], NOW)
    assert announced(made) == clock.stamp(NOW + PATIENCE)


@pytest.mark.parametrize(
    "live",
    [
        None,
        WANTED,
        stateful_set("old", ready=0),
        stateful_set("old") | {"metadata": {}},
        stateful_set("old") | {"status": {}},
    ],
)
def test_nobody_waits_where_no_engine_would_go(live):
    assert gaps.announced(WANTED, live, [], NOW) is WANTED


def test_of_several_decode_pods_others_serve():
    wanted = stateful_set("new", replicas=2)
    assert gaps.announced(wanted, stateful_set("old"), [], NOW) is wanted
    assert (
        gaps.begins_at(DecodeRolloutSpec(), stateful_set("x", replicas=2, gap=NOW + PATIENCE), [], NOW)
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
def test_the_only_prefill_pod_makes_room_after_the_patience(spec, live, pod, is_told):
    live = deployment(**{"surge": 1, "replicas": 1, **live})
    found = gaps.begins_at(PrefillRolloutSpec(**spec), live, [waiting(20, **pod), running()], NOW)
    assert found == (ago(20) + PATIENCE if is_told else None)


@pytest.mark.parametrize(("gpus", "is_told"), [("1", True), ("2", False)])
def test_the_only_prefill_pod_makes_room_in_a_quota_too(gpus, is_told):
    live = deployment(surge=1, replicas=1)
    live["spec"]["template"] = {"spec": asking(gpus)}
    found = gaps.begins_at(PrefillRolloutSpec(), live, [running()], NOW, Refusal(QUOTA, ago(20)))
    assert found == (ago(20) + PATIENCE if is_told else None)
