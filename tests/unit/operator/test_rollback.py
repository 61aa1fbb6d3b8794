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
REFUSED = f"{contract.REFUSAL}it would count wrongly"
BOTH = pytest.mark.parametrize("role", KINDS)


class World:
    """Revisions, workloads and pods of one deployment."""

    def __init__(self):
        self.now, self.spec = NOW, {role: {"rollout": dict(LATE)} for role in KINDS}
        self.pods, self.workloads, self.found = [], {}, {"prefill": [], "decode": [], "router": []}

    @property
    def cr(self):
        return make_vllm(**self.spec)

    def revision(self, role, number, *, key="k", completed=None, failed=False):
        """Keep a revision; ``completed``: so many hours ago."""
        template = {"metadata": {"labels": {contract.LABEL_KV: key}}, "spec": {"containers": []}}
        at = "" if completed is None else clock.stamp(self.now - timedelta(hours=completed))
        ended = clock.stamp(self.now) if failed else ""
        one = revisions.Revision(
            f"x-{role}-{number}", role, number, "", template, Images("own"), "me", "", at, ended
        )
        self.found[role].append(one)
        return one

    def runs(
        self, revision, *, wanted=2, updated=2, ready=2, replicas=2, available=None, begun=None, bakes=0
    ):
        role = revision.role
        annotations = {revisions.ANNOTATION_REVISION: revision.name}
        if begun:
            annotations[revisions.ANNOTATION_BEGUN] = clock.stamp(begun)
        self.workloads[KINDS.get(role, "Deployment"), f"x-{role}"] = {
            "metadata": {
                "name": f"x-{role}",
                "generation": 3,
                "labels": {contract.LABEL_DEPLOYMENT: "x"},
                "ownerReferences": [meta.owner_of(self.cr)],
                "annotations": annotations,
            },
            "spec": {"replicas": wanted, "minReadySeconds": bakes},
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
        since = {"lastTransitionTime": clock.stamp(self.now - timedelta(seconds=age))}
        scheduled = {"type": "PodScheduled", "status": str(not reason), "reason": reason}
        labels = {contract.LABEL_ROLE: revision.role, contract.LABEL_REVISION: revision.name}
        last = {"terminated": {"exitCode": 2, "message": words}} if words else {}
        self.pods.append(
            {
                "metadata": {"name": "p", "labels": labels, **metadata},
                "spec": {"nodeName": node} if node else {},
                "status": {
                    "phase": "Pending" if reason else phase,
                    "conditions": [{"type": "Ready", "status": str(ready)} | since, scheduled | since],
                    "containerStatuses": [{"name": "engine", "restartCount": restarts, "lastState": last}],
                },
            }
        )

    def settle(self, *asked, refused=()):
        plan = updates.Plan(self.found, Images("own"), (), False, "me")
        live = Snapshot(self.workloads, self.pods, "")
        wanted = {each.role: each for each in asked}
        return rollback.settle(self.cr, wanted, live, plan, self.now, refused=dict(refused))

    def choose(self, revision, refused=None):
        """Return what becomes of a revision that is asked for, where pods are refused for so many seconds."""
        since = None if refused is None else self.now - timedelta(seconds=refused)
        refusals = {revision.role: Refusal("exceeded quota", since)}
        return self.settle(revision, refused=refusals)[revision.role]


@pytest.fixture
def world():
    return World()


def marks(choice, revision):
    found = choice.known[revision.name]
    return bool(found.completed), bool(found.failed)


@pytest.mark.parametrize(
    ("completed", "counts", "waiting", "refused"),
    [
        (True, {}, [], None),
        (False, {"updated": 1}, [], None),
        (False, {"ready": 1}, [], None),
        (False, {"replicas": 3}, [], None),
        # ready, and not yet available
        (False, {"available": 1, "bakes": 60}, [], None),
        (True, {"bakes": 60}, [], None),
        # no more pods fit
        (True, {"ready": 1}, [60], None),
        (False, {"ready": 1}, [59], None),
        (False, {"ready": 1, "replicas": 3}, [60], None),
        # no more pods are allowed
        (True, {"wanted": 3}, [], 60),
        (False, {"wanted": 3}, [], 59),
        (False, {"wanted": 3}, [], None),
        (False, {"wanted": 3, "replicas": 0, "updated": 0, "ready": 0}, [], 60),
    ],
    ids=str,
)
@BOTH
def test_when_a_revision_is_completed(world, role, completed, counts, waiting, refused):
    first = world.revision(role, 1)
    world.runs(first, **counts)
    world.pod(first, ready=True)
    for seconds in waiting:
        world.pod(first, age=seconds, node="", reason="Unschedulable")
    assert marks(world.choose(first, refused), first) == (completed, False)


@BOTH
def test_the_last_one_completed_is_not_marked_again(world, role):
    first = world.revision(role, 1)
    world.runs(first)
    choice = world.choose(first)
    assert [each.name for each in choice.stale] == [choice.revision.name] == [first.name]
    world.found[role] = [*choice.stale]
    world.now += timedelta(hours=1)
    assert not world.choose(choice.revision).stale


@pytest.mark.parametrize("ahead", [0, 90])
@BOTH
def test_a_revision_that_is_gone_back_to_has_worked_once_its_pods_are_ready_again(world, role, ahead):
    first = world.revision(role, 1, completed=1)
    world.revision(role, 2)
    begun = world.now + timedelta(seconds=ahead)
    world.runs(first, ready=1, begun=begun)
    world.pod(first, age=3600)
    choice = world.choose(first)
    assert not choice.has_worked
    assert (marks(choice, first), choice.failed, choice.stale) == ((True, False), "", ()), "it worked before"
    world.runs(first, begun=begun)
    choice = world.choose(first)
    assert choice.has_worked
    world.found[role] = [*choice.known.values()]
    world.runs(first, ready=1, begun=begun)
    choice = world.choose(choice.revision)
    assert choice.has_worked, "a pod that is lost later is no rollout"
    assert not choice.stale


@BOTH
def test_a_clock_that_was_ahead_does_not_make_an_older_revision_the_last_one(world, role):
    world.revision(role, 1, completed=-1)
    new = world.revision(role, 2)
    world.runs(new)
    world.found[role] = [*world.choose(new).known.values()]
    bad = world.revision(role, 3)
    world.runs(bad, ready=1)
    world.pod(bad)
    assert world.choose(bad).revision.name == new.name


CRASHED = {"restarts": 3, "age": 30}
AVAILABLE = {"ready": True, "age": 60}


@pytest.mark.parametrize(
    ("is_back", "pods", "more"),
    [
        (True, [{}], {}),
        (False, [{"age": 30}], {}),
        (False, [{"node": ""}], {}),
        (False, [{}, {"ready": True}], {}),
        (False, [{"deletionTimestamp": "x"}], {}),
        (False, [{"phase": "Failed"}], {}),
        (False, [{"labels": {}}], {}),
        (False, [{}], {"on_failure": "Wait"}),
        (False, [{}], {"pause": "Enabled"}),
        (False, [{}], {"revision": 2}),
        # a container crashes before its pod is available
        (True, [CRASHED], {"bakes": 60}),
        (False, [CRASHED | {"restarts": 2}], {"bakes": 60}),
        (True, [CRASHED | {"ready": True, "age": 4}], {"bakes": 60}),
        (False, [CRASHED | AVAILABLE], {"bakes": 60}),
        (False, [CRASHED | {"phase": "Failed"}], {"bakes": 60}),
        (False, [CRASHED | {"ready": True, "age": 4}], {}),
        (False, [CRASHED, AVAILABLE], {"bakes": 60}),
        (True, [CRASHED, AVAILABLE | {"age": 59}], {"bakes": 60}),
        (True, [{"words": REFUSED, "age": 30}], {"bakes": 60}),
        (False, [{"words": "Traceback", "age": 30}], {"bakes": 60}),
        # pods cannot be created
        (True, [], {"refused": 61}),
        (False, [], {"refused": 60}),
        (False, [{"ready": True}], {"refused": 61}),
    ],
    ids=str,
)
@BOTH
def test_what_is_a_failure(world, role, is_back, pods, more):
    good, bad = world.revision(role, 1, completed=1), world.revision(role, 2)
    rollout = {key: value for key, value in more.items() if key not in {"bakes", "refused"}}
    if "revision" in rollout:
        rollout["revision"] = bad.name
    world.spec[role] = {"rollout": LATE | rollout}
    world.runs(bad, ready=1, bakes=more.get("bakes", 0))
    for pod in pods:
        world.pod(bad, **pod)
    choice = world.choose(bad, more.get("refused"))
    found = choice.revision.name, choice.failed, marks(choice, bad)
    assert found == ((good.name, bad.name, (False, True)) if is_back else (bad.name, "", (False, False)))


def test_pods_of_another_role_that_are_refused_are_no_failure(world):
    world.revision("decode", 1, completed=1)
    bad = world.revision("decode", 2)
    world.runs(bad, ready=1)
    refused = {"router": Refusal("exceeded quota", world.now - timedelta(hours=1))}
    assert world.settle(bad, refused=refused)["decode"].revision.name == bad.name


@pytest.mark.parametrize(
    ("update", "inputs", "failed"), [("Window", "", True), ("Window", "other", False), ("Manual", "", False)]
)
@BOTH
def test_images_that_failed_in_a_maintenance_window_are_not_tried_in_the_next(
    world, role, update, inputs, failed
):
    world.spec["update"] = update
    good, bad = world.revision(role, 1, completed=5), world.revision(role, 2, failed=True)
    world.runs(good)
    assert marks(world.choose(good._replace(inputs=inputs)), bad) == (False, failed), "after the window"


@pytest.mark.parametrize(("partition", "is_back"), [(1, True), (2, False)])
def test_pods_that_are_refused_while_all_keep_their_template_say_nothing_of_another(
    world, partition, is_back
):
    world.spec["decode"] = {"replicas": 2, "rollout": LATE | {"partition": partition}}
    world.revision("decode", 1, completed=1)
    new = world.revision("decode", 2)
    world.runs(new, ready=1)
    assert bool(world.choose(new, refused=3600).failed) == is_back


def test_wait_tries_a_revision_that_has_failed_again(world):
    world.revision("decode", 1, completed=1)
    bad = world.revision("decode", 2, failed=True)
    world.spec["decode"]["rollout"]["on_failure"] = "Wait"
    choice = world.choose(bad)
    assert (choice.revision.name, marks(choice, bad)) == (bad.name, (False, False))


@pytest.mark.parametrize("completed", [None, 1], ids=["nothing to go back to", "what worked last"])
def test_where_no_other_revision_worked_later_the_only_one_stays(world, completed):
    if completed:
        world.revision("decode", 1, completed=5)
    good = world.revision("decode", 2, completed=completed)
    world.runs(good, ready=0)
    world.pod(good)
    choice = world.choose(good)
    assert (choice.revision.name, choice.failed) == (good.name, "")


def test_one_that_worked_earlier_may_fail_and_the_one_in_between_comes_back(world):
    old = world.revision("decode", 1, completed=5)
    last = world.revision("decode", 2, completed=1)
    world.runs(old, ready=1)
    world.pod(old)
    choice = world.choose(old)
    assert (choice.revision.name, choice.failed) == (last.name, old.name)
    world.pods.clear()
    world.runs(old)
    assert world.choose(old).known[old.name].completed == clock.stamp(world.now)


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_the_other_role_goes_back_where_kv_would_not_match(world, role, other):
    good = world.revision(role, 1, completed=1)
    bad = world.revision(role, 2, key="new", failed=True)
    before = world.revision(other, 1, completed=3)
    after = world.revision(other, 2, key="new", completed=0)
    chosen = world.settle(bad, after)
    assert [chosen[each].revision.name for each in (role, other)] == [good.name, before.name]
    assert rollback.message(other, chosen[other]).endswith(f"the one that {role} can exchange KV with")
    assert {*chosen[other].kept} >= {before.name, after.name}


@pytest.mark.parametrize(
    ("bad_key", "key", "completed", "is_pinned"),
    [("k", "k", 3, False), ("new", "third", 3, False), ("new", "new", None, False), ("new", "new", 3, True)],
    ids=["same key as before", "other key than the failed one", "none worked", "pinned"],
)
def test_the_other_role_stays_where_that_changes_nothing(world, bad_key, key, completed, is_pinned):
    world.revision("prefill", 1, completed=1)
    bad = world.revision("prefill", 2, key=bad_key, failed=True)
    world.revision("decode", 1, completed=completed)
    now = world.revision("decode", 2, key=key, completed=0)
    if is_pinned:
        world.spec["decode"]["rollout"]["revision"] = now.name
    choice = world.settle(bad, now)["decode"]
    assert (choice.revision.name, choice.failed) == (now.name, "")


def test_routers_of_a_deployment_are_not_judged(world):
    good, bad = world.revision("router", 1, completed=5), world.revision("router", 2)
    world.runs(bad, ready=1)
    world.pod(bad, age=100_000)
    choice = world.choose(bad)
    assert (choice.revision.name, choice.failed) == (bad.name, "")
    assert good.name in choice.known


@BOTH
def test_a_probe_that_never_gives_up_lets_a_revision_start(world, role):
    engine = {"name": "engine", "startupProbe": {"periodSeconds": 60, "failureThreshold": 2_147_483_647}}
    world.spec = {}
    world.revision(role, 1, completed=1)
    new = world.revision(role, 2)
    new.template["spec"]["containers"] = [engine]
    world.runs(new, ready=1)
    world.pod(new)
    assert world.choose(new).revision.name == new.name
