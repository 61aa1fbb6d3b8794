"""When an operator acts, and when it has to end, by the Lease and its own clock."""

import asyncio
from datetime import timedelta

import pytest

from eldr_operator.errors import LeaseLostError
from eldr_operator.kube import lease as module
from eldr_operator.kube.lease import Lease
from eldr_operator.settings import Settings
from tests.unit.operator.builders import NOW
from tests.unit.operator.leases import AWAY, Server


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    return Server()


@pytest.fixture
def seconds():
    return [1000.0]


@pytest.fixture
async def start(server, seconds):
    """Start operators; they end with the test."""
    running = []

    def begin(identity, **options):
        settings = Settings(lease_namespace="ns", identity=identity)
        clock, monotonic = (lambda: NOW + timedelta(seconds=seconds[0])), (lambda: seconds[0])
        made = Lease(server, settings, clock, monotonic, **options)
        running.append(asyncio.create_task(made.run()))
        return made, running[-1]

    yield begin
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_acts_and_gives_it_back(server, start):
    first, task = start("a")
    second, _ = start("b")
    await turns()
    assert (first.held.is_set(), second.held.is_set()) == (True, False)
    assert server.spec()["leaseTransitions"] == 1
    task.cancel()
    await first.release()
    await turns()
    assert second.held.is_set()
    assert server.spec()["holderIdentity"] == "b"
    assert server.spec()["leaseTransitions"] == 2
    await first.release()  # it holds nothing any more
    assert server.spec()["holderIdentity"] == "b"


async def test_one_that_died_is_succeeded_after_its_time_by_ones_own_clock(server, seconds, start):
    server.hold(holderIdentity="dead", leaseDurationSeconds=15, renewTime="2031-01-01T00:00:00.000000Z")
    made, _ = start("b")
    await turns()
    seconds[0] += 14.0
    await turns()
    assert not made.held.is_set()
    server.hold(holderIdentity="dead", leaseDurationSeconds=15, renewTime="2031-01-01T00:00:20.000000Z")
    await turns()
    seconds[0] += 14.0
    await turns()
    assert not made.held.is_set()
    seconds[0] += 1.0
    await turns()
    assert made.held.is_set()


async def test_one_that_cannot_renew_ends_before_another_one_may_act(server, seconds, start):
    made, task = start("a")
    await turns()
    server.error = AWAY
    seconds[0] += module.RENEW_WITHIN_SECONDS - 0.1
    await turns()
    assert made.held.is_set()
    assert module.RENEW_WITHIN_SECONDS < module.LEASE_SECONDS
    seconds[0] += 0.2
    with pytest.raises(LeaseLostError, match="lost Lease ns/eldr-operator: not renewed for 10 s"):
        await task
    assert not made.held.is_set(), "nothing is written any more, and nothing given back"


async def test_the_pause_after_a_slow_failure_ends_before_another_one_may_act(
    server, seconds, start, monkeypatch
):
    """Its last attempt begins just in time, takes nearly as long as it may, and fails."""
    _, task = start("a")
    await turns()
    renewed, wait = seconds[0], asyncio.sleep

    async def fails():
        since = seconds[0] - renewed
        seconds[0] += {0.0: 1.9}.get(since, 0.0) if since < 9.0 else module.REQUEST_SECONDS - 0.1
        server.error = AWAY

    async def sleep(pause):
        seconds[0] += pause
        await wait(0)

    server.answer = fails
    monkeypatch.setattr(module, "_RETRY_SECONDS", 2.0)
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    with pytest.raises(LeaseLostError, match="not renewed"):
        await task
    assert 10.0 < seconds[0] - renewed < module.LEASE_SECONDS


async def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_that(
    server, seconds, start, monkeypatch
):
    _, task = start("a")
    await turns()

    async def never(*_, **__):
        seconds[0] += (
            module.RENEW_WITHIN_SECONDS
        )  # the time that the request is given is real, and short here
        await asyncio.sleep(1000)

    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(server, "request", never)
    with pytest.raises(LeaseLostError, match="not renewed"):
        async with asyncio.timeout(30):
            await task


async def test_one_that_may_not_read_the_lease_is_not_ready_and_says_why(server, seconds, start, caplog):
    server.error = AWAY
    made, _ = start("a")
    await turns()
    assert made.not_ready() == ""
    seconds[0] += module.LEASE_SECONDS
    assert made.not_ready() == "Lease ns/eldr-operator: away"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    server.error = None
    await turns()
    assert made.held.is_set()
    assert made.not_ready() == ""


async def test_a_renewal_is_one_request_and_survives_answers_that_take_nearly_its_whole_time(
    server, seconds, start
):
    made, task = start("a")
    await turns()
    server.asked.clear()

    async def slow():
        seconds[0] += module.REQUEST_SECONDS - 0.1
        await asyncio.sleep(0)

    server.answer = slow
    await turns(200)
    assert {*server.asked} == {"PUT"}
    assert made.held.is_set()
    assert not task.done()


async def test_a_lease_that_something_else_has_changed_is_read_and_renewed_at_once(
    server, start, monkeypatch
):
    made, task = start("a")
    await turns()
    server.hold({"a": "person"}, **server.spec())
    server.asked.clear()
    monkeypatch.setattr(module, "_RETRY_SECONDS", 3600.0)
    await turns()
    assert server.asked == ["PUT", "GET", "PUT"]
    assert made.held.is_set()
    assert not task.done()


@pytest.mark.parametrize("lasts", [999_999, None])
async def test_a_restored_lease_counts_no_longer_than_our_own(server, seconds, start, lasts):
    server.hold(holderIdentity="gone", leaseDurationSeconds=lasts, renewTime="2031-01-01T00:00:00.000000Z")
    made, _ = start("b")
    await turns()
    seconds[0] += module.LEASE_SECONDS
    await turns()
    assert made.held.is_set()


async def test_one_that_finds_another_holder_ends(server, start):
    made, task = start("a")
    await turns()
    assert made.held.is_set()
    server.hold(holderIdentity="b", leaseDurationSeconds=15)
    with pytest.raises(LeaseLostError, match="lost Lease ns/eldr-operator to b"):
        await task


async def test_one_that_could_not_serve_leaves_a_free_lease_to_one_that_could(server, seconds, start):
    blind, _ = start("blind", is_ready=lambda: False)
    await turns()
    leader, task = start("leader")
    await turns()
    assert (blind.held.is_set(), leader.held.is_set()) == (False, True)
    for _ in range(6):
        seconds[0] += module.LEASE_SECONDS / 3
        await turns()
    task.cancel()
    await leader.release()
    await turns()
    seconds[0] += module.LEASE_SECONDS / 2
    await turns()
    assert not blind.held.is_set(), "how long it was free before does not count"
    other, _ = start("other")
    await turns()
    assert (blind.held.is_set(), other.held.is_set()) == (False, True)


async def test_one_that_could_not_serve_takes_what_nobody_else_does(server, seconds, start):
    blind, _ = start("blind", is_ready=lambda: False)
    await turns()
    seconds[0] += module.LEASE_SECONDS - 0.1
    await turns()
    assert not blind.held.is_set()
    seconds[0] += 0.2
    await turns()
    assert blind.held.is_set()


async def test_the_one_that_acts_goes_on_when_it_could_not_serve_any_more(server, seconds, start):
    can_serve = True
    made, _ = start("a", is_ready=lambda: can_serve)
    await turns()
    can_serve = False
    for _ in range(4):
        seconds[0] += 5.0
        await turns()
    assert made.held.is_set()
    assert server.spec()["leaseTransitions"] == 1


async def test_alone_it_acts_at_once():
    made = Lease(None, Settings(), lambda: None)
    task = asyncio.create_task(made.run())
    async with asyncio.timeout(10):
        await made.held.wait()
    await made.release()
    task.cancel()
