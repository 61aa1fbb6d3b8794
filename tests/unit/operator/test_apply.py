"""What is sent for an object that an operator before this one has applied."""

from copy import deepcopy

import pytest

from eldr.contract import KIND_FIT
from eldr_operator.errors import ApiError, ForeignConflictError
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.cache import Cache
from eldr_operator.metrics import Metrics
from tests.unit.operator.test_applied import MANIFEST, OWNED, live

OWNER = ("ns", "x")


class Server:
    """Holds one object, and takes every write."""

    def __init__(self, found):
        self.live, self.sent = found, []

    async def apply(self, manifest, subresource=""):
        self.sent.append(manifest["kind"])
        return self.live

    async def json_patch(self, kind, namespace, name, operations, manager):
        self.sent.append([each for each in operations if each["op"] != "test"])
        return self.live


def known(*others):
    found = live()
    ours = {"manager": "eldr-operator", "operation": "Apply", "fieldsV1": deepcopy(OWNED)}
    found["metadata"] |= {"uid": "u", "generation": 1, "resourceVersion": "1"}
    found["metadata"]["managedFields"] = [ours, *others]
    return found


async def applied(found):
    server = Server(found)
    applier = Applier(server, Cache(), Metrics())
    for _ in range(2):
        await applier.apply(OWNER, MANIFEST, found)
    return server.sent


async def test_nothing_is_sent_for_what_is_as_it_was_applied():
    assert await applied(known()) == []


@pytest.mark.parametrize(("field", "name"), [("labels", "app"), ("annotations", "note")])
async def test_a_label_or_annotation_of_ours_that_others_change_is_put_back_though_it_makes_no_generation(
    field, name
):
    found, server = known(), Server(known())
    manifest = deepcopy(MANIFEST)
    manifest["metadata"].setdefault(field, {})[name] = "ours"
    found["metadata"].setdefault(field, {})[name] = "ours"
    server.live = deepcopy(found)
    applier = Applier(server, Cache(), Metrics())
    await applier.apply(OWNER, manifest, found)
    before = len(server.sent)
    found["metadata"][field]["of somebody else"] = "x"
    await applier.apply(OWNER, manifest, found)
    assert len(server.sent) == before
    found["metadata"][field][name] = "theirs"
    await applier.apply(OWNER, manifest, found)
    assert len(server.sent) == before + 1
    # what admission makes of it stays
    server.live = deepcopy(found)
    await applier.apply(OWNER, manifest, found)
    assert len(server.sent) == before + 2
    await applier.apply(OWNER, manifest, found)
    assert len(server.sent) == before + 2


async def test_what_others_add_is_theirs_and_no_conflict():
    found, server = known(), Server(known())
    applier = Applier(server, Cache(), Metrics())
    await applier.apply(OWNER, MANIFEST, found)
    fields = {"f:spec": {"f:template": {"f:spec": {"f:hostNetwork": {}}}}}
    found = known({"manager": "kubectl-edit", "operation": "Update", "fieldsV1": fields})
    for found["metadata"]["generation"] in range(2, 20):
        server.live = found
        await applier.apply(OWNER, MANIFEST, found)
    assert applier.take_undone(OWNER) == []
    assert await applied(known(found["metadata"]["managedFields"][-1])) == [], (
        "by an operator before this one"
    )


async def test_what_the_server_cannot_take_beside_what_others_have_set_names_them():
    class Strict(Server):
        async def apply(self, manifest, subresource=""):
            raise ApiError(422, "Invalid", "valueFrom: may not be specified when `value` is not empty")

    found = known({"manager": "kubectl-set", "fieldsV1": {}}, {"manager": "k", "subresource": "status"})
    found["metadata"]["managedFields"][0]["fieldsV1"] = {}
    with pytest.raises(ApiError, match="is not empty; fields of it are also set by kubectl-set, and may"):
        await Applier(Strict(found), Cache(), Metrics()).apply(OWNER, MANIFEST, found)


async def test_what_others_change_again_and_again_is_restored_at_growing_intervals():
    now, server = [0.0], Server(known())
    applier = Applier(server, Cache(), Metrics(), lambda: now[0])
    await applier.apply(OWNER, MANIFEST, known())
    errors = []

    async def changed(manifest=MANIFEST):
        """Let another writer change it, and look at it once."""
        found = known({"manager": "hpa", "fieldsV1": {"f:spec": {"f:replicas": {}}}, "subresource": "scale"})
        del found["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:replicas"]
        found["metadata"]["generation"] = 100 + int(now[0])
        try:
            await applier.apply(OWNER, manifest, found)
        except ForeignConflictError as error:
            errors.append(error)

    for now[0] in range(1, 3601):
        await changed()
    assert len(server.sent) == 3 + 5, "after 60, 120, ... seconds"
    assert "Deployment x: spec.replicas (set by hpa) changes again and again" in str(errors[0])
    assert errors[0].seconds == 59
    assert applier.take_undone(OWNER) == ["Deployment x: spec.replicas (set by hpa)"] * 8
    other = deepcopy(MANIFEST)
    other["spec"]["replicas"] = 5
    await changed(other)
    assert len(server.sent) == 9, "what is asked for is written at once"


async def test_a_resource_that_the_server_no_longer_has_leaves_the_cache():
    class Gone(Server):
        async def apply(self, manifest, subresource=""):
            raise ApiError(404, "NotFound", "gone")

    cache, metadata = Cache(), {"namespace": "n", "name": "f", "uid": "u", "resourceVersion": "1"}
    cache.put(KIND_FIT, {"metadata": metadata, "spec": {"deploymentRef": {"name": "x"}}})
    assert not await Applier(Gone(None), cache, Metrics()).patch_status(KIND_FIT, "n", "f", "u", {})
    assert cache.get(KIND_FIT, "n", "f") is None
