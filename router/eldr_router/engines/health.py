"""Ejection of engines, and which end of a failed pull is at fault."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

Engine = Any
"""An engine's identity: anything that can be hashed; it is only compared."""

_FIRST_EJECTION = 1.0
_LONGEST_EJECTION = 30.0
_ENOUGH_ERRORS = 3


class Failure(NamedTuple):
    """One attempt that came to nothing."""

    leg: str
    engine: Engine
    cause: str
    message: str


class Health:
    """What an engine's last answers say about it."""

    __slots__ = ("_ejections", "_errors", "_partners", "_retry_at", "good_from", "probed_well")

    def __init__(self) -> None:
        self._ejections = 0
        self._retry_at = 0.0
        self._errors = 0.0  # since the last good answer
        self.probed_well = True
        # probe and ejection in one number: it is looked at for every engine with every request
        self.good_from = 0.0
        self._partners: set[Health] = set()  # other ends of the pulls that failed since the last good one

    def is_good(self, now: float) -> bool:
        """Return whether requests may go there.

        The engine is alive, and not ejected, or its ejection is over.
        """
        return now >= self.good_from

    @property
    def doubtful(self) -> bool:
        """Whether it failed since its last good answer."""
        return self._errors > 0 or bool(self._partners)

    def probed(self, *, well: bool) -> None:
        """Record a probe's result.

        It ends no ejection: an engine may be alive and fail requests.
        """
        self.probed_well = well
        self._look()

    def eject(self, now: float) -> None:
        """Eject the engine: it refused a connection, or takes no requests."""
        if now < self._retry_at:
            return  # requests that were already on their way when it was ejected say nothing new
        self._retry_at = now + min(_FIRST_EJECTION * 2**self._ejections, _LONGEST_EJECTION)
        self._ejections = min(self._ejections + 1, 10)
        self._look()

    def failed(self, now: float, weight: float = 1.0) -> None:
        """Note a failure; several in a row eject the engine.

        Parameters
        ----------
        now : float
            Seconds.
        weight : float
            1 for one that only the engine can be blamed for, less where the request may be.
        """
        self._errors += weight
        if self._errors > _ENOUGH_ERRORS - 0.01:  # thirds do not add up exactly
            self.eject(now)

    def answered(self) -> None:
        """Forget earlier failures after a good answer.

        Failed pulls stay: they are no answers of a prefill engine.
        """
        if not self._partners and (self._errors or self._ejections):
            self._errors = 0.0
            self._ejections = 0
            self._retry_at = 0.0
            self._look()

    def _look(self) -> None:
        self.good_from = self._retry_at if self.probed_well else math.inf

    def _pulled(self) -> None:
        self._partners.clear()
        self.answered()


def pulled(decode: Health, prefill: Health) -> None:
    """Note a good answer that rests on a pull: both ends are well."""
    decode._pulled()  # noqa: SLF001 - one unit
    prefill._pulled()  # noqa: SLF001


def pull_failed(decode: Health, prefill: Health, now: float) -> None:
    """Record a failed pull, and eject the end that must be at fault.

    The error looks the same whichever end is broken. So the end is ejected that failed with several others since its last
    good pull; a decode engine also if it failed three times while its prefill engine failed with no other.
    """
    decode._partners.add(prefill)  # noqa: SLF001 - one unit
    prefill._partners.add(decode)  # noqa: SLF001
    if len(decode._partners) > 1:  # noqa: SLF001
        decode.eject(now)
    elif len(prefill._partners) > 1:  # noqa: SLF001
        prefill.eject(now)
    else:
        decode.failed(now)
