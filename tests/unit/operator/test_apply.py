"""What is sent for an object that an operator before this one has applied."""

from copy import deepcopy

import pytest

from eldr.contract import KIND_FIT
from eldr_operator.errors import ApiError
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


async def test_a_resource_that_the_server_no_longer_has_leaves_the_cache():
    class Gone(Server):
        async def apply(self, manifest, subresource=""):
            raise ApiError(404, "NotFound", "gone")

    cache, metadata = Cache(), {"namespace": "n", "name": "f", "uid": "u", "resourceVersion": "1"}
    cache.put(KIND_FIT, {"metadata": metadata, "spec": {"deploymentRef": {"name": "x"}}})
    assert not await Applier(Gone(None), cache, Metrics()).patch_status(KIND_FIT, "n", "f", "u", {})
    assert cache.get(KIND_FIT, "n", "f") is None
