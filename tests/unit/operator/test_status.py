"""What the status of a deployment says, and which Events follow from its changes."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest

from eldr_operator.conditions import SIGNATURES_REPORTED, Condition
from eldr_operator.drift.decide import Verdict
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.state import State
from eldr_operator.errors import Problem
from eldr_operator.kube import events
from eldr_operator.locality import activation
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.outcome import Look, Outcome
from eldr_operator.locality.router_view import RouterView, ready_routers, unready_routers
from eldr_operator.locality.routing import Table
from eldr_operator.status import status
from eldr_operator.unwritten import FOREIGN, REFUSED, UNAVAILABLE, Unwritten
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.revisions import Revision
from eldr_operator.workloads.roles import Role, Wanted, Workloads, role
from eldr_operator.workloads.rollback import Choice
from eldr_operator.workloads.updates import Plan
from tests.unit.operator.builders import NOW, POD, STATE, make_cr, make_set

READY = Role("PrefillReady", desired=2, ready=2, existing=2, available=2, is_current=True)
DECODE = replace(READY, type="DecodeReady")
NO_PREFILL = Role("PrefillReady", 2)
PLAN = Plan({}, Images("own"), (), updates=False, maker="me")
VIEW = RouterView(POD, policy="JSQ")


@dataclass(frozen=True)
class Seen:
    """What a status is made from."""

    running: Workloads
    outcome: Outcome
    problems: tuple[Problem, ...] = ()

    def but(self, problems=(), **changes):
        """Return it with other fields of either part."""
        of_workloads = {key: value for key, value in changes.items() if hasattr(self.running, key)}
        of_look = {key: value for key, value in changes.items() if hasattr(self.outcome.look, key)}
        others = {key: value for key, value in changes.items() if key not in of_workloads | of_look}
        outcome = replace(self.outcome, look=replace(self.outcome.look, **of_look), **others)
        return Seen(replace(self.running, **of_workloads), outcome, problems)

    def with_table(self, table):
        return self.but(memory=self.outcome.memory.with_table(table))

    def status(self, before=None, now=NOW, **spec):
        return status(make_cr(before, **spec), self.problems, self.running, self.outcome, now)

    def conditions(self, **spec):
        return conditions(self.status(**spec))


def conditions(made):
    return {found["type"]: f"{found['status']} {found['reason']}" for found in made["conditions"]}


def message(made, kind):
    (found,) = (each["message"] for each in made["conditions"] if each["type"] == kind)
    return found


SEEN = Seen(
    Workloads(prefill=READY, decode=DECODE, router=replace(READY, type="RouterReady"), plan=PLAN),
    Outcome(
        look=Look(
            [VIEW],
            Memory(),
            activation.decide(make_cr(), [], Table(), [VIEW], NOW),
            Observation(digest=None),
            State(),
            Verdict("Unknown", "NoSet", "no centroid set is active"),
        ),
        memory=Memory(),
        signatures=Condition(SIGNATURES_REPORTED, "True", "Reported", "they do"),
        wake_at=None,
        is_unfinished=False,
    ),
)
REVISION = Revision("x-decode-1", "decode", 1, "", {}, Images("own"), "me", "")


def runs(completed="", begun="", name=REVISION.name):
    """Return what decode engines are made from."""
    one = REVISION._replace(name=name, completed=completed)
    return {"decode": Choice(one, {name: one}, runs=name, begun=begun)}


def unwritten(reason):
    return {"unwritten": [Unwritten("Service", "x", reason, "Service x: no")]}


PROBLEM = Problem("InvalidSchedule", "spec.refit.schedule", "x", "write five fields")
CANNOT_PULL = Condition("", "False", "ImagePull", "container engine of pod x-0: ErrImagePull")
UNREADY = replace(DECODE, ready=1)
ROLLS = replace(READY, is_current=False)
LATE = replace(UNREADY, is_current=False, late="3600 s")
COMPLETED = "2030-01-01T00:00:00Z"


def test_conditions_of_a_deployment_that_is_well():
    assert SEEN.conditions() == {
        "Ready": "True AllReady",
        "Available": "True MinimumReplicasAvailable",
        "Progressing": "True RolloutComplete",
        "Degraded": "False AsExpected",
        "PrefillReady": "True AllReady",
        "DecodeReady": "True AllReady",
        "RouterReady": "True AllReady",
        "ConfigValid": "True Valid",
        "CentroidsActive": "False LearnedPrior",
        "SignaturesReported": "True Reported",
        "DriftDetected": "Unknown NoSet",
        "UpdateAvailable": "False UpToDate",
    }


@pytest.mark.parametrize(
    ("change", "kind", "expected", "ready"),
    [
        ({"prefill": NO_PREFILL}, "Available", "False NoPrefillEngine", "False NoPrefillEngine"),
        ({"decode": Role("DecodeReady", 2)}, "Available", "False NoDecodeEngine", "False NoDecodeEngine"),
        ({"routers": []}, "Available", "False NoRouter", "False NoRouter"),
        ({"decode": UNREADY}, "DecodeReady", "False PodsNotReady", "False PodsNotReady"),
        (
            {"decode": replace(UNREADY, trouble=CANNOT_PULL)},
            "DecodeReady",
            "False ImagePull",
            "False ImagePull",
        ),
        (
            {"prefill": replace(NO_PREFILL, trouble=CANNOT_PULL)},
            "Available",
            "False NoPrefillEngine",
            "False ImagePull",
        ),
        (
            {"decode": replace(LATE, trouble=CANNOT_PULL)},
            "Progressing",
            "False ProgressDeadlineExceeded",
            "False ImagePull",
        ),
        (
            unwritten(REFUSED) | {"decode": replace(UNREADY, trouble=CANNOT_PULL)},
            "Progressing",
            "False ChildRefused",
            "False ChildRefused",
        ),
        ({"problems": [PROBLEM]}, "ConfigValid", "False InvalidSchedule", "False InvalidSchedule"),
        (unwritten(REFUSED), "ConfigValid", "False ChildRefused", "False ChildRefused"),
        (unwritten(UNAVAILABLE), "ConfigValid", "True Valid", "False ChildUnavailable"),
        ({"decode": replace(DECODE, kept=1)}, "Progressing", "True RolloutComplete", "True AllReady"),
        (
            {"decode": UNREADY, "revisions": runs()},
            "Progressing",
            "True RolloutInProgress",
            "False PodsNotReady",
        ),
        (
            {"decode": replace(UNREADY, late="3600 s"), "revisions": runs(COMPLETED)},
            "Progressing",
            "True RolloutComplete",
            "False PodsNotReady",
        ),
        (
            {"decode": UNREADY, "revisions": runs(COMPLETED, begun="2030-01-01T00:00:01Z")},
            "Progressing",
            "True RolloutInProgress",
            "False PodsNotReady",
        ),
        (
            {"decode": replace(DECODE, available=1), "revisions": runs()},
            "Progressing",
            "True RolloutInProgress",
            "True AllReady",
        ),
        (
            {"plan": PLAN._replace(kept_back=("decode",))},
            "UpdateAvailable",
            "True NewerTemplates",
            "True AllReady",
        ),
        ({"unpaired": ["x-decode-1"]}, "Degraded", "True NoMatchingPrefill", "True AllReady"),
        ({"mixed_images": "sha256:1 in a"}, "Degraded", "True MixedImages", "True AllReady"),
    ],
)
def test_conditions(change, kind, expected, ready):
    found = SEEN.but(**change).conditions()
    assert (found[kind], found["Ready"]) == (expected, ready)


def test_of_several_things_that_keep_a_rollout_the_first_of_these_is_told():
    everything = {}
    for change, expected in (
        ({}, "True RolloutComplete"),
        ({"revisions": {"decode": Choice(REVISION, {}, asked="x-decode-2")}}, "True RevisionHeld"),
        ({"prefill": ROLLS}, "True RolloutInProgress"),
        ({"prefill": replace(ROLLS, is_paused=True)}, "Unknown RolloutPaused"),
        ({"decode": LATE}, "False ProgressDeadlineExceeded"),
        ({"revisions": {"decode": Choice(None, {}, failed="x-decode-2")}}, "False RolledBack"),
        (unwritten(FOREIGN), "False ForeignConflict"),
        (unwritten(UNAVAILABLE), "False ChildUnavailable"),
        (unwritten(REFUSED), "False ChildRefused"),
    ):
        everything |= change
        assert SEEN.but(**change).conditions()["Progressing"] == expected
        assert SEEN.but(**everything).conditions()["Progressing"] == expected


def test_nothing_observed_anew_is_nothing_written_anew():
    first = SEEN.status()
    assert SEEN.status(first, NOW + timedelta(hours=1)) == first


def test_transition_times_move_only_when_status_flips():
    later = NOW + timedelta(hours=1)
    second = SEEN.but(decode=UNREADY).status(SEEN.status(), later)
    times = transition_times(second)
    assert times["DecodeReady"] == times["Ready"] == "2026-11-21T13:00:00Z"
    assert times["PrefillReady"] == times["Available"] == "2026-11-21T12:00:00Z"
    other_reason = SEEN.but(decode=replace(UNREADY, trouble=CANNOT_PULL))
    assert transition_times(other_reason.status(second, later + timedelta(hours=1))) == times


def transition_times(status):
    return {found["type"]: found["lastTransitionTime"] for found in status["conditions"]}


def test_events_only_for_changes():
    first = SEEN.status()
    assert [event.reason for event in events.of_deployment({}, first)] == ["Created", "Ready"]
    assert happened(first, first) == []
    table = Table(epoch=1, active=make_set("f"), activated_at=NOW, reason="Accepted")
    second = SEEN.with_table(table).status(first)
    (activated,) = events.of_deployment(first, second)
    assert activated[1:] == (
        "CentroidsActivated",
        "epoch 1: routers use the set of EldrFit f (Accepted)",
    )
    lost = SEEN.but(signatures=Condition(SIGNATURES_REPORTED, "False", "Missing", "all of them"))
    assert happened(first, lost.status(first)) == ["Warning SignaturesMissing"]
    down = SEEN.but(routers=[], problems=[PROBLEM]).status(second)
    assert {*happened(second, down)} == {"Warning NoRouter", "Warning InvalidSchedule"}


def workload(replicas=0, ready=0, updated=0, observed=1, **more):
    counts = {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": updated}
    return {"metadata": {"generation": 1}, "status": {"observedGeneration": observed, **counts, **more}}


@pytest.mark.parametrize(
    ("live", "ready"),
    [
        (None, False),
        (workload(2, 2, 2), True),
        (workload(2, 2, 2, observed=0), False),
        (workload(3, 3, 2), False),
        (workload(2, 2, 1), False),
        (workload(2, 1, 2), False),
    ],
)
def test_role_readiness(live, ready):
    assert role(Wanted("DecodeReady", 2), live, [], NOW).is_ready is ready


def pod(name="p", *, labels=None, ready=True, key="initContainerStatuses", deleting=False, **status_):
    container = {
        "name": "router",
        "ready": ready,
        "state": {"running": {"startedAt": "2026-11-21T11:00:00Z"}},
    }
    metadata = {"name": name, "labels": labels or {"eldr.dev/router": "true"}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-21T11:30:00Z"
    return {"metadata": metadata, "status": {"podIP": "10.0.0.1", key: [container]} | status_}


def test_ready_routers():
    pods = [
        pod("b"),
        pod("a", key="containerStatuses"),
        pod("c", ready=False),
        pod("d", deleting=True),
        pod("e", podIP=""),
        pod("f", labels={"eldr.dev/role": "decode"}),
        pod("g", phase="Failed"),
    ]
    assert [found.name for found in ready_routers(pods)] == ["a", "b"]


def happened(before, after):
    return [f"{event.type} {event.reason}" for event in events.of_deployment(before, after)]


def test_a_new_deployment_whose_pods_do_not_start_has_events():
    pulls = replace(NO_PREFILL, trouble=CANNOT_PULL)
    first = SEEN.but(prefill=pulls, router=replace(pulls, type="RouterReady"), routers=[])
    made = first.status()
    assert happened({}, made) == ["Normal Created", "Warning ImagePull"], "and not twice"
    assert happened(made, made) == []
    refused = Condition("", "False", "PodsRefused", "exceeded quota")
    after = first.but(decode=Role("DecodeReady", 2, trouble=refused)).status(made)
    assert "Warning PodsRefused" in happened(made, after)


def test_a_pod_that_starts_slowly_or_crashes_in_a_loop_floods_nothing():
    ready = SEEN.status()
    starts = SEEN.but(decode=UNREADY).status(ready)
    assert happened(ready, starts) == [], "it may be a rollout, or a probe that failed once"
    crashed = Condition("", "False", "CrashLoop", "container engine of pod x-0: CrashLoopBackOff")
    crashes = SEEN.but(decode=replace(UNREADY, trouble=crashed)).status(starts)
    assert happened(starts, crashes) == ["Warning CrashLoop"]
    other = replace(UNREADY, trouble=crashed._replace(message="another exit code"))
    assert happened(crashes, SEEN.but(decode=other).status(crashes)) == []


def test_scaling_and_a_policy_have_events():
    first = SEEN.status()
    more = replace(DECODE, desired=3, ready=3, existing=3, available=3)
    scaled = SEEN.but(decode=more, scaled_by={"decode": "keda"}, spec_replicas={"decode": 2})
    (event,) = events.of_deployment(first, after := scaled.status(first))
    assert event == events.Event("Normal", "Scaled", "decode: from 2 to 3 replicas, by keda")
    (event,) = events.of_deployment(after, scaled.but(spec_replicas={"decode": 5}).status(after))
    assert (event.type, event.reason) == ("Warning", "SpecReplicasIgnored")
    assert "spec.decode.replicas 5 is ignored: keda has set 3" in event.message
    mixed = SEEN.but(routers=[VIEW, replace(VIEW, policy="ELDR")]).status(first)
    assert happened(first, mixed) == [], "until all routers have it"
    changed = SEEN.but(routers=[replace(VIEW, policy="ELDR")]).status(mixed)
    assert happened(mixed, changed) == ["Normal PolicyChanged"]


def test_a_rollout_has_a_beginning_and_an_end():
    new = runs(name="x-decode-2")
    before = SEEN.but(revisions=runs()).status()
    rolls = SEEN.but(revisions=new, decode=replace(DECODE, is_current=False)).status(before)
    assert happened(before, rolls) == ["Normal RolloutStarted"]
    assert events.completed(rolls) is None
    over = SEEN.but(revisions=new).status(rolls)
    assert events.completed(over).reason == "RolloutCompleted"


REFUSED_BY_API = "pods: 401: Unauthorized; routing: 401: Unauthorized"


@pytest.mark.parametrize(
    ("decode", "serves"),
    [
        ([], False),
        ([{"name": "a", "healthy": False}, {"name": "b", "healthy": True}], True),
        ([{"name": "a", "healthy": False}], False),
        ([{"name": "a"}], True),
        ("odd", True),
    ],
    ids=str,
)
def test_a_router_that_reaches_no_decode_engine_does_not_serve(decode, serves):
    view = RouterView.of(POD, STATE | {"decode": decode})
    assert view.serves == serves
    found = SEEN.but(routers=[view], can_serve=serves).conditions()
    assert found["Available"] == ("True MinimumReplicasAvailable" if serves else "False NoDecodeEngine")
    assert found["Ready"].startswith(str(serves))


@pytest.mark.parametrize("asked", ["Sidecar", "Deployment"])
@pytest.mark.parametrize(
    ("is_sidecar", "available", "degraded"),
    [
        (True, "False NoPrefillEngine", "False AsExpected"),
        (False, "True MinimumReplicasAvailable", "True NoPrefillEngine"),
    ],
)
def test_routers_of_their_own_serve_without_a_prefill_engine(asked, is_sidecar, available, degraded):
    """They send requests whole to decode engines, also while sidecars are asked for and not made yet; sidecars are as ready as their pods."""
    view = replace(VIEW, pod=replace(POD, is_beside_engine=is_sidecar))
    lost = SEEN.but(prefill=Role("PrefillReady", 2, existing=2, is_current=True), routers=[view])
    found = lost.conditions(router={"placement": asked})
    assert (found["Available"], found["Degraded"]) == (available, degraded)
    assert found["Ready"].startswith("False")


def test_a_router_that_does_not_answer_the_operator_may_serve_clients():
    assert RouterView(POD, problem="does not answer").serves


@pytest.mark.parametrize(
    ("problem", "is_refused"),
    [
        (REFUSED_BY_API, True),
        ("routing: 403: configmaps is forbidden", True),
        ("the worker file; pods: 401: Unauthorized", True),
        ("pods: 500: pods: 401: it is said elsewhere", False),
        ("pods: the API server cannot be reached", False),
        ("ConfigMap x-routing is gone", False),
        (None, False),
    ],
)
def test_a_router_that_the_api_server_refuses_is_not_ready(problem, is_refused):
    view = RouterView.of(POD, STATE | {"problem": problem})
    assert view.is_unauthorized == is_refused
    made = SEEN.but(unauthorized=[view] * is_refused).status()
    found = conditions(made)
    assert (
        found["RouterReady"]
        == found["Ready"]
        == ("False RouterUnauthorized" if is_refused else "True AllReady")
    )
    assert found["Available"].startswith("True"), "while it reaches an engine, clients are served"
    assert ("kubectl delete pod r0" in message(made, "Ready")) == is_refused


def test_routers_that_have_run_for_a_while_without_being_ready_are_asked():
    started = [
        pod("a", ready=False),
        pod("b"),
        pod("c", ready=False, deleting=True),
        pod("d", ready=False, phase="Failed"),
    ]
    assert [each.name for each in unready_routers(started, NOW)] == ["a"]
    early = datetime.fromisoformat("2026-11-21T11:00:29Z")
    assert unready_routers(started, early) == []
