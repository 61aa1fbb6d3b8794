"""What is known of another router's address, and when its share lapses. Pure.

A member that is silent may be alive behind a broken network. Its share lapses only where two more things are known:
Kubernetes doubts it (its pod is not ready, or terminating), and all decode engines refuse late pulls. Then too many
sequences cost time, and not wrong tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eldr.addresses import authority
from eldr_router.plan.split import Report

Address = tuple[str, int]

LAPSE_SECONDS = 10.0
"""A member lapses once it was silent, and in doubt, for so long."""
STOPPED_SECONDS = 8.0
"""A router that did nothing for so long may have lapsed elsewhere: less than ``LAPSE_SECONDS`` by the time of an exchange."""
HELD_SECONDS = 300.0
"""So long the last count of a member that left without a word is believed; routers that end give requests as much time."""
_UNLISTED_SECONDS = 5.0
"""Lists of two routers may differ for so long; after that it is a mistake in somebody's settings."""


@dataclass
class Peer:
    """What is known of an address: ``problem`` says why the last question was not answered, or what is wrong there.

    ``in_doubt`` is what the source says, ``doubted`` since when. ``since`` is when the address was first known.
    """

    report: Report | None = None
    heard: float | None = None
    unlisted: float | None = None
    resolved: bool = False
    problem: str | None = None
    in_doubt: bool = False
    doubted: float | None = None
    since: float | None = None
    lapsed: bool = False

    def pass_time(self, now: float) -> bool:
        """Take note of the time; return whether the member's share lapses now, if the engines allow it."""
        if self.since is None:
            self.since = now
        if not self.in_doubt:
            self.doubted = None
        elif self.doubted is None:
            self.doubted = now
        if self.lapsed or self.doubted is None or (self.resolved and self.report is None):
            return False
        return now - max(self.doubted, self.since, self.heard or self.since) >= LAPSE_SECONDS

    def forget(self, now: float) -> None:
        """Begin to wait for the member: what is known of it is too old."""
        self.resolved, self.lapsed, self.doubted, self.since = False, False, None, now

    def lists(self, router: str, report: Report, now: float) -> None:
        """Take note of whether the other router knows of router ``router``."""
        if router in report.view.members:
            self.unlisted = None
        elif self.unlisted is None:
            self.unlisted = now
        elif now - self.unlisted > _UNLISTED_SECONDS:
            self.problem = "does not list this router: every router needs a --peer for every other one"


class Held:
    """What members that left without a word had in flight when they were last heard.

    ``counts`` has it by address, as text; None for one that was never heard.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int] | None] = {}
        self._since: dict[Address, float] = {}

    def lapsed(self, address: Address, peer: Peer, now: float) -> str:
        """Take a member's last count, and return its address as text."""
        where = authority(*address)
        self.counts[where] = None if peer.report is None else _some(peer.report)
        self._since[address] = now if peer.heard is None else peer.heard
        return where

    def left(self, address: Address, peer: Peer, others: Iterable[Peer]) -> None:
        """Take the last count of a member that is not listed any more, unless it is heard at another address."""
        report = peer.report
        if report is None or peer.heard is None or peer.lapsed or not _some(report):
            return
        if not any(other.report is not None and other.report.router == report.router for other in others):
            self.lapsed(address, peer, peer.heard)

    def aged(self, now: float) -> list[Address]:
        """Return the addresses whose counts are too old to be believed."""
        return [address for address, since in self._since.items() if now - since > HELD_SECONDS]

    def drop(self, address: Address) -> str:
        """Count an address no longer, and return its text."""
        where = authority(*address)
        self._since.pop(address, None)
        self.counts.pop(where, None)
        return where


def last_reports(peers: Mapping[Address, Peer], members: Iterable[str]) -> list[tuple[float, Report]]:
    """Return when each other member was last heard, at whichever address, and what it said."""
    found: dict[str, tuple[float, Report]] = {}
    for peer in peers.values():
        if peer.report is not None and peer.heard is not None and not peer.lapsed:
            known = found.get(peer.report.router)
            if known is None or known[0] < peer.heard:
                found[peer.report.router] = peer.heard, peer.report
    return [found[member] for member in members if member in found]


def _some(report: Report) -> dict[str, int]:
    return {engine: count for engine, count in report.in_flight.items() if count > 0}
