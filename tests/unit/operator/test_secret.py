"""The Secret of the admin ports is created where it may be missing, and nobody is asked for it otherwise."""

import asyncio
from datetime import timedelta

import pytest

from eldr import contract
from eldr_operator.backoff import REFUSED, Backoff
from eldr_operator.errors import ApiError
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.kube.tokens import Tokens
from eldr_operator.unwritten import Writes
from eldr_operator.workloads.secret import AdminSecrets, seconds_until_tried
from tests.unit.operator.builders import NOW, make_cr

KEY = ("ns", "x")


class Applier:
    def __init__(self):
        self.asked, self.error = 0, None

    async def create(self, manifest):
        assert manifest["metadata"]["name"] == "x-admin"
        self.asked += 1
        if self.error is not None:
            raise self.error


def router(reason="", phase="Running", *, labels=None):
    state = {"waiting": {"reason": reason}} if reason else {"running": {"startedAt": "2026-11-21T11:00:00Z"}}
    status = {"phase": phase, "initContainerStatuses": [{"name": contract.CONTAINER_ROUTER, "state": state}]}
    return {"metadata": {"name": "p", "labels": labels or {contract.LABEL_ROUTER: "true"}}, "status": status}


@pytest.fixture
def asked():
    applier = Applier()
    secrets = AdminSecrets(applier, Tokens(b"k" * 32))

    async def ask(*pods, seconds=0):
        writes = Writes(("n", "x"), Backoff(lambda: 0.0, REFUSED), asyncio.get_running_loop().time)
        at = NOW + timedelta(seconds=seconds)
        return await secrets.ensure(writes, make_cr(), Snapshot({}, list(pods), ""), at)

    ask.applier, ask.secrets = applier, secrets
    return ask


@pytest.mark.parametrize(
    ("pods", "times"),
    [
        ([], 1),
        ([router()], 0),
        ([router(), router("ContainerCreating")], 1),
        ([router(), router("ContainerCreating", phase="Failed")], 0),
        ([router(), router("CrashLoopBackOff")], 0),
        ([router(), router("CreateContainerConfigError", labels={"of": "a fit"})], 1),
        ([router(), router("ContainerCreating", labels={"of": "an engine"})], 0),
    ],
)
async def test_it_is_created_where_no_router_runs_or_one_waits_for_its_volume(asked, pods, times):
    assert await asked(*pods) is None
    assert await asked(*pods, seconds=14) is None
    assert asked.applier.asked == times
    await asked(*pods, seconds=15)
    assert asked.applier.asked == 2 * times


async def test_it_is_created_while_routers_refuse_the_token(asked):
    asked.secrets.refused(KEY)
    asked.applier.error = ApiError(409, "AlreadyExists", "it exists")
    assert await asked(router()) is None
    assert asked.applier.asked == 1
    await asked(router(), seconds=60)
    assert asked.applier.asked == 1, "they have not refused it again"


async def test_what_failed_is_tried_in_the_next_pass(asked):
    asked.applier.error = ApiError(403, "Forbidden", "quota")
    assert (await asked()).kind == "Secret"
    assert (await asked(seconds=1)).reason == "ChildRefused"
    assert asked.applier.asked == 2


def test_a_pod_that_waits_is_looked_at_again():
    assert seconds_until_tried(Snapshot({}, [router("ContainerCreating")], "")) == [15.0]
    assert seconds_until_tried(Snapshot({}, [router()], "")) == []
