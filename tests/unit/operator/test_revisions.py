"""What decides about pods, field by field."""

from datetime import timedelta

import pytest

from eldr_operator import build, meta
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.workloads import desired, revisions, updates
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.unit.operator.builders import NOW, make_vllm, merged, nested

ROLES = ("prefill", "decode", "router")
ME = "this build"


VARIABLE, LIMITS, HIGH = (
    {"name": "A", "value": "1"},
    {"limits": {"cpu": "1"}},
    {"spec": {"priorityClassName": "high"}},
)
ENGINES, ROUTERS = {"prefill", "decode"}, {"prefill", "router"}


@pytest.mark.parametrize(
    ("field", "value", "moved"),
    [
        ("model.uri", "org/other", {*ROLES}),
        ("model.download", "Never", set()),
        ("model.revision", "v1", ENGINES),
        ("model.name", "served", {*ROLES}),
        ("engine.image", "mine:1", ENGINES),
        ("engine.leaseSeconds", 60, ENGINES),
        ("engine.leaseSeconds", 300, set()),
        ("accelerator.resourceName", "nvidia.com/gpu", ENGINES),
        ("prefill.replicas", 7, set()),
        ("prefill.rollout.minReadySeconds", 5, set()),
        ("prefill.gpus", 1, set()),
        ("prefill.gpus", 2, {"prefill"}),
        ("decode.gpus", 2, {"decode"}),
        ("decode.parallelism", {"expert": "Enabled", "redundantExperts": 8}, {"decode"}),
        ("decode.podTemplate", HIGH, {"decode"}),
        ("router.args", ["--x"], ROUTERS),
        ("router.env", [VARIABLE], ROUTERS),
        ("router.image", "r:1", ROUTERS),
        ("router.imagePullPolicy", "Always", ROUTERS),
        ("router.resources", LIMITS, ROUTERS),
        ("router.drainSeconds", 5, ROUTERS),
        ("router.apiKeysSecret", "a", ROUTERS),
        ("router.tlsSecret", "a", ROUTERS),
        ("router.adminTLS", {"secretName": "a", "authorityConfigMap": "b"}, ROUTERS),
        ("router.placement", "Deployment", ROUTERS),
        ("router.podTemplate", HIGH, {"router"}),
        ("router.tau", 0.3, set()),
        ("router.maxInFlightPerDecode", 100, set()),
        ("router.maxInFlightPerDecode", 300, {"decode"}),
        ("router.maxWaiting", 5, set()),
        ("signatures.retentionHours", 12, ROUTERS),
        ("signatures.retentionHours", 24, set()),
        ("signatures.retentionMebibytes", 5, ROUTERS),
        ("refit.schedule", "0 3 * * *", set()),
        ("centroids.pin", "f", set()),
        ("update", "Immediate", set()),
    ],
)
def test_what_decides_about_pods_of_a_role(field, value, moved):
    for engine, placement in (("vLLM", "Sidecar"), ("vLLM", "Deployment"), ("Simulator", "Sidecar")):
        one = {"model": {"uri": "m"}, "engine": {"type": engine}, "router": {"placement": placement}}
        other = merged(one, nested(field, value))
        before, after = inputs(one), inputs(other)
        if (engine, placement) == ("vLLM", "Sidecar"):
            assert {role for role in ROLES if before[role] != after[role]} == moved
        # the opposite would freeze a pod that the spec asks to change
        before_template, template = templates(one), templates(other)
        for role in ROLES:
            assert before[role] != after[role] or before_template.get(role) == template.get(role)


def inputs(spec):
    return {role: revisions.inputs(make_vllm(**spec), role) for role in ROLES}


def templates(spec):
    found = desired.children(make_vllm(**spec), (), Images("own"), Outside("eldr-system"))
    return {role: made["spec"]["template"] for made in found if (role := revisions.role_of(made))}


def revision(number, images, *, made="", maker="one", inputs="", failed="", role="decode", completed=""):
    template = {"metadata": {"labels": {}}, "spec": {}}
    return revisions.Revision(
        f"x-{role}-{number}", role, number, inputs, template, Images(*images), maker, made, completed, failed
    )


def seen(cr, kept, runs=None):
    """Return what there is: revisions, and the workload of the one that runs."""
    found = {(revisions.KIND, one.name): revisions.manifest(cr, one) for one in kept}
    if runs is not None:
        kind = "StatefulSet" if runs.role == "decode" else "Deployment"
        head = meta.manifest("apps/v1", kind, cr, f"x-{runs.role}", runs.role)
        found[kind, f"x-{runs.role}"] = revisions.frozen(head | {"spec": {}}, runs, None, NOW)
    return Snapshot(found, [], "")


def plan(cr, kept, own, runs=None, maker=ME):
    return updates.plan(cr, seen(cr, kept, runs), Images(*own), NOW, maker=maker)


def choose(cr, kept, own, template=None, runs=None, maker=ME):
    """Return the revision that decode engines get."""
    made = template or {"metadata": {"labels": {}}}
    return updates.choose(cr, "decode", made, seen(cr, kept, runs), plan(cr, kept, own, runs, maker))


OLD, NEW, NEXT = ("own:1", "vllm:1"), ("own:2", "vllm:2"), ("own:3", "vllm:3")


@pytest.mark.parametrize(
    ("spec", "newer"),
    [
        ({}, {("own:1", "own:2"), ("vllm:1", "vllm:2")}),
        ({"engine": {"image": "mine"}}, {("own:1", "own:2")}),
        ({"engine": {"type": "Simulator"}}, {("own:1", "own:2")}),
        ({"engine": {"type": "Simulator", "image": "mine"}, "router": {"image": "mine"}}, set()),
    ],
)
def test_an_image_that_the_resource_names_is_not_newer(spec, newer):
    found = plan(make_vllm(**spec), [revision(1, OLD)], NEW)
    assert found.images == Images(*OLD)
    assert set(found.newer) == newer


def test_under_the_release_that_made_it_any_other_template_is_a_change():
    """A field that the digest of inputs forgets freezes no pod."""

    def chosen(number, *kept, own="own:1", maker=ME):
        return choose(make_vllm(), kept, [own], {"metadata": {"labels": {"a": str(number)}}}, maker=maker)

    first = chosen(1)
    assert first.template["metadata"]["labels"] == {"a": "1", "eldr.dev/revision": first.name}
    assert chosen(1, first) == first
    second = chosen(2, first)
    assert (second.template["metadata"]["labels"]["a"], second.number) == ("2", 2)
    assert second.inputs == first.inputs
    assert chosen(2, first, second) == second
    other = chosen(3, first, second, own="own:2", maker="another build")
    assert other == second, "another release may make others"
    assert chosen(3, first, second, maker="another build") == second, "also under the same tag"


@pytest.mark.parametrize(
    ("maker", "made", "is_kept_back"),
    [
        ("another build", "another template", True),
        ("another build", None, False),
        (ME, "another template", False),
        ("", "", False),
    ],
)
def test_a_template_that_this_build_would_make_differently_is_kept_back(maker, made, is_kept_back):
    chosen = revision(1, OLD, maker=maker)
    chosen = chosen._replace(made=meta.digest(chosen.template) if made is None else made)
    assert updates.is_kept_back(chosen, chosen.template, ME) == is_kept_back


def test_a_build_is_known_by_its_code(tmp_path):
    def digest(**modules):
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        for name, code in modules.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        return build.digest([folder])

    assert digest(a="1", b="2") == digest(b="2", a="1")
    assert len({digest(a="1", b="2"), digest(a="1", b="3"), digest(a="1", c="2"), digest(a="12", b="")}) == 4
    assert build.identity("own:1") == build.identity("own:1")
    assert build.identity("own:1") != build.identity("own:2")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"template": 1},
        {"template": {}, "images": {"own": "o"}},
    ],
)
def test_a_damaged_revision_is_none(data):
    cr = make_vllm()
    live = seen(cr, [revision(1, OLD)])
    live.children[revisions.KIND, "x-decode-1"]["data"] = data
    assert updates.plan(cr, live, Images(*NEW), NOW, maker=ME).revisions["decode"] == []


def test_of_a_role_whose_revision_in_use_is_not_known_none_goes():
    cr, numbers = make_vllm(), range(1, revisions.KEPT + 4)
    live = seen(
        cr, [revision(number, OLD, role=role) for role in ("prefill", "decode") for number in numbers]
    )
    old = revisions.surplus(cr, live, {"decode": ["x-decode-1"]})
    assert [(kind, one["metadata"]["name"]) for kind, one in old] == [
        (revisions.KIND, f"x-decode-{number}") for number in (2, 3, 4)
    ], "the oldest of those that pods do not have"


def test_images_that_run_are_those_of_what_runs_not_of_what_has_failed():
    worked, failed = revision(1, OLD), revision(2, NEW, failed="2026-11-20T00:00:00Z")
    for runs, images in ((worked, OLD), (None, OLD), (failed, NEW)):
        assert plan(make_vllm(), [worked, failed], NEXT, runs).images == Images(*images)


def test_where_a_workload_is_gone_images_are_those_of_the_other_role_or_of_what_worked_last():
    ran = revision(1, OLD, completed="2026-11-20T00:00:00Z")
    undone = revision(2, NEW, completed="2026-11-19T00:00:00Z")
    assert plan(make_vllm(), [ran, undone], NEXT).images == ran.images
    other = undone._replace(name="x-prefill-2", role="prefill")
    assert plan(make_vllm(), [ran, undone, other], NEXT, other).images == other.images


@pytest.mark.parametrize(
    ("update", "inputs", "own", "may_update"),
    [
        ("Window", "", NEW, False),
        ("Window", "other", NEW, True),
        ("Window", "", ("own:3", "vllm:2"), True),
        ("Immediate", "", NEW, True),
    ],
)
def test_images_that_failed_for_decode_in_a_maintenance_window_roll_no_other_role_in_the_next(
    update, inputs, own, may_update
):
    window = {"schedule": "* * * * *", "durationMinutes": 60}
    cr = make_vllm(update=update, refit={"drift": {"maintenanceWindow": window}})
    digest = inputs or revisions.inputs(cr, "decode")
    ran, failed = revision(1, OLD), revision(2, NEW, inputs=digest, failed="2026-11-20T00:00:00Z")
    found = plan(cr, [ran, failed], own, ran)
    assert (found.updates, found.images) == (may_update, Images(*own) if may_update else ran.images)
    assert found.failed == ("" if may_update else failed.name)


@pytest.mark.parametrize("others", [[], [7]])
def test_a_revision_that_was_deleted_while_pods_have_it_comes_back_as_it_was(others):
    def made(release):
        containers = [{"name": "engine", "image": OLD[1]}, {"name": "eldr-plugin", "image": OLD[0]}]
        return {"metadata": {"labels": {"release": release}}, "spec": {"containers": containers}}

    ran = choose(make_vllm(), [], OLD, made("one"))
    again = choose(make_vllm(), [revision(number, NEW) for number in others], NEW, made("two"), ran)
    assert (again.name, again.template, again.images) == (ran.name, ran.template, Images(*OLD))


def test_an_earlier_setting_brings_back_no_earlier_images():
    """Engines of both roles stay on one version of vLLM."""
    cr = make_vllm()
    digest = revisions.inputs(cr, "decode")
    runs = revision(2, NEW, inputs="of another setting", maker="two")
    made = choose(cr, [revision(1, OLD, inputs=digest), runs], NEW, runs=runs)
    assert (made.images, made.number) == (Images(*NEW), 3)
    kept = choose(cr, [revision(1, NEW, inputs=digest), runs], NEW, runs=runs)
    assert kept.number == 1, "what another release has made of it, with the same images"


def test_a_workload_tells_since_when_it_has_another_revision():
    head = meta.manifest("apps/v1", "StatefulSet", make_vllm(), "x-decode", "decode") | {"spec": {}}

    def frozen(number, before, at=NOW):
        return revisions.frozen(head, revision(number, OLD), before, at)

    first = frozen(1, None)
    assert revisions.begun_of(first) == "", "nothing ran before"
    assert revisions.begun_of(frozen(1, first)) == ""
    second = frozen(2, first)
    assert revisions.begun_of(second) == "2026-11-21T12:00:00Z"
    assert revisions.begun_of(frozen(2, second, NOW + timedelta(hours=1))) == revisions.begun_of(second)
    second["metadata"]["annotations"][revisions.ANNOTATION_BEGUN] = "zzz"
    assert revisions.begun_of(second) == ""
