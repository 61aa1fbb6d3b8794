"""Statuses are written to the object that they were made for, and to no other of its name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config

from eldr import contract
from eldr_operator.errors import ConflictError
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.cache import Cache
from eldr_operator.kube.recorder import Recorder
from eldr_operator.metrics import Metrics
from eldr_operator.models import EldrDeployment, EldrFit, parse
from tests.operator.world import simulated

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("unattended")]

NAME = "one"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPECS: dict[str, Any] = {
    contract.KIND_DEPLOYMENT: simulated(),
    contract.KIND_FIT: {"deploymentRef": {"name": "nobody"}},
}
STATUS = {
    contract.KIND_DEPLOYMENT: {
        "history": [{"epoch": 1, "fit": "one", "reason": "Accepted", "time": "2026-01-01T00:00:00Z"}]
    },
    contract.KIND_FIT: {"samples": 4321},
}


@pytest.fixture
async def api(installed) -> AsyncIterator[Api]:
    configuration = Configuration()
    await load_kube_config(str(installed.kubeconfig), client_configuration=configuration)
    async with ApiClient(configuration) as client:
        yield Api(client)


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture(params=SPECS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def made(kube, cache, kind) -> dict[str, Any]:
    """An object that the cache knows."""
    live = kube.create(kind, {"name": NAME}, spec=SPECS[kind])
    cache.put(kind, live)
    return live


@pytest.fixture
def gone(kube, kind, made) -> dict[str, Any]:
    """An object that was deleted, and the cache does not know yet."""
    kube.delete(kind, NAME)
    return made


@pytest.fixture
def recorder(api, cache) -> Recorder:
    return Recorder(Applier(api, cache, Metrics()))


async def write(recorder: Recorder, kind: str, live: dict[str, Any]) -> None:
    if kind == contract.KIND_FIT:
        await recorder.fit(parse(EldrFit, live), STATUS[kind], NOW)
    else:
        await recorder.deployment(parse(EldrDeployment, live), STATUS[kind], NOW)


def has_it(status: dict[str, Any], kind: str) -> bool:
    return STATUS[kind].items() <= status.items()


WATCHES = pytest.mark.parametrize("is_known", [False, True], ids=["watch behind", "watch up to date"])


@WATCHES
async def test_a_pass_over_an_object_that_was_made_anew_writes_nothing(
    kube, recorder, cache, kind, gone, is_known
):
    anew = kube.create(kind, {"name": NAME}, spec=SPECS[kind])
    if is_known:
        cache.put(kind, anew)
    with pytest.raises(ConflictError):
        await write(recorder, kind, gone)
    assert not has_it(kube.get(kind, NAME).get("status", {}), kind)


@WATCHES
async def test_a_pass_over_an_object_that_is_gone_writes_nothing(kube, recorder, cache, kind, gone, is_known):
    if is_known:
        cache.remove(kind, gone)
    await write(recorder, kind, gone)
    assert kube.find(kind, NAME) is None


async def test_own_writes_within_a_pass_are_no_conflict(kube, recorder, cache, kind, made):
    cache.put(kind, kube.merge(kind, NAME, {"metadata": {"annotations": {"by": "us"}}}))
    await write(recorder, kind, made)
    assert has_it(cache.get(kind, kube.namespace, NAME)["status"], kind)


@pytest.mark.parametrize("kind", [contract.KIND_FIT])
async def test_a_write_of_somebody_else_within_a_pass_is_a_conflict(kube, recorder, kind, made):
    kube.merge(kind, NAME, {"metadata": {"annotations": {"by": "somebody"}}})
    with pytest.raises(ConflictError):
        await write(recorder, kind, made)
    assert not has_it(kube.get(kind, NAME).get("status", {}), kind)
