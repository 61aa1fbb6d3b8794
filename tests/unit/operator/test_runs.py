"""Which fits of a deployment start now: one at a time."""

import pytest

from eldr_operator.fits.runs import Runs
from eldr_operator.metrics import Metrics


class World:
    """Stands for the API server, for who writes there, and for who tells of it."""

    def __init__(self):
        self.jobs, self.said = [], {}

    async def get(self, *_, **__):
        return None

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
    return Runs(world, world, world, Metrics(), "image")


async def test_of_fits_that_wait_one_starts(make_cr, make_fit, now, world, runs):
    fits = [make_fit(name, "Pending") for name in ("b", "a", "c")]
    assert not await runs.advance(make_cr(), fits, {}, now, may_start=True)
    assert world.jobs == ["a"]
    assert world.said == {"a": "Running", "b": "Queued", "c": "Queued"}


async def test_a_fit_waits_for_the_job_of_one_that_was_deleted(make_cr, make_fit, now, world, runs):
    held, following = make_fit("held", "Running"), make_fit("next", "Pending")
    metadata = held.metadata.model_copy(update={"deletion_timestamp": now})
    deleted = held.model_copy(update={"metadata": metadata})
    job = {"metadata": {"ownerReferences": [{"uid": metadata.uid}]}}
    assert await runs.advance(make_cr(), [deleted, following], {"held": job}, now, may_start=True)
    assert world.jobs == []
    assert world.said == {"held": "Deleted", "next": "Queued"}


async def test_a_fit_starts_once_its_rights_are_there(make_cr, make_fit, now, world, runs):
    fits = [make_fit("a", "Pending")]
    assert not await runs.advance(make_cr(), fits, {}, now, may_start=False)
    assert (world.jobs, world.said) == ([], {"a": "Queued"})
    await runs.advance(make_cr(), fits, {}, now, may_start=True)
    assert world.jobs == ["a"]
