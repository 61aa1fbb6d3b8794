"""Which release serves a namespace, by its Lease and our own clock."""

import asyncio
from datetime import timedelta

import pytest

from eldr_operator.errors import ApiError, ApiUnavailableError
from eldr_operator.kube import served as module
from eldr_operator.kube.lease import LEASE_SECONDS
from eldr_operator.kube.served import Served
from tests.unit.operator.builders import NOW
from tests.unit.operator.leases import AWAY, Server


class Releases:
    """Operators of releases; the clock stands still but for what a test lets pass."""

    def __init__(self, server, now):
        self.server, self.seconds, self.woken, self.namespaces = server, 0.0, [], ["n"]
        self._now, self._running = now, []

    def make(self, holder):
        return Served(
            self.server,
            holder,
            lambda: self._now + timedelta(seconds=self.seconds),
            lambda: self.seconds,
            wanted=lambda: self.namespaces,
            wake=lambda namespace: self.woken.append((holder, namespace)),
        )

    def start(self, made):
        self._running.append(asyncio.create_task(made.run()))
        return self._running[-1]

    async def turns(self):
        for _ in range(100):
            await asyncio.sleep(0)

    async def pass_(self, seconds):
        for _ in range(int(seconds / 5)):
            self.seconds += 5.0
            await self.turns()

    async def end(self):
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


@pytest.fixture
async def releases(monkeypatch):
    monkeypatch.setattr(module, "_EVERY_SECONDS", 0.0)
    made = Releases(Server(), NOW)
    yield made
    await made.end()


async def test_another_release_writes_nothing_until_the_first_has_not_renewed_it_for_its_time(
    releases, caplog
):
    first, second = releases.make("a/eldr"), releases.make("b/eldr")
    assert await first.other("n") == ""
    renewing = releases.start(first)
    releases.start(second)
    await releases.pass_(60)
    assert (await first.other("n"), await second.other("n")) == ("", "a/eldr")
    assert second.elsewhere == {"n": "a/eldr"}
    assert "namespace n is served by release a/eldr" in caplog.text
    renewing.cancel()
    await releases.pass_(LEASE_SECONDS - 5)
    assert await second.other("n") == "a/eldr"
    await releases.pass_(10)
    assert (await second.other("n"), second.elsewhere) == ("", {})
    assert releases.woken == [("b/eldr", "n")]
    releases.start(first)  # it is late
    await releases.pass_(5)
    assert await first.other("n") == "b/eldr"


async def test_an_upgrade_that_gives_it_back_for_a_moment_loses_nothing(releases):
    old, standby, other = releases.make("a/eldr"), releases.make("a/eldr"), releases.make("b/eldr")
    renewing = releases.start(old)
    await releases.turns()
    releases.start(other)
    await releases.pass_(30)
    renewing.cancel()
    await old.release()
    assert releases.server.spec("n")["holderIdentity"] == ""
    await releases.pass_(10)
    assert await other.other("n") == "a/eldr"
    assert await standby.other("n") == "", "it may at once"
    releases.start(standby)
    await releases.pass_(60)
    assert (await standby.other("n"), await other.other("n")) == ("", "a/eldr")
    assert releases.woken == []


async def test_a_release_that_was_given_back_before_is_no_reason_to_wait(releases):
    first = releases.make("a/eldr")
    await first.other("n")
    await first.release()
    assert await releases.make("b/eldr").other("n") == ""


async def test_a_namespace_without_deployments_is_given_back(releases):
    made = releases.make("a/eldr")
    releases.start(made)
    await releases.turns()
    assert releases.server.spec("n")["holderIdentity"] == "a/eldr"
    releases.namespaces = []
    await releases.turns()
    assert releases.server.spec("n")["holderIdentity"] == ""
    writes = releases.server.asked.count("PUT")
    await releases.turns()
    assert releases.server.asked.count("PUT") == writes


async def test_without_the_right_to_leases_it_serves_as_before_and_says_so_once(releases, caplog):
    releases.server.error = ApiError(403, "Forbidden", "you may not")
    made = releases.make("a/eldr")
    assert await made.other("n") == ""
    releases.start(made)
    await releases.pass_(60)
    assert caplog.text.count("Lease n/eldr-served-by: 403 Forbidden: you may not") == 1


async def test_an_api_server_that_is_away_changes_nothing_and_is_waited_for_at_first(releases):
    made = releases.make("a/eldr")
    releases.server.error = AWAY
    with pytest.raises(ApiUnavailableError):
        await made.other("n")
    releases.server.error = None
    assert await made.other("n") == ""
    releases.start(made)
    releases.server.error = AWAY
    await releases.pass_(60)
    assert await made.other("n") == ""
