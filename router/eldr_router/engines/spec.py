"""Engines as sources describe them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from eldr.addresses import authority


class EndpointSpec(NamedTuple):
    """An engine as a source describes it.

    ``slot`` is the centroid that it belongs to, -1 for none. ``kv`` is its key, see :mod:`eldr_router.engines.pairing`.
    """

    role: str
    name: str
    host: str
    port: int
    slot: int = -1
    kv: str = ""

    @property
    def authority(self) -> str:
        """``host:port`` as it stands in URLs and Host headers."""
        return authority(self.host, self.port)
