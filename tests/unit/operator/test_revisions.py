"""What decides about pods, field by field."""

from datetime import UTC, datetime, timedelta

import pytest

from eldr_operator import build, meta
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.workloads import desired, revisions, updates
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.unit.operator.builders import NOW, make_vllm

ROLES = ("prefill", "decode", "router")
ME = "this build"


def digests(cr):
    return {role: revisions.inputs(cr, role) for role in ROLES}


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({}, set()),
        ({"model": {"uri": "org/other"}}, {"prefill", "decode", "router"}),
        ({"model": {"uri": "m", "download": "Never"}}, set()),
        ({"model": {"uri": "m", "revision": "v1"}}, {"prefill", "decode"}),
        ({"model": {"uri": "m", "cache": {"claimName": "weights"}}}, {"prefill", "decode"}),
        ({"model": {"uri": "m", "tokenSecret": {"name": "a"}}}, {"prefill", "decode"}),
        ({"engine": {"args": ["--seed=1"]}}, {"prefill", "decode"}),
        ({"engine": {"image": "mine:1"}}, {"prefill", "decode"}),
        ({"accelerator": {"resourceName": "nvidia.com/gpu"}}, {"prefill", "decode"}),
        ({"prefill": {"replicas": 7}}, set()),
        (
            {"prefill": {"rollout": {"minReadySeconds": 5}}, "decode": {"rollout": {"minReadySeconds": 5}}},
            set(),
        ),
        ({"decode": {"replicas": 7}}, set()),
        ({"prefill": {"env": [{"name": "A", "value": "1"}]}}, {"prefill"}),
        ({"decode": {"parallelism": {"data": 2}}}, {"decode"}),
        ({"decode": {"podTemplate": {"spec": {"priorityClassName": "high"}}}}, {"decode"}),
        ({"router": {"args": ["--x"]}}, {"prefill", "router"}),
        ({"router": {"placement": "Deployment"}}, {"prefill", "router"}),
        ({"router": {"policy": "JSQ", "tau": 0.3}}, set()),
        ({"router": {"maxInFlightPerDecode": 100}}, set()),
        ({"router": {"maxWaiting": 5, "maxWaitSeconds": 3}}, set()),
        ({"router": {"maxInFlightPerDecode": 300}}, {"decode"}),
        ({"router": {"podTemplate": {"spec": {"priorityClassName": "high"}}}}, {"router"}),
        ({"signatures": {"retentionHours": 12}}, {"prefill", "router"}),
        ({"signatures": {"samplePercent": 50}}, set()),
        ({"refit": {"minSamples": 7}}, set()),
        ({"centroids": {"pin": "f"}}, set()),
        ({"update": "Immediate"}, set()),
        (
            {"prefill": {"gpus": 1}, "engine": {"leaseSeconds": 300}, "signatures": {"retentionHours": 24}},
            set(),
        ),
    ],
)
def test_what_decides_about_pods_of_a_role(change, moved):
    before, after = digests(make_vllm()), digests(make_vllm(**change))
    assert {role for role in ROLES if before[role] != after[role]} == moved


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
    cr = make_vllm(**spec)
    before = revisions.Revision("x-decode-1", "decode", 1, "", {}, Images("own:1", "vllm:1"), "one", "")
    kept = revisions.manifest(cr, before) | {"revision": 1}
    live = Snapshot({(revisions.KIND, "x-decode-1"): kept}, [], "")
    plan = updates.plan(cr, live, Images("own:2", "vllm:2"), NOW, maker=ME)
    assert plan.images == before.images
    assert set(plan.newer) == newer


def test_under_the_release_that_made_it_any_other_template_is_a_change():
    """A field that the digest of inputs forgets freezes no pod."""
    cr, own = make_vllm(), Images("own:1")

    def look(kept, images=own, maker=ME):
        found = {(revisions.KIND, one.name): revisions.manifest(cr, one) for one in kept}
        live = Snapshot(found, [], "")
        return lambda made: updates.choose(
            cr, "decode", made, live, updates.plan(cr, live, images, NOW, maker=maker)
        )

    def made(number):
        return {"metadata": {"labels": {"a": str(number)}}}

    first = look([])(made(1))
    assert first.template["metadata"]["labels"] == {"a": "1", "eldr.dev/revision": first.name}
    assert look([first])(made(1)) == first
    second = look([first])(made(2))
    assert (second.template["metadata"]["labels"]["a"], second.number, second.inputs) == (
        "2",
        2,
        first.inputs,
    )
    assert look([first, second])(made(2)) == second
    other = look([first, second], Images("own:2"), "another build")
    assert other(made(3)) == second, "another release may make others"
    assert look([first, second], maker="another build")(made(3)) == second, "also under the same tag"


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
    template = {"metadata": {"labels": {}}}
    digest = meta.digest(template) if made is None else made
    chosen = revisions.Revision("x-decode-1", "decode", 1, "", template, Images("own:1"), maker, digest)
    assert updates.is_kept_back(chosen, template, ME) == is_kept_back


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
        {},
        [],
        "x",
        {"template": 1},
        {"template": {}, "images": {"own": "o"}},
        {"template": {}, "images": 3},
    ],
)
def test_a_damaged_revision_is_none(data):
    cr = make_vllm()
    whole = revisions.Revision("x-decode-1", "decode", 1, "", {}, Images("own:1"), "one", "")
    damaged = revisions.manifest(cr, whole) | {"data": data}
    live = Snapshot({(revisions.KIND, "x-decode-1"): damaged}, [], "")
    assert updates.plan(cr, live, Images("own:2"), NOW, maker=ME).found["decode"] == []


def test_of_a_role_whose_revision_in_use_is_not_known_none_goes():
    cr, found = make_vllm(), {}
    for role in ("prefill", "decode"):
        for number in range(1, revisions.KEPT + 4):
            name = f"x-{role}-{number}"
            one = revisions.Revision(name, role, number, "", {}, Images("own"), "one", "")
            found[revisions.KIND, name] = revisions.manifest(cr, one)
    old = revisions.surplus(cr, Snapshot(found, [], ""), {"decode": ["x-decode-1"]})
    assert [(kind, one["metadata"]["name"]) for kind, one in old] == [
        (revisions.KIND, f"x-decode-{number}") for number in (2, 3, 4)
    ], "the oldest of those that pods do not have"


def test_every_change_of_a_template_is_a_change_of_its_inputs():
    """The opposite of the above would freeze a pod that the spec asks to change."""

    def made(cr):
        found = desired.children(cr, (), Images("own"), Outside("eldr-system"))
        return {role: m["spec"]["template"] for m in found if (role := revisions.role_of(m))}

    changes = [
        {"model": {"uri": "org/other"}},
        {"model": {"uri": "org/model", "name": "served"}},
        {
            "engine": {
                "args": ["--seed=1"],
                "env": [{"name": "A", "value": "1"}],
                "leaseSeconds": 60,
                "imagePullPolicy": "Always",
            }
        },
        {
            "prefill": {
                "gpus": 2,
                "args": ["--seed=1"],
                "resources": {"limits": {"cpu": "1"}},
                "drainSeconds": 5,
            }
        },
        {
            "decode": {
                "gpus": 2,
                "drainSeconds": 5,
                "parallelism": {"expert": "Enabled", "redundantExperts": 8},
            }
        },
        {"accelerator": {"resourceName": "nvidia.com/gpu"}},
        {
            "router": {
                "image": "r:1",
                "imagePullPolicy": "Always",
                "resources": {"limits": {"cpu": "1"}},
                "drainSeconds": 5,
            }
        },
        {"router": {"maxInFlightPerDecode": 300, "policy": "JSQ", "env": [{"name": "A", "value": "1"}]}},
        {"router": {"apiKeysSecret": "a"}},
        {"router": {"tlsSecret": "a"}},
        {"router": {"adminTLS": {"secretName": "a", "authorityConfigMap": "b"}}},
        {"signatures": {"retentionHours": 12, "retentionMebibytes": 5, "samplePercent": 3}},
    ]
    for placement in ("Sidecar", "Deployment"):
        plain = make_vllm(router={"placement": placement})
        for change in changes:
            cr = make_vllm(**change | {"router": {"placement": placement} | change.get("router", {})})
            for role, template in made(cr).items():
                if template != made(plain)[role]:
                    assert revisions.inputs(cr, role) != revisions.inputs(plain, role), (role, change)


def revision(number, images, *, made="", maker="one", inputs="", failed=""):
    template = {"metadata": {"labels": {}}, "spec": {}}
    name = f"x-decode-{number}"
    return revisions.Revision(
        name, "decode", number, inputs, template, Images(*images), maker, made, "", failed
    )


def seen(cr, kept, runs=None):
    found = {(revisions.KIND, one.name): revisions.manifest(cr, one) for one in kept}
    if runs is not None:
        head = meta.manifest("apps/v1", "StatefulSet", cr, "x-decode", "decode")
        workload = revisions.frozen(head | {"spec": {}}, runs, None, datetime(2026, 11, 21, tzinfo=UTC))
        found["StatefulSet", "x-decode"] = workload
    return Snapshot(found, [], "")


OLD, NEW = ("own:1", "vllm:1"), ("own:2", "vllm:2")


def test_images_that_run_are_those_of_what_runs_not_of_what_has_failed():
    cr, own = make_vllm(), Images("own:3", "vllm:3")
    worked, failed = revision(1, OLD), revision(2, NEW, failed="2026-11-20T00:00:00Z")
    assert updates.plan(cr, seen(cr, [worked, failed], worked), own, NOW, maker=ME).images == worked.images
    assert updates.plan(cr, seen(cr, [worked, failed]), own, NOW, maker=ME).images == worked.images
    assert updates.plan(cr, seen(cr, [worked, failed], failed), own, NOW, maker=ME).images == failed.images


def test_where_a_workload_is_gone_images_are_those_of_the_other_role_or_of_what_worked_last():
    cr, own = make_vllm(), Images("own:3", "vllm:3")
    ran = revision(1, OLD)._replace(completed="2026-11-20T00:00:00Z")
    undone = revision(2, NEW)._replace(completed="2026-11-19T00:00:00Z")
    assert updates.plan(cr, seen(cr, [ran, undone]), own, NOW, maker=ME).images == ran.images
    other = undone._replace(name="x-prefill-2", role="prefill")
    head = meta.manifest("apps/v1", "Deployment", cr, "x-prefill", "prefill")
    live = seen(cr, [ran, undone, other])
    live.children["Deployment", "x-prefill"] = revisions.frozen(head | {"spec": {}}, other, None, NOW)
    assert updates.plan(cr, live, own, NOW, maker=ME).images == other.images


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
    found = updates.plan(cr, seen(cr, [ran, failed], ran), Images(*own), NOW, maker=ME)
    assert (found.updates, found.images) == (may_update, Images(*own) if may_update else ran.images)
    assert found.failed == ("" if may_update else failed.name)


@pytest.mark.parametrize("others", [[], [7]])
def test_a_revision_that_was_deleted_while_pods_have_it_comes_back_as_it_was(others):
    cr, images = make_vllm(), Images(*OLD)

    def made(release):
        containers = [{"name": "engine", "image": OLD[1]}, {"name": "eldr-plugin", "image": OLD[0]}]
        return {"metadata": {"labels": {"release": release}}, "spec": {"containers": containers}}

    def chosen(live, release, own):
        return updates.choose(cr, "decode", made(release), live, updates.plan(cr, live, own, NOW, maker=ME))

    ran = chosen(seen(cr, []), "one", images)
    live = seen(cr, [revision(number, NEW) for number in others], ran)
    again = chosen(live, "two", Images(*NEW))
    assert (again.name, again.template, again.images) == (ran.name, ran.template, images)


def test_an_earlier_setting_brings_back_no_earlier_images():
    """Engines of both roles stay on one version of vLLM."""
    cr = make_vllm()
    digest = revisions.inputs(cr, "decode")
    before = revision(1, OLD, inputs=digest)
    runs = revision(2, NEW, inputs="of another setting", maker="two")
    live = seen(cr, [before, runs], runs)
    known = updates.plan(cr, live, Images(*NEW), NOW, maker=ME)
    made = updates.choose(cr, "decode", {"metadata": {"labels": {}}}, live, known)
    assert (made.images, made.number) == (Images(*NEW), 3)
    same = seen(cr, [revision(1, NEW, inputs=digest), runs], runs)
    kept = updates.choose(
        cr, "decode", {"metadata": {"labels": {}}}, same, updates.plan(cr, same, Images(*NEW), NOW, maker=ME)
    )
    assert kept.number == 1, "what another release has made of it, with the same images"


def test_a_workload_tells_since_when_it_has_another_revision():
    cr, at = make_vllm(), datetime(2026, 11, 21, tzinfo=UTC)
    old, new = revision(1, OLD), revision(2, NEW)
    head = meta.manifest("apps/v1", "StatefulSet", cr, "x-decode", "decode") | {"spec": {}}
    first = revisions.frozen(head, old, None, at)
    assert revisions.begun_of(first) == "", "nothing ran before"
    assert revisions.begun_of(revisions.frozen(head, old, first, at)) == ""
    second = revisions.frozen(head, new, first, at)
    assert revisions.begun_of(second) == "2026-11-21T00:00:00Z"
    assert revisions.begun_of(
        revisions.frozen(head, new, second, at + timedelta(hours=1))
    ) == revisions.begun_of(second)
    second["metadata"]["annotations"][revisions.ANNOTATION_BEGUN] = "zzz"
    assert revisions.begun_of(second) == ""
