"""Which fits of a deployment start now: one at a time."""

from types import MappingProxyType

import pytest

from eldr_operator.fits.runs import MOST_WAITING, MOST_WRITES, Runs
from eldr_operator.metrics import Metrics
from tests.unit.operator.builders import NOW, make_cr, make_fit


class World:
    """Stands for the API server, for who writes there, and for who tells of it."""

    def __init__(self):
        self.jobs, self.said, self.asked = [], {}, []

    async def get(self, *asked, **__):
        self.asked.append(asked)

    async def create(self, manifest):
        self.jobs.append(manifest["metadata"]["name"])

    async def fit(self, fit, status, now):
        (condition,) = status["conditions"]
        self.said[fit.name] = condition["reason"]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def runs(world):
    made = Runs(world, world, world, Metrics(), "image")

    async def advance(fits, jobs=MappingProxyType({}), *, may_start=True):
        return await made.advance(make_cr(), fits, jobs, NOW, may_start=may_start)

    return advance


async def test_of_fits_that_wait_one_starts(world, runs):
    fits = [make_fit(name, "Pending") for name in ("b", "a", "c")]
    assert not await runs(fits)
    assert world.jobs == ["a"]
    assert world.said == {"a": "Running", "b": "Queued", "c": "Queued"}


async def test_a_fit_waits_for_the_job_of_one_that_was_deleted(world, runs):
    held, following = make_fit("held", "Running"), make_fit("next", "Pending")
    metadata = held.metadata.model_copy(update={"deletion_timestamp": NOW})
    deleted = held.model_copy(update={"metadata": metadata})
    job = {"metadata": {"ownerReferences": [{"uid": metadata.uid}]}}
    assert await runs([deleted, following], {"held": job})
    assert world.jobs == []
    assert world.said == {"held": "Deleted", "next": "Queued"}


async def test_a_fit_starts_once_its_rights_are_there(world, runs):
    fits = [make_fit("a", "Pending")]
    assert not await runs(fits, may_start=False)
    assert (world.jobs, world.said) == ([], {"a": "Queued"})
    await runs(fits)
    assert world.jobs == ["a"]


def ended(fit):
    conditions = [{"type": "Complete", "status": "True"}]
    owner = {"uid": fit.metadata.uid}
    return {"metadata": {"ownerReferences": [owner]}, "status": {"conditions": conditions}}


async def test_a_fit_costs_no_request_until_its_job_has_ended(world, runs):
    fits = [make_fit("a", "Running"), *(make_fit(f"b{n}", "Queued") for n in range(10))]
    running = ended(fits[0]) | {"status": {"active": 1}}
    await runs(fits, {"a": running})
    assert world.asked == []
    await runs(fits, {"a": ended(fits[0])})
    assert world.asked == [("ConfigMap", "ns", "a-report")]
    world.asked.clear()
    lost = fits[0].model_copy(update={"status": fits[0].status | {"jobName": "a"}})
    await runs([lost])
    assert world.asked == [("ConfigMap", "ns", "a-report")], "its Job may have reported before it was deleted"


async def test_more_fits_than_can_wait_are_refused_some_in_each_pass(world, runs):
    fits = [make_fit(f"f{n:03d}", "Pending") for n in range(100)]
    last = fits[-1]
    jobs = {last.name: ended(last) | {"status": {"active": 1}}}
    await runs(fits, jobs)
    queued = [name for name, said in world.said.items() if said == "Queued"]
    refused = [name for name, said in world.said.items() if said == "TooManyWaiting"]
    assert world.said[last.name] == "Running", "the one that runs is not refused, wherever it stands"
    assert queued == [f"f{n:03d}" for n in range(MOST_WAITING - 1)]
    assert refused == [f"f{n:03d}" for n in range(MOST_WAITING - 1, MOST_WAITING - 1 + MOST_WRITES)]
