"""An engine as a router knows it, and a request's load on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Self

from eldr.core.union import Stay
from eldr_router.engines.health import Health
from eldr_router.engines.kv_room import KvCache
from eldr_router.engines.load import Load
from eldr_router.engines.spec import EndpointSpec


class Endpoint:
    """An engine that may be sent requests."""

    __slots__ = (
        "address",
        "authority",
        "cache",
        "counting",
        "freed",
        "health",
        "in_flight",
        "in_flight_elsewhere",
        "is_full",
        "load",
        "name",
        "reported_at",
        "spec",
        "tokens",
        "untested",
    )

    def __init__(self, spec: EndpointSpec, freed: Callable[[], None]) -> None:
        self.spec = spec
        self.freed = freed  # to be called when it has room again
        self.in_flight = 0
        self.tokens = 0  # of KV that its sequences are expected to hold
        self.cache: KvCache | None = None  # as far as it reports it
        self.health = Health()
        self.untested = ""  # the engine's version, where it says that its plug-in was not tested with it
        self.counting = True  # until it says that it has failed to
        self.load: Load | None = None  # its last report
        self.reported_at = -math.inf  # when that came
        self.in_flight_elsewhere = 0  # sequences of others in flight, by that report
        self.is_full = False  # it has declined a request since
        # what never changes, as each request needs it
        self.name = spec.name
        self.address = spec.host, spec.port
        self.authority = spec.authority.encode()

    def __str__(self) -> str:
        return self.name

    def report(self, load: Load | None, now: float) -> None:
        """Take a report; None: the engine reports nothing.

        Requests on their way to the engine hide as many of others until the next report: an engine that is asked too early declines.
        """
        self.load, self.reported_at, self.is_full = load, now, False
        self.in_flight_elsewhere = 0 if load is None else max(0, load.in_flight - self.in_flight)
        self.freed()


class Occupancy:
    """A request's load on an engine, a context manager.

    It is released once, however often that is asked.

    Parameters
    ----------
    endpoint : Endpoint
    sequences : int
        How many sequences the request runs: that is what an engine has room for.
    stay : Stay, optional
        The request's part in the engine's expected union.
    tokens : int
        Of KV that it is expected to hold.
    """

    __slots__ = ("_endpoint", "_sequences", "_stay", "_tokens")

    def __init__(
        self, endpoint: Endpoint, sequences: int = 1, stay: Stay | None = None, tokens: int = 0
    ) -> None:
        self._endpoint: Endpoint | None = endpoint
        self._sequences = sequences
        self._stay = stay
        self._tokens = tokens
        endpoint.in_flight += sequences
        endpoint.tokens += tokens

    def release(self) -> None:
        """Give the room back."""
        if self._endpoint is not None:
            endpoint, self._endpoint = self._endpoint, None
            endpoint.in_flight -= self._sequences
            endpoint.tokens -= self._tokens
            endpoint.freed()
            if self._stay is not None:
                self._stay.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
