"""Which revision pods have while a rollout works, fails, or is kept from happening."""

from datetime import timedelta

import pytest

from eldr import contract
from eldr_operator import clock, meta
from eldr_operator.conditions import Refusal
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.workloads import revisions, rollback, updates
from eldr_operator.workloads.images import Images
from tests.unit.operator.builders import NOW, make_vllm

KINDS = {"prefill": "Deployment", "decode": "StatefulSet"}
LATE = {"progress_deadline_seconds": 60}


class World:
    """Revisions, workloads and pods of one deployment."""

    def __init__(self, make_vllm, now):
        self._make, self.now = make_vllm, now
        self.pods, self.workloads, self.found = [], {}, {"prefill": [], "decode": [], "router": []}
        self.spec = {}

    @property
    def cr(self):
        return self._make(**self.spec)

    def revision(self, role, number, *, key="k", completed=None, failed=False):
        name = f"x-{role}-{number}"
        template = {"metadata": {"labels": {contract.LABEL_KV: key}}, "spec": {"containers": []}}
        marks = [clock.stamp(self.now - timedelta(hours=completed))] if completed is not None else [""]
        marks += [clock.stamp(self.now)] if failed else [""]
        one = revisions.Revision(name, role, number, "", template, Images("own"), "me", "", *marks)
        self.found[role].append(one)
        return one

    def runs(self, revision, *, updated=2, ready=2, replicas=2, available=None, begun=None, bakes=0):
        cr, role = self.cr, revision.role
        self.workloads[KINDS.get(role, "Deployment"), f"x-{role}"] = {
            "metadata": {
                "name": f"x-{role}",
                "generation": 3,
                "labels": {contract.LABEL_DEPLOYMENT: cr.name},
                "ownerReferences": [meta.owner_of(cr)],
                "annotations": {revisions.ANNOTATION_REVISION: revision.name}
                | ({revisions.ANNOTATION_BEGUN: clock.stamp(begun)} if begun else {}),
            },
            "spec": {"replicas": 2} | ({"minReadySeconds": bakes} if bakes else {}),
            "status": {
                "observedGeneration": 3,
                "replicas": replicas,
                "updatedReplicas": updated,
                "readyReplicas": ready,
                "availableReplicas": ready if available is None else available,
            },
        }

    def pod(
        self,
        revision,
        *,
        age=120,
        ready=False,
        node="n",
        phase="Running",
        reason="",
        restarts=0,
        words="",
        **metadata,
    ):
        since = clock.stamp(self.now - timedelta(seconds=age))
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": since}
        scheduled = {"type": "PodScheduled", "status": str(not reason), "reason": reason}
        scheduled["lastTransitionTime"] = since
        labels = {contract.LABEL_ROLE: revision.role, contract.LABEL_REVISION: revision.name}
        spec, phase = {"nodeName": node} if node else {}, "Pending" if reason == "Unschedulable" else phase
        self.pods.append(
            {
                "metadata": {"name": "p", "labels": labels, **metadata},
                "spec": spec,
                "status": {
                    "phase": phase,
                    "conditions": [condition, scheduled],
                    "containerStatuses": [
                        {
                            "name": "engine",
                            "restartCount": restarts,
                            "lastState": {"terminated": {"exitCode": 2, "message": words}} if words else {},
                        }
                    ],
                },
            }
        )

    def settle(self, refused=(), **wanted):
        plan = updates.Plan(self.found, Images("own"), (), False, "me")
        return rollback.settle(
            self.cr, wanted, Snapshot(self.workloads, self.pods, ""), plan, self.now, refused=dict(refused)
        )


@pytest.fixture
def world():
    made = World(make_vllm, NOW)
    made.spec = {role: {"rollout": dict(LATE)} for role in KINDS}
    return made


def marks(choice, revision):
    found = choice.known[revision.name]
    return bool(found.completed), bool(found.failed)


@pytest.mark.parametrize("counts", [{"updated": 1}, {"ready": 1}, {"replicas": 3}])
@pytest.mark.parametrize("role", KINDS)
def test_a_revision_is_completed_once_all_pods_are_ready_with_it(world, role, counts):
    first = world.revision(role, 1)
    world.runs(first, **counts)
    assert marks(world.settle(**{role: first})[role], first) == (False, False)
    world.runs(first)
    choice = world.settle(**{role: first})[role]
    assert (choice.revision.name, marks(choice, first)) == (first.name, (True, False))
    assert [each.name for each in choice.stale] == [first.name]
    world.found[role] = [*choice.stale]
    world.now += timedelta(hours=1)
    assert not world.settle(**{role: choice.revision})[role].stale, (
        "the last one completed is not marked again"
    )


@pytest.mark.parametrize(
    ("counts", "waiting", "seconds", "completed"),
    [
        ({"ready": 1}, 1, 60, True),
        ({"ready": 1}, 1, 59, False),
        ({"ready": 1}, 0, 60, False),
        ({"ready": 0}, 2, 60, False),
        ({"ready": 1, "updated": 1}, 1, 60, False),
        ({"ready": 1, "replicas": 3}, 1, 60, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", KINDS)
def test_a_revision_is_completed_where_no_more_pods_fit(world, role, counts, waiting, seconds, completed):
    first = world.revision(role, 1)
    world.runs(first, **counts)
    world.pod(first, ready=True)
    for _ in range(waiting):
        world.pod(first, age=seconds, node="", reason="Unschedulable")
    assert marks(world.settle(**{role: first})[role], first) == (completed, False)


@pytest.mark.parametrize(
    ("counts", "seconds", "completed"),
    [
        ({}, 60, True),
        ({}, 59, False),
        ({}, None, False),
        ({"ready": 1}, 60, False),
        ({"updated": 1}, 60, False),
        ({"replicas": 0, "updated": 0, "ready": 0}, 60, False),
        ({"replicas": 4, "updated": 4, "ready": 4}, 60, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", KINDS)
def test_a_revision_is_completed_where_no_more_pods_are_allowed(world, role, counts, seconds, completed):
    first = world.revision(role, 1)
    world.runs(first, **counts)
    world.workloads[KINDS[role], f"x-{role}"]["spec"]["replicas"] = 3
    since = None if seconds is None else world.now - timedelta(seconds=seconds)
    choice = world.settle({role: Refusal("exceeded quota", since)}, **{role: first})[role]
    assert marks(choice, first) == (completed, False)


@pytest.mark.parametrize("role", KINDS)
def test_a_revision_is_completed_once_its_pods_have_stayed_ready(world, role):
    first = world.revision(role, 1)
    world.runs(first, available=1, bakes=60)
    assert marks(world.settle(**{role: first})[role], first) == (False, False), "ready, and not yet available"
    world.runs(first, bakes=60)
    assert marks(world.settle(**{role: first})[role], first) == (True, False)


@pytest.mark.parametrize("ahead", [0, 90])
@pytest.mark.parametrize("role", KINDS)
def test_a_revision_that_is_gone_back_to_has_worked_once_its_pods_are_ready_again(world, role, ahead):
    first = world.revision(role, 1, completed=1)
    world.revision(role, 2)
    begun = world.now + timedelta(seconds=ahead)
    world.runs(first, ready=1, begun=begun)
    world.pod(first, age=3600)
    choice = world.settle(**{role: first})[role]
    assert not choice.has_worked
    assert (marks(choice, first), choice.failed, choice.stale) == ((True, False), "", ()), "it worked before"
    world.runs(first, begun=begun)
    choice = world.settle(**{role: first})[role]
    assert choice.has_worked
    world.found[role] = [*choice.known.values()]
    world.runs(first, ready=1, begun=begun)
    choice = world.settle(**{role: choice.revision})[role]
    assert choice.has_worked, "a pod that is lost later is no rollout"
    assert not choice.stale


@pytest.mark.parametrize("role", KINDS)
def test_a_clock_that_was_ahead_does_not_make_an_older_revision_the_last_one(world, role):
    world.revision(role, 1, completed=-1)
    new = world.revision(role, 2)
    world.runs(new)
    choice = world.settle(**{role: new})[role]
    world.found[role] = [*choice.known.values()]
    bad = world.revision(role, 3)
    world.runs(bad, ready=1)
    world.pod(bad)
    assert world.settle(**{role: bad})[role].revision.name == new.name


@pytest.mark.parametrize("role", KINDS)
def test_pods_that_never_get_ready_go_back_to_the_last_revision_that_worked(world, role):
    other, good = world.revision(role, 1, completed=5), world.revision(role, 2, completed=1)
    bad = world.revision(role, 3)
    world.runs(bad, ready=1)
    world.pod(bad)
    choice = world.settle(**{role: bad})[role]
    assert (choice.revision.name, choice.failed, marks(choice, bad)) == (good.name, bad.name, (False, True))
    assert {good.name, bad.name} == {*choice.kept}
    assert f"available with revision {bad.name}, back to {good.name}" in rollback.told(role, choice)
    # from then on the mark decides, whatever pods do
    world.found[role] = [other, good, choice.stale[0]]
    world.pods.clear()
    world.runs(good)
    again = world.settle(**{role: choice.stale[0]})[role]
    assert (again.revision.name, again.failed, again.stale) == (good.name, bad.name, ())
    # and is forgotten when something else is asked for
    after = world.settle(**{role: other})[role]
    assert (after.revision.name, after.failed, marks(after, bad)) == (other.name, "", (False, False))


REFUSED = f"{contract.REFUSAL}it would count wrongly"


@pytest.mark.parametrize(
    ("pods", "bakes", "is_back"),
    [
        ([{"restarts": 3}], 60, True),
        ([{"restarts": 2}], 60, False),
        ([{"restarts": 3, "ready": True, "age": 4}], 60, True),
        ([{"restarts": 3, "ready": True, "age": 60}], 60, False),
        ([{"restarts": 3, "ready": True, "age": 4}], 0, False),
        ([{"restarts": 3}, {"ready": True, "age": 60}], 60, False),
        ([{"restarts": 3}, {"ready": True, "age": 59}], 60, True),
        ([{"restarts": 3, "phase": "Failed"}], 60, False),
        ([{"restarts": 3, "deletionTimestamp": "x"}], 60, False),
        ([{"words": REFUSED}], 60, True),
        ([{"words": "Traceback"}], 60, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", KINDS)
def test_pods_that_crash_before_they_are_available_go_back_at_once(world, role, pods, bakes, is_back):
    good, bad = world.revision(role, 1, completed=1), world.revision(role, 2)
    world.runs(bad, ready=1, bakes=bakes)
    for pod in pods:
        world.pod(bad, **{"age": 30, **pod})
    choice = world.settle(**{role: bad})[role]
    assert choice.revision.name == (good if is_back else bad).name


@pytest.mark.parametrize(
    "rollout", [{"on_failure": "Wait"}, {"pause": "Enabled"}, {"revision": "x-decode-2"}], ids=str
)
def test_a_crash_changes_nothing_where_the_spec_says_wait(world, rollout):
    world.spec["decode"] = {"rollout": {**LATE, **rollout}}
    world.revision("decode", 1, completed=1)
    bad = world.revision("decode", 2)
    world.runs(bad, ready=1, bakes=60)
    world.pod(bad, age=30, restarts=20)
    assert world.settle(decode=bad)["decode"].revision.name == bad.name


@pytest.mark.parametrize(
    ("update", "inputs", "failed"), [("Window", "", True), ("Window", "other", False), ("Manual", "", False)]
)
@pytest.mark.parametrize("role", KINDS)
def test_images_that_failed_in_a_maintenance_window_are_not_tried_in_the_next(
    world, role, update, inputs, failed
):
    world.spec["update"] = update
    good, bad = world.revision(role, 1, completed=5), world.revision(role, 2, failed=True)
    world.runs(good)
    asked = good._replace(inputs=inputs)
    assert marks(world.settle(**{role: asked})[role], bad) == (False, failed), "after the window"


@pytest.mark.parametrize(
    ("pods", "rollout"),
    [
        ([], {}),
        ([{"age": 30}], {}),
        ([{"node": ""}], {}),
        ([{}, {"ready": True}], {}),
        ([{"deletionTimestamp": "x"}], {}),
        ([{"phase": "Failed"}], {}),
        ([{"labels": {}}], {}),
        ([{}], {"on_failure": "Wait"}),
        ([{}], {"pause": "Enabled"}),
        ([{}], {"revision": "x-decode-2"}),
    ],
    ids=str,
)
def test_what_is_no_failure(world, pods, rollout):
    world.spec["decode"] = {"rollout": {**LATE, **rollout}}
    world.revision("decode", 1, completed=1)
    new = world.revision("decode", 2)
    world.runs(new, ready=1)
    for pod in pods:
        world.pod(new, **pod)
    choice = world.settle(decode=new)["decode"]
    assert (choice.revision.name, choice.failed, marks(choice, new)) == (new.name, "", (False, False))


@pytest.mark.parametrize(
    ("seconds", "others", "rollout", "is_back"),
    [
        (61, [], {}, True),
        (60, [], {}, False),
        (None, [], {}, False),
        (61, [{"age": 5}], {}, True),
        (61, [{"ready": True}], {}, False),
        (61, [], {"pause": "Enabled"}, False),
        (61, [], {"on_failure": "Wait"}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", KINDS)
def test_pods_that_are_refused_go_back_too(world, role, seconds, others, rollout, is_back):
    world.spec[role] = {"rollout": {**LATE, **rollout}}
    good, bad = world.revision(role, 1, completed=1), world.revision(role, 2)
    world.runs(bad, ready=1)
    for pod in others:
        world.pod(bad, **pod)
    since = None if seconds is None else world.now - timedelta(seconds=seconds)
    choice = world.settle({role: Refusal("exceeded quota", since)}, **{role: bad})[role]
    assert choice.revision.name == (good if is_back else bad).name
    other = world.settle({"router": Refusal("exceeded quota", since)}, **{role: bad})[role]
    assert other.revision.name == bad.name


@pytest.mark.parametrize(("partition", "is_back"), [(1, True), (2, False)])
def test_pods_that_are_refused_while_all_keep_their_template_say_nothing_of_another(
    world, partition, is_back
):
    world.spec["decode"] = {"replicas": 2, "rollout": {**LATE, "partition": partition}}
    world.revision("decode", 1, completed=1)
    new = world.revision("decode", 2)
    world.runs(new, ready=1)
    refused = {"decode": Refusal("exceeded quota", world.now - timedelta(hours=1))}
    assert bool(world.settle(refused, decode=new)["decode"].failed) == is_back


def test_wait_tries_a_revision_that_has_failed_again(world):
    world.revision("decode", 1, completed=1)
    bad = world.revision("decode", 2, failed=True)
    world.spec["decode"]["rollout"]["on_failure"] = "Wait"
    choice = world.settle(decode=bad)["decode"]
    assert (choice.revision.name, marks(choice, bad)) == (bad.name, (False, False))


def test_without_a_revision_that_worked_there_is_nothing_to_go_back_to(world):
    first = world.revision("decode", 1)
    world.runs(first, ready=0)
    world.pod(first)
    choice = world.settle(decode=first)["decode"]
    assert (choice.revision.name, choice.failed) == (first.name, "")


def test_the_revision_that_worked_last_does_not_fail_when_its_pods_do(world):
    world.revision("decode", 1, completed=5)
    good = world.revision("decode", 2, completed=1)
    world.runs(good, ready=0)
    world.pod(good)
    choice = world.settle(decode=good)["decode"]
    assert (choice.revision.name, choice.failed) == (good.name, "")


def test_one_that_worked_earlier_may_fail_and_the_one_in_between_comes_back(world):
    old = world.revision("decode", 1, completed=5)
    last = world.revision("decode", 2, completed=1)
    world.runs(old, ready=1)
    world.pod(old)
    choice = world.settle(decode=old)["decode"]
    assert (choice.revision.name, choice.failed) == (last.name, old.name)
    world.pods.clear()
    world.runs(old)
    choice = world.settle(decode=old)["decode"]
    assert choice.known[old.name].completed == clock.stamp(world.now)


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_the_other_role_goes_back_where_kv_would_not_match(world, role, other):
    good = world.revision(role, 1, completed=1)
    bad = world.revision(role, 2, key="new", failed=True)
    before = world.revision(other, 1, completed=3)
    after = world.revision(other, 2, key="new", completed=0)
    chosen = world.settle(**{role: bad, other: after})
    assert [chosen[each].revision.name for each in (role, other)] == [good.name, before.name]
    assert rollback.told(other, chosen[other]).endswith(f"the one that {role} can exchange KV with")
    assert {*chosen[other].kept} >= {before.name, after.name}


@pytest.mark.parametrize(
    "change", ["same key as before", "other key than the failed one", "none worked", "pinned"]
)
def test_the_other_role_stays_where_that_changes_nothing(world, change):
    bad_key = "k" if change == "same key as before" else "new"
    world.revision("prefill", 1, completed=1)
    bad = world.revision("prefill", 2, key=bad_key, failed=True)
    world.revision("decode", 1, completed=None if change == "none worked" else 3)
    key = {"same key as before": "k", "other key than the failed one": "third"}.get(change, "new")
    now = world.revision("decode", 2, key=key, completed=0)
    if change == "pinned":
        world.spec["decode"]["rollout"]["revision"] = now.name
    choice = world.settle(prefill=bad, decode=now)["decode"]
    assert (choice.revision.name, choice.failed) == (now.name, "")


@pytest.mark.parametrize("role", KINDS)
def test_a_revision_that_the_spec_names(world, role):
    old, new = world.revision(role, 1, completed=2), world.revision(role, 2, completed=1)
    world.spec[role]["rollout"]["revision"] = old.name
    choice = world.settle(**{role: new})[role]
    assert (choice.revision, choice.failed) == (old, "")
    assert {*choice.kept} == {old.name, new.name}
    world.spec[role]["rollout"]["revision"] = "other"
    choice = world.settle(**{role: new})[role]
    assert choice.revision is None
    left = rollback.unknown(world.cr, role, choice)
    assert f"{role}.rollout.revision other is not kept; there are {old.name}, {new.name}" in left.message


def test_routers_of_a_deployment_are_not_judged(world):
    good, bad = world.revision("router", 1, completed=5), world.revision("router", 2)
    world.runs(bad, ready=1)
    world.pod(bad, age=100_000)
    choice = world.settle(router=bad)["router"]
    assert (choice.revision.name, choice.failed) == (bad.name, "")
    assert good.name in choice.known


@pytest.mark.parametrize("role", KINDS)
def test_a_role_that_keeps_a_named_revision_is_told_of(world, role):
    first, second = world.revision(role, 1, completed=5), world.revision(role, 2, completed=1)
    world.runs(first)
    assert not world.settle(**{role: second})[role].is_held
    world.spec[role]["rollout"]["revision"] = first.name
    held = world.settle(**{role: second})[role]
    assert held.is_held
    assert f"keeps revision {first.name}" in rollback.held(role, held)
    assert not world.settle(**{role: first})[role].is_held, "it is what the spec asks for"


@pytest.mark.parametrize("role", KINDS)
def test_a_probe_that_never_gives_up_lets_a_revision_start(world, role):
    engine = {"name": "engine", "startupProbe": {"periodSeconds": 60, "failureThreshold": 2_147_483_647}}
    world.spec = {}
    world.revision(role, 1, completed=1)
    new = world.revision(role, 2)
    new.template["spec"]["containers"] = [engine]
    world.runs(new, ready=1)
    world.pod(new)
    choice = world.settle(**{role: new})[role]
    assert (choice.revision.name, marks(choice, new)) == (new.name, (False, False))
