"""An operator that has nothing to do writes nothing, and reads little."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from eldr import contract
from eldr_operator.kube.api import RESOURCES
from tests.operator.conftest import RESYNC_SECONDS
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

PASSES = 25
"""In a minute: of each kind of object fewer reads than one a pass."""
READS = {"get", "list", "watch"}
KINDS = [kind for kind in RESOURCES if kind not in {"Event", "Lease", "Pod"}]
"""What the operator writes, or could; others write to pods. Its Lease it renews."""


def versions(world) -> dict[str, str]:
    return {
        f"{kind}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
        for kind in KINDS
        for each in world.kube.list(kind)
    }


class Watch:
    """What the operator has asked for in a namespace since this was made, from the audit log."""

    def __init__(self, operator, world) -> None:
        self._operator, self._namespace = operator, world.kube.namespace
        self._mark, self._passes = operator.audit_size(), operator.passes()

    def requests(self, *, namespaced: bool = True) -> list[dict]:
        """Return those in the namespace, or those of all namespaces at once."""
        wanted = self._namespace if namespaced else None
        entries = self._operator.requests(self._mark)
        return [entry for entry in entries if entry.get("objectRef", {}).get("namespace") == wanted]

    def passes(self) -> int:
        return self._operator.passes() - self._passes

    def wait_for_passes(self, count: int) -> None:
        wait_for(lambda: self.passes() >= count, f"{count} passes", 90)


def settle(operator, world) -> None:
    """Wait until two passes in a row have written nothing."""

    def is_quiet() -> bool:
        before = versions(world)
        Watch(operator, world).wait_for_passes(3)
        return versions(world) == before

    wait_for(is_quiet, "a quiet operator", 90)


def test_idle_and_restarted_operator_writes_nothing(operator, world):
    world.up(refit={"schedule": "0 3 * * *"})
    world.fit("first", k=2)
    world.report("first")
    world.until_active("first")
    world.condition("CentroidsActive", reason="Active")
    settle(operator, world)
    kept = world.kube.list("ControllerRevision", contract.LABEL_REVISION_OF)
    assert [contract.ANNOTATION_COMPLETED in each["metadata"]["annotations"] for each in kept] == [True, True]
    before, watch = versions(world), Watch(operator, world)
    watch.wait_for_passes(5)
    assert [entry["requestURI"] for entry in watch.requests() if entry["verb"] not in READS] == []
    assert versions(world) == before

    assert operator.stop() == 0
    watch = Watch(operator, world)
    operator.start()
    watch.wait_for_passes(5)
    assert versions(world) == before
    assert "Role/x-router" in before
    assert [entry["requestURI"] for entry in watch.requests() if entry["verb"] not in READS] == []

    # what was changed while it was away it does put back
    assert operator.stop() == 0
    spoilt = {
        "Role": {"rules": []},
        "Service": {"spec": {"selector": {"a": "b"}}},
        "ServiceAccount": {"metadata": {"labels": {contract.LABEL_COMPONENT: "x"}}},
        "StatefulSet": {"spec": {"template": {"metadata": {"labels": {"eldr.dev/kv": "other"}}}}},
    }
    names = {"Role": "x-router", "Service": "x", "ServiceAccount": "x-router", "StatefulSet": "x-decode"}
    as_it_was = {kind: world.kube.get(kind, name) for kind, name in names.items()}
    for kind, change in spoilt.items():
        world.kube.merge(kind, names[kind], change)
    watch = Watch(operator, world)
    operator.start()
    watch.wait_for_passes(3)

    def without_versions(found: dict) -> dict:
        kept = {name: value for name, value in found.items() if name != "status"}
        return kept | {"metadata": found["metadata"]["labels"]}

    for kind, name in names.items():
        wanted = without_versions(as_it_was[kind])
        wait_for(
            lambda kind=kind, name=name, wanted=wanted: (
                without_versions(world.kube.get(kind, name)) == wanted
            ),
            f"{kind} {name} as it was",
        )
    patched = [entry["objectRef"] for entry in watch.requests() if entry["verb"] == "patch"]
    applied = {each["resource"] for each in patched if each.get("subresource") != "status"}
    assert applied == {"roles", "services", "serviceaccounts", "statefulsets"}, patched


@pytest.mark.costly
def test_what_an_idle_operator_reads_does_not_grow_with_its_passes(operator, world):
    world.up()
    world.fit("first", k=2)
    world.report("first")
    world.until_active("first")
    settle(operator, world)
    began, watch = time.monotonic(), Watch(operator, world)
    wait_for(lambda: time.monotonic() - began > 62 and watch.passes() >= PASSES, "a minute of passes", 200)
    own, shared = watch.requests(), watch.requests(namespaced=False)
    seconds = time.monotonic() - began
    read = [entry["requestURI"] for entry in own if entry["verb"] in READS]
    assert read == []
    kinds = Counter(entry["requestURI"].partition("?")[0] for entry in shared)
    # each fifth resync lists; a watch that the server ends meanwhile, after five minutes, lists and watches anew
    most = 1 + seconds / (5 * RESYNC_SECONDS) + 2
    assert max(kinds.values()) <= most < PASSES, kinds


def test_the_learned_step_time_stands_in_the_status(world):
    world.up()
    assert world.status.get("locality", {}).keys() == set(), "nothing is known yet"
    learned = {"fixed": 4.18e-3, "per_expert": 9.78e-6, "per_request": 3.18e-5, "windows": 90}
    learned |= {"expert_share": 0.4, "expert_share_error": 0.02}
    world.router.step_time = learned
    world.until(lambda: "stepTime" in world.status.get("locality", {}), "the step-time model")
    told = {
        "fixedMilliseconds": "4.18",
        "microsecondsPerExpert": "9.78",
        "microsecondsPerRequest": "31.8",
        "windows": 90,
    }
    assert world.status["locality"]["stepTime"] == told
    world.router.step_time = learned | {"fixed": 2.5e-3}
    world.until(
        lambda: world.status["locality"]["stepTime"]["fixedMilliseconds"] == "2.5", "the faster engines"
    )


def accepted(page):
    (value,) = re.findall(r'^eldr_operator_fits_total{reason="Accepted"} (\S+)$', page, re.MULTILINE)
    return float(value)


def test_metrics_tell_what_happened(operator, world):
    before = accepted(operator.metrics())
    world.up()
    world.serve("first")
    labels = f'{{deployment="x",namespace="{world.kube.namespace}"}}'
    wait_for(lambda: f"eldr_operator_epoch{labels} 1.0" in operator.metrics(), "epoch", 60, operator.metrics)
    wait_for(
        lambda: f"eldr_operator_routers_acked{labels} 1.0" in operator.metrics(), "acks", 60, operator.metrics
    )
    page = operator.metrics()
    assert accepted(page) == before + 1
    assert 'eldr_operator_writes_total{kind="Job",verb="create"}' in page
    assert "\neldr_operator_ready 1.0\n" in page
    for kind, name, type_, reason in (
        ("EldrDeployment", "x", "Ready", "AllReady"),
        ("EldrFit", "first", "Succeeded", "Accepted"),
    ):
        of_resource = f'{{kind="{kind}",name="{name}",namespace="{world.kube.namespace}"'
        series = f'eldr_operator_condition{of_resource},reason="{reason}",status="true",type="{type_}"}} 1.0'
        wait_for(lambda series=series: series in operator.metrics(), series, 60, operator.metrics)
    world.kube.delete("EldrDeployment", "x")
    for gone in (labels, f'namespace="{world.kube.namespace}",reason='):
        wait_for(lambda gone=gone: gone not in operator.metrics(), f"no {gone}", 60, operator.metrics)
