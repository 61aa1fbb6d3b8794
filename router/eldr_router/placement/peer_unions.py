"""What other routers tell of their requests' experts: merged while it is fresh, forgotten when it is not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from eldr.addresses import Address, authority
from eldr.core.signature import Floats
from eldr_router.placement.exchange import Told
from eldr_router.placement.locality import Locality

_STALE_SECONDS = 2.0
"""What another router said longer ago no longer tells engines apart."""


@dataclass
class _Teller:
    """Another router."""

    told: Told
    rows: dict[str, tuple[int, Floats]]
    heard: float


class Tables:
    """Other routers' tables.

    Parameters
    ----------
    locality : Locality
        Gets them as long as they are fresh and of its own shape.
    """

    def __init__(self, locality: Locality) -> None:
        self._locality = locality
        self._unions = locality.unions
        self._tellers: dict[Address, _Teller] = {}
        self._asked: dict[Address, _Teller | None] = {}

    def question(self, address: Address) -> tuple[str, int]:
        """Return whose tables to ask for, and from which version on."""
        if self._locality.unions is not self._unions:  # it began anew: everybody tells everything again
            self._unions = self._locality.unions
            self._tellers.clear()
        teller = self._tellers.get(address)
        self._asked[address] = teller
        return (teller.told.of, teller.told.version) if teller is not None else ("", 0)

    def heard(self, address: Address, told: Told, now: float) -> None:
        """Take an answer."""
        unions, teller = self._unions, self._tellers.get(address)
        if unions is None or unions is not self._locality.unions:
            return
        if told.shape != unions.shape:  # it follows another model, or another centroid set, for a moment
            self._forget(address)
            return
        if self._asked.get(address) is not teller:
            return  # it answers with changes of what was forgotten meanwhile
        if teller is not None and teller.told.of != told.of:
            self._forget(address)
            teller = None
        rows = {} if teller is None else teller.rows
        for worker, row in told.rows.items():
            if row[0]:
                rows[worker] = row
            else:
                rows.pop(worker, None)
        self._tellers[address] = _Teller(told, rows, now)
        if told.rows or teller is None:
            unions.heard(told.of, dict(rows), told.rows.keys())
        if told.profiles and self._locality.profiles is not None:
            # by address: a name changes whenever an engine is forgotten, and what was heard is not to count again
            self._locality.profiles.heard(authority(*address), told.profiles)

    def expire(self, now: float) -> None:
        """Forget what is stale: its sequences count as the pool's mean from then on, and load decides more."""
        for address, teller in list(self._tellers.items()):
            if now - teller.heard > _STALE_SECONDS:
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
        return len(self._tellers)

    def _forget(self, address: Address) -> None:
        teller = self._tellers.pop(address, None)
        if teller is not None and self._locality.unions is not None:
            self._locality.unions.heard(teller.told.of, {})
