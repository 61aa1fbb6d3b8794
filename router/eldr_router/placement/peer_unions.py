"""Reports of other routers: merged while fresh, then forgotten."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from eldr.addresses import Address, authority
from eldr.core.signature import Floats
from eldr_router.placement.exchange import UnionReport
from eldr_router.placement.locality import Locality

_STALE_SECONDS = 2.0
"""An older report of another router no longer distinguishes engines."""


@dataclass(slots=True)
class _Peer:
    """Another router."""

    report: UnionReport
    rows: dict[str, tuple[int, Floats]]
    received_at: float


class PeerUnions:
    """Other routers' tables.

    Parameters
    ----------
    locality : Locality
        Gets them as long as they are fresh and of its own shape.
    """

    def __init__(self, locality: Locality) -> None:
        self._locality = locality
        self._unions = locality.unions
        self._peers: dict[Address, _Peer] = {}
        self._asked: dict[Address, _Peer | None] = {}

    def question(self, address: Address) -> tuple[str, int]:
        """Return whose tables to ask for, and from which version on."""
        if self._locality.unions is not self._unions:  # it began anew: all routers report everything again
            self._unions = self._locality.unions
            self._peers.clear()
        peer = self._peers.get(address)
        self._asked[address] = peer
        return (peer.report.source, peer.report.version) if peer is not None else ("", 0)

    def receive(self, address: Address, report: UnionReport, now: float) -> None:
        """Take an answer."""
        unions, peer = self._unions, self._peers.get(address)
        if unions is None or unions is not self._locality.unions:
            return
        if report.shape != unions.shape:  # it follows another model, or another centroid set, for a moment
            self._forget(address)
            return
        if self._asked.get(address) is not peer:
            return  # it answers with changes of what was forgotten meanwhile
        if peer is not None and peer.report.source != report.source:
            self._forget(address)
            peer = None
        rows = {} if peer is None else peer.rows
        for engine, row in report.rows.items():
            if row[0]:
                rows[engine] = row
            else:
                rows.pop(engine, None)
        self._peers[address] = _Peer(report, rows, now)
        if report.rows or peer is None:
            unions.merge(report.source, dict(rows), report.rows.keys())
        if report.profiles and self._locality.profiles is not None:
            # by address: a name changes whenever an engine is forgotten, and what was merged is not to count again
            self._locality.profiles.merge(authority(*address), report.profiles)

    def expire(self, now: float) -> None:
        """Forget stale reports.

        Their sequences count as the pool's mean from then on, and load decides more.
        """
        for address, peer in list(self._peers.items()):
            if now - peer.received_at > _STALE_SECONDS:
                self._forget(address)

    def retain(self, addresses: Collection[Address]) -> None:
        """Forget routers that are not listed any longer."""
        for address in self._asked.keys() - addresses:
            self._forget(address)
            self._asked.pop(address)
            if self._locality.profiles is not None:
                self._locality.profiles.forget(authority(*address))

    @property
    def known(self) -> int:
        """Routers whose tables count at the moment."""
        return len(self._peers)

    def _forget(self, address: Address) -> None:
        peer = self._peers.pop(address, None)
        if peer is not None and self._locality.unions is not None:
            self._locality.unions.merge(peer.report.source, {})
