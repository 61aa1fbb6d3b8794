from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest

from eldr import contract
from eldr_operator.conditions import SIGNATURES_REPORTED, Condition
from eldr_operator.drift.decide import Verdict
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.state import State
from eldr_operator.errors import Problem
from eldr_operator.kube import events
from eldr_operator.locality import activation
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.outcome import Look, Outcome
from eldr_operator.locality.router_view import RouterPod, RouterView, ready_routers, unready_routers
from eldr_operator.locality.routing import Table
from eldr_operator.status import status
from eldr_operator.unwritten import Unwritten
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.revisions import Revision
from eldr_operator.workloads.roles import Role, Wanted, Workloads, role
from eldr_operator.workloads.rollback import Choice
from eldr_operator.workloads.updates import Plan
from tests.unit.operator.builders import NOW, make_cr, make_fit, make_set, router

READY = Role("PrefillReady", desired=2, ready=2, existing=2, available=2, is_current=True)
DECODE = replace(READY, type="DecodeReady")


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

    def status(self, cr, now):
        return status(cr, self.problems, self.running, self.outcome, now)


@pytest.fixture
def seen():
    views = [RouterView(RouterPod("r0", "127.0.0.1", None), policy="JSQ")]
    decision = activation.decide(make_cr(), [], Table(), views, NOW)
    verdict = Verdict("Unknown", "NoSet", "no centroid set is active")
    outcome = Outcome(
        look=Look(views, Memory(), decision, Observation(digest=None), State(), verdict),
        memory=Memory(),
        signatures=Condition(SIGNATURES_REPORTED, "True", "Reported", "they do"),
        wake_at=None,
        is_unfinished=False,
    )
    running = Workloads(
        prefill=READY,
        decode=DECODE,
        router=replace(READY, type="RouterReady"),
        plan=Plan({}, Images("own"), (), updates=False, maker="me"),
    )
    return Seen(running, outcome)


def revision_of(completed="", begun=""):
    """Return what decode engines are made from."""
    one = Revision("x-decode-1", "decode", 1, "", {}, Images("own"), "me", "", completed)
    return {"decode": Choice(one, {one.name: one}, runs=one.name, begun=begun)}


def conditions(made):
    return {found["type"]: (found["status"], found["reason"]) for found in made["conditions"]}


PROBLEM = Problem("InvalidSchedule", "spec.refit.schedule", "x", "write five fields")


CANNOT_PULL = Condition("", "False", "ImagePull", "container engine of pod x-0: ErrImagePull")
REFUSED = Unwritten("Service", "x", "ChildRefused", "Service x: no")


@pytest.mark.parametrize(
    ("change", "kind", "expected", "ready"),
    [
        ({}, "Available", ("True", "MinimumReplicasAvailable"), ("True", "AllReady")),
        (
            {"prefill": Role("PrefillReady", 2)},
            "Available",
            ("False", "NoPrefillEngine"),
            ("False", "NoPrefillEngine"),
        ),
        (
            {"decode": Role("DecodeReady", 2)},
            "Available",
            ("False", "NoDecodeEngine"),
            ("False", "NoDecodeEngine"),
        ),
        ({"routers": []}, "Available", ("False", "NoRouter"), ("False", "NoRouter")),
        (
            {"decode": replace(DECODE, ready=1)},
            "DecodeReady",
            ("False", "PodsNotReady"),
            ("False", "PodsNotReady"),
        ),
        (
            {"decode": replace(DECODE, ready=1, trouble=Condition("", "False", "ImagePull", "pod"))},
            "DecodeReady",
            ("False", "ImagePull"),
            ("False", "ImagePull"),
        ),
        (
            {"prefill": Role("PrefillReady", 2, trouble=CANNOT_PULL)},
            "Available",
            ("False", "NoPrefillEngine"),
            ("False", "ImagePull"),
        ),
        (
            {"prefill": Role("PrefillReady", 2), "decode": replace(DECODE, ready=1, trouble=CANNOT_PULL)},
            "Available",
            ("False", "NoPrefillEngine"),
            ("False", "ImagePull"),
        ),
        (
            {"decode": replace(DECODE, ready=1, is_current=False, late="3600 s", trouble=CANNOT_PULL)},
            "Progressing",
            ("False", "ProgressDeadlineExceeded"),
            ("False", "ImagePull"),
        ),
        (
            {"decode": replace(DECODE, ready=1, is_current=False, late="3600 s")},
            "Progressing",
            ("False", "ProgressDeadlineExceeded"),
            ("False", "ProgressDeadlineExceeded"),
        ),
        (
            {"unwritten": [REFUSED], "decode": replace(DECODE, ready=1, trouble=CANNOT_PULL)},
            "Progressing",
            ("False", "ChildRefused"),
            ("False", "ChildRefused"),
        ),
        (
            {"prefill": replace(READY, is_current=False)},
            "PrefillReady",
            ("False", "RolloutInProgress"),
            ("False", "RolloutInProgress"),
        ),
        ({"problems": [PROBLEM]}, "ConfigValid", ("False", "InvalidSchedule"), ("False", "InvalidSchedule")),
        ({"unwritten": [REFUSED]}, "ConfigValid", ("False", "ChildRefused"), ("False", "ChildRefused")),
        ({"unwritten": [REFUSED]}, "Progressing", ("False", "ChildRefused"), ("False", "ChildRefused")),
        (
            {"unwritten": [Unwritten("EldrFit", "x", "ChildUnavailable", "EldrFit x: webhook down")]},
            "Progressing",
            ("False", "ChildUnavailable"),
            ("False", "ChildUnavailable"),
        ),
        ({}, "Progressing", ("True", "RolloutComplete"), ("True", "AllReady")),
        (
            {"prefill": replace(READY, is_current=False)},
            "Progressing",
            ("True", "RolloutInProgress"),
            ("False", "RolloutInProgress"),
        ),
        (
            {"prefill": replace(READY, is_current=False, is_paused=True)},
            "Progressing",
            ("Unknown", "RolloutPaused"),
            ("False", "RolloutPaused"),
        ),
        (
            {"decode": replace(DECODE, kept=1)},
            "Progressing",
            ("True", "RolloutComplete"),
            ("True", "AllReady"),
        ),
        (
            {"decode": replace(DECODE, ready=1), "revisions": revision_of()},
            "Progressing",
            ("True", "RolloutInProgress"),
            ("False", "PodsNotReady"),
        ),
        (
            {
                "decode": replace(DECODE, ready=1, late="3600 s"),
                "revisions": revision_of("2030-01-01T00:00:00Z"),
            },
            "Progressing",
            ("True", "RolloutComplete"),
            ("False", "PodsNotReady"),
        ),
        (
            {
                "decode": replace(DECODE, ready=1),
                "revisions": revision_of("2030-01-01T00:00:00Z", begun="2030-01-01T00:00:01Z"),
            },
            "Progressing",
            ("True", "RolloutInProgress"),
            ("False", "PodsNotReady"),
        ),
        (
            {"decode": replace(DECODE, ready=1, kept=1), "revisions": revision_of()},
            "Progressing",
            ("True", "RolloutInProgress"),
            ("False", "PodsNotReady"),
        ),
        (
            {"decode": replace(DECODE, available=1), "revisions": revision_of()},
            "Progressing",
            ("True", "RolloutInProgress"),
            ("True", "AllReady"),
        ),
        ({}, "UpdateAvailable", ("False", "UpToDate"), ("True", "AllReady")),
        (
            {"plan": Plan({}, Images("own"), (), updates=False, maker="me", kept_back=("decode",))},
            "UpdateAvailable",
            ("True", "NewerTemplates"),
            ("True", "AllReady"),
        ),
        ({}, "Degraded", ("False", "AsExpected"), ("True", "AllReady")),
        ({"unpaired": ["x-decode-1"]}, "Degraded", ("True", "NoMatchingPrefill"), ("True", "AllReady")),
        ({"mixed_images": "sha256:1 in a"}, "Degraded", ("True", "MixedImages"), ("True", "AllReady")),
    ],
)
def test_conditions(seen, change, kind, expected, ready):
    found = conditions(seen.but(**change).status(make_cr(), NOW))
    assert found[kind] == expected
    assert found["Ready"] == ready
    assert list(found) == [
        *(
            "Ready",
            "Available",
            "Progressing",
            "Degraded",
            "PrefillReady",
            "DecodeReady",
            "RouterReady",
            "ConfigValid",
            "CentroidsActive",
            "SignaturesReported",
            "DriftDetected",
            "UpdateAvailable",
        )
    ]


def test_ready_says_the_cause_and_what_it_does(seen):
    made = seen.but(prefill=Role("PrefillReady", 2, trouble=CANNOT_PULL)).status(make_cr(), NOW)
    ready = made["conditions"][0]
    assert ready["message"] == (
        "0 of 2 pods ready; container engine of pod x-0: ErrImagePull; "
        "no prefill engine is ready: requests cannot be served"
    )


def test_nothing_observed_anew_is_nothing_written_anew(seen):
    first = seen.status(make_cr(), NOW)
    assert seen.status(make_cr(first), NOW + timedelta(hours=1)) == first


def test_transition_times_move_only_when_status_flips(seen):
    first = seen.status(make_cr(), NOW)
    later = NOW + timedelta(hours=1)
    second = seen.but(decode=replace(DECODE, ready=1)).status(make_cr(first), later)
    times = transition_times(second)
    assert times["DecodeReady"] == times["Ready"] == "2026-11-21T13:00:00Z"
    assert times["PrefillReady"] == times["Available"] == "2026-11-21T12:00:00Z"
    other_reason = replace(DECODE, ready=1, trouble=Condition("", "False", "ImagePull", "pod"))
    third = seen.but(decode=other_reason).status(make_cr(second), later + timedelta(hours=1))
    assert transition_times(third) == times


def transition_times(status):
    return {found["type"]: found["lastTransitionTime"] for found in status["conditions"]}


def test_events_only_for_changes(seen):
    first = seen.status(make_cr(), NOW)
    assert [event.reason for event in events.of_deployment({}, first)] == ["Created", "Ready"]
    assert events.of_deployment(first, first) == []
    table = Table(epoch=1, active=make_set("f"), activated_at=NOW, reason="Accepted")
    second = seen.with_table(table).status(make_cr(first), NOW)
    (activated,) = events.of_deployment(first, second)
    assert (activated.reason, activated.message) == (
        "CentroidsActivated",
        "epoch 1: routers use the set of EldrFit f (Accepted)",
    )
    lost = seen.but(signatures=Condition(SIGNATURES_REPORTED, "False", "Missing", "all of them"))
    (warning,) = events.of_deployment(first, lost.status(make_cr(first), NOW))
    assert (warning.type, warning.reason) == ("Warning", "SignaturesMissing")
    down = seen.but(routers=[], problems=[PROBLEM]).status(make_cr(second), NOW)
    assert {event.reason for event in events.of_deployment(second, down)} == {"NoRouter", "InvalidSchedule"}


@pytest.mark.parametrize("pin", ["active", "nosuch"])
def test_a_set_that_harms_hides_no_pin_that_names_nothing(seen, pin):
    table = Table(epoch=1, active=make_set("active"), activated_at=NOW)
    cr, harm = make_cr(centroids={"pin": pin}), ("PriorDecays", "The active set harms")
    decision = activation.decide(cr, [make_fit("active")], table, [router(active="active")], NOW)
    verdict = Verdict("False", "Quiet", "", harm=harm)
    made = seen.with_table(table).but(decision=decision, verdict=verdict).status(cr, NOW)
    (found,) = (one for one in made["conditions"] if one["type"] == "CentroidsActive")
    assert (found["status"], found["reason"]) == ("True", "PriorDecays")
    assert ("there is no EldrFit nosuch here" in found["message"]) == (pin == "nosuch")


def workload(generation=1, observed=1, **counts):
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": observed, **counts}}


@pytest.mark.parametrize(
    ("reason", "told"),
    [("Quiet", "said"), ("Gathering", "another set serves; said")],
)
def test_a_drift_that_is_over_says_why(reason, told):
    def drift(status, reason):
        return {
            "conditions": [{"type": "DriftDetected", "status": status, "reason": reason, "message": "said"}]
        }

    found = events.of_deployment(drift("True", "Fitting"), drift("Unknown", reason))
    assert found == [events.Event("Normal", "DriftOver", told)]


@pytest.mark.parametrize(
    ("live", "ready"),
    [
        (None, False),
        (workload(replicas=2, readyReplicas=2, updatedReplicas=2), True),
        (workload(2, 1, replicas=2, readyReplicas=2, updatedReplicas=2), False),
        (workload(replicas=3, readyReplicas=3, updatedReplicas=2), False),
        (workload(replicas=2, readyReplicas=2, updatedReplicas=1), False),
        (workload(replicas=2, readyReplicas=1, updatedReplicas=2), False),
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
    ]
    assert [found.name for found in ready_routers(pods)] == ["a", "b"]


def test_troubles_are_stable():
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}
    crashed = pod("p", containerStatuses=[{"name": "engine", "state": waiting}])
    assert role(Wanted("DecodeReady", 1), workload(), [crashed], NOW).trouble == Condition(
        "DecodeReady",
        "False",
        "CrashLoop",
        "container engine of pod p: CrashLoopBackOff; see kubectl logs p -c engine --previous",
    )
    ended = {"terminated": {"exitCode": 1, "message": f"{contract.REFUSAL}enable_dbo=True: leave it off"}}
    refused = pod("p", containerStatuses=[{"name": "engine", "state": waiting, "lastState": ended}])
    assert role(Wanted("DecodeReady", 1), workload(), [refused], NOW).trouble == Condition(
        "DecodeReady", "False", "EngineRefused", "pod p: enable_dbo=True: leave it off"
    )
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes",
    }
    found = role(Wanted("DecodeReady", 1), workload(), [pod(conditions=[unschedulable])], NOW)
    assert found.trouble == Condition("DecodeReady", "False", "InsufficientCapacity", "pod p: 0/3 nodes")
    missing = unschedulable | {"message": '0/3 nodes: persistentvolumeclaim "c" not found'}
    found = role(Wanted("DecodeReady", 1), workload(), [pod(conditions=[missing])], NOW)
    assert found.trouble is not None
    assert (found.trouble.reason, "create the claim" in found.trouble.message) == ("ClaimPending", True)
    runs = role(Wanted("DecodeReady", 1), workload(), [pod(conditions=[unschedulable], phase="Running")], NOW)
    assert runs.trouble is None, "its scheduler has not taken its word back yet"
    failing = {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}
    assert role(Wanted("DecodeReady", 1), workload(conditions=[failing]), [], NOW).trouble == Condition(
        "DecodeReady", "False", "PodsRefused", "violates PodSecurity"
    )


@pytest.mark.parametrize(
    ("reason", "ready", "progressing"),
    [
        ("Downloading", ("True", "AllReady"), ("True", "Downloading")),
        ("NotFound", ("False", "NotFound"), ("False", "NotFound")),
    ],
)
def test_a_download_for_engines_that_serve_is_no_fault_until_it_fails(seen, reason, ready, progressing):
    running = seen.but(model=Condition("ModelReady", "False", reason, "why"))
    made = conditions(running.status(make_cr(), NOW))
    assert (made["Ready"], made["Progressing"]) == (ready, progressing)
    assert made["ModelReady"] == ("False", reason)


def test_the_first_download_is_why_nothing_is_ready(seen):
    nobody = replace(DECODE, ready=0, existing=0, is_current=False)
    running = seen.but(decode=nobody, model=Condition("ModelReady", "False", "Downloading", "why"))
    assert conditions(running.status(make_cr(), NOW))["Ready"] == ("False", "Downloading")
    assert "ModelReady" not in conditions(seen.status(make_cr(), NOW))


def test_a_failed_pod_is_no_router_whatever_its_containers_say():
    assert ready_routers([pod("a", phase="Failed"), pod("b", phase="Running")])[0].name == "b"


CRASHED = Condition("", "False", "CrashLoop", "container engine of pod x-0: CrashLoopBackOff")


def happened(before, after):
    return [(event.type, event.reason) for event in events.of_deployment(before, after)]


def test_a_new_deployment_whose_pods_do_not_start_has_events(seen):
    pulls = Role("PrefillReady", 2, trouble=CANNOT_PULL)
    first = seen.but(prefill=pulls, router=replace(pulls, type="RouterReady"), routers=[])
    made = first.status(make_cr(), NOW)
    assert happened({}, made) == [("Normal", "Created"), ("Warning", "ImagePull")], "and not twice"
    assert happened(made, made) == []
    refused = Condition("", "False", "PodsRefused", "exceeded quota")
    after = first.but(decode=Role("DecodeReady", 2, trouble=refused)).status(make_cr(made), NOW)
    assert ("Warning", "PodsRefused") in happened(made, after)


def test_a_pod_that_starts_slowly_or_crashes_in_a_loop_floods_nothing(seen):
    ready = seen.status(make_cr(), NOW)
    starts = seen.but(decode=replace(DECODE, ready=1)).status(make_cr(ready), NOW)
    assert happened(ready, starts) == [], "it may be a rollout, or a probe that failed once"
    crashes = seen.but(decode=replace(DECODE, ready=1, trouble=CRASHED)).status(make_cr(starts), NOW)
    assert happened(starts, crashes) == [("Warning", "CrashLoop")]
    other = CRASHED._replace(message="another exit code")
    again = seen.but(decode=replace(DECODE, ready=1, trouble=other)).status(make_cr(crashes), NOW)
    assert happened(crashes, again) == []


def test_scaling_and_a_policy_have_events(seen):
    first = seen.status(make_cr(), NOW)
    more = replace(DECODE, desired=3, ready=3, existing=3, available=3)
    scaled = seen.but(decode=more, scaled_by={"decode": "keda"}, spec_replicas={"decode": 2})
    (event,) = events.of_deployment(first, after := scaled.status(make_cr(first), NOW))
    assert event == events.Event("Normal", "Scaled", "decode: from 2 to 3 replicas, by keda")
    asked = scaled.but(spec_replicas={"decode": 5}).status(make_cr(after), NOW)
    (event,) = events.of_deployment(after, asked)
    assert (event.type, event.reason) == ("Warning", "SpecReplicasIgnored")
    assert "spec.decode.replicas 5 is ignored: keda has set 3" in event.message
    views = [
        RouterView(RouterPod(name, "127.0.0.1", None), policy=policy)
        for name, policy in (("r0", "JSQ"), ("r1", "ELDR"))
    ]
    mixed = seen.but(routers=views).status(make_cr(first), NOW)
    assert happened(first, mixed) == [], "until all routers have it"
    changed = seen.but(routers=views[1:]).status(make_cr(mixed), NOW)
    assert happened(mixed, changed) == [("Normal", "PolicyChanged")]


@pytest.mark.parametrize(
    ("by", "spec", "is_said"),
    [("kubectl", 3, True), ("kubectl", 2, False), ("kube-controller-manager", 3, False)],
)
def test_replicas_of_the_spec_that_a_person_has_overridden_are_named(seen, by, spec, is_said):
    made = seen.but(scaled_by={"decode": by}, spec_replicas={"decode": spec}).status(make_cr(), NOW)
    (progressing,) = [each for each in made["conditions"] if each["type"] == "Progressing"]
    assert (f"spec.decode.replicas {spec} is ignored" in progressing["message"]) == is_said
    assert made["decode"]["specReplicas"] == spec


def test_a_rollout_has_a_beginning_and_an_end(seen):
    old = {"decode": revision_of()["decode"]}
    one = old["decode"].revision._replace(name="x-decode-2")
    new = {"decode": Choice(one, {one.name: one}, runs=one.name)}
    before = seen.but(revisions=old).status(make_cr(), NOW)
    rolls = seen.but(revisions=new, decode=replace(DECODE, is_current=False)).status(make_cr(before), NOW)
    assert happened(before, rolls) == [("Normal", "RolloutStarted")]
    assert events.completed(rolls) is None
    over = seen.but(revisions=new).status(make_cr(rolls), NOW)
    assert events.completed(over).reason == "RolloutCompleted"


REFUSED_BY_API = "pods: 401: Unauthorized; routing: 401: Unauthorized"


def router_view(name="r0", *, started="2026-11-21T11:00:00Z", **state):
    fields = {"policy": "JSQ", "active": None, "staged": None, "refused": [], "samples": 0, "router": "a"}
    made = fields | {"counters": {}} | state
    return RouterView.of(RouterPod(name, "127.0.0.1", None), made)


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
def test_a_router_that_reaches_no_decode_engine_does_not_serve(seen, decode, serves):
    view = router_view(decode=decode)
    assert view.serves == serves
    found = conditions(seen.but(routers=[view], can_serve=serves).status(make_cr(), NOW))
    wanted = ("True", "MinimumReplicasAvailable") if serves else ("False", "NoDecodeEngine")
    assert found["Available"] == wanted
    assert found["Ready"][0] == wanted[0]


@pytest.mark.parametrize("asked", ["Sidecar", "Deployment"])
@pytest.mark.parametrize("is_sidecar", [True, False])
def test_routers_of_their_own_serve_without_a_prefill_engine(seen, asked, is_sidecar):
    """They send requests whole to decode engines, also while sidecars are asked for and not made yet; sidecars are as ready as their pods."""
    view = RouterView(RouterPod("r0", "127.0.0.1", None, is_beside_engine=is_sidecar), policy="JSQ")
    lost = seen.but(prefill=Role("PrefillReady", 2, existing=2, is_current=True), routers=[view])
    found = conditions(lost.status(make_cr(router={"placement": asked}), NOW))
    if is_sidecar:
        assert found["Available"] == ("False", "NoPrefillEngine")
        assert found["Degraded"][0] == "False"
    else:
        assert found["Available"] == ("True", "MinimumReplicasAvailable")
        assert found["Degraded"] == ("True", "NoPrefillEngine")
    assert found["Ready"][0] == "False"


def test_a_router_that_does_not_answer_the_operator_may_serve_clients():
    assert RouterView(RouterPod("r0", "127.0.0.1", None), problem="does not answer").serves


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
def test_a_router_that_the_api_server_refuses_is_not_ready(seen, problem, is_refused):
    view = router_view(problem=problem)
    assert view.is_unauthorized == is_refused
    made = seen.but(unauthorized=[view] * is_refused).status(make_cr(), NOW)
    found = conditions(made)
    assert (
        found["RouterReady"][1] == found["Ready"][1] == ("RouterUnauthorized" if is_refused else "AllReady")
    )
    assert found["Available"][0] == "True", "while it reaches an engine, clients are served"
    if is_refused:
        ready = next(each for each in made["conditions"] if each["type"] == "Ready")
        assert "kubectl delete pod r0" in ready["message"]


@pytest.mark.parametrize("is_ready", [True, False])
def test_while_no_router_serves_because_of_its_token_the_reason_says_so(seen, is_ready):
    view = router_view(problem=REFUSED_BY_API, decode=[{"name": "a", "healthy": False}])
    lost = seen.but(routers=[view] * is_ready, unauthorized=[view], can_serve=not is_ready)
    if not is_ready:
        # the pods of prefill engines hold the routers, and are as ready as they are
        prefill = Role("PrefillReady", 2, existing=2, is_current=True)
        lost = lost.but(prefill=prefill, router=Role("RouterReady", 2, existing=2, is_current=True))
    found = conditions(lost.status(make_cr(), NOW))
    assert found["Available"] == ("False", "RouterUnauthorized")
    assert found["Ready"] == ("False", "RouterUnauthorized")


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
