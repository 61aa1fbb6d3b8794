"""Objects that could not be written, and whether that is their own affair: then the rest of a pass goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable
from typing import Any, NamedTuple

from eldr_operator.backoff import Backoff
from eldr_operator.errors import (
    ApiError,
    ForeignConflictError,
    NoAnswerError,
    OwnedElsewhereError,
    RequestFailedError,
)

PATIENCE_SECONDS = 15.0
"""For all writes of a pass: one more may be under way at its end, and the status is still written within the pass."""
REFUSED = "ChildRefused"
"""The API server does not accept it, or its name is taken."""
UNAVAILABLE = "ChildUnavailable"
"""The API server fails at it, as when an admission webhook is down: the same may succeed later."""
FOREIGN = "ForeignConflict"
"""Others change it back again and again."""
RETRY_SECONDS = 5.0
"""Until the next attempt, where the API server has not refused the last one."""


class Unwritten(NamedTuple):
    """An object, or all of a kind where ``name`` is empty, and why it is not as it should be.

    Parameters
    ----------
    reason : str
        Of the condition Progressing.
    seconds : float
        Until it is tried again.
    """

    kind: str
    name: str
    reason: str
    message: str
    seconds: float = RETRY_SECONDS


async def tried(kind: str, name: str, write: Awaitable[object]) -> Unwritten | None:
    """Await a write; return why it failed, where that is this object's own affair.

    Raises
    ------
    ApiUnavailableError
        If the API server cannot be reached, or asks to come back later.
    ConflictError
        If what the write was made from has changed.
    """
    try:
        await write
    except ForeignConflictError as error:
        return Unwritten(kind, name, FOREIGN, str(error), error.seconds)
    except OwnedElsewhereError as error:
        return Unwritten(kind, name, REFUSED, str(error))
    except NoAnswerError:
        return Unwritten(kind, name, UNAVAILABLE, f"{kind} {name}: the API server does not answer in time")
    except RequestFailedError as error:
        return Unwritten(kind, name, UNAVAILABLE, f"{kind} {name}: {error.message}")
    except ApiError as error:
        return Unwritten(kind, name, REFUSED, f"{kind} {name}: {error.message or error}")
    return None


class Writes:
    """The writes of a pass over a deployment.

    Where some of them take all of its time, the others wait for the next pass, and this one still ends. What the API server has refused
    is tried again at growing intervals.

    Parameters
    ----------
    owner : tuple of str
        Namespace and name of the deployment.
    refusals : Backoff
        Of all deployments.
    """

    def __init__(self, owner: tuple[str, str], refusals: Backoff, monotonic: Callable[[], float]) -> None:
        self._owner, self._refusals = owner, refusals
        self._monotonic = monotonic
        self._until = monotonic() + PATIENCE_SECONDS

    async def tried(
        self, kind: str, name: str, write: Coroutine[Any, Any, object], asked: Hashable = None
    ) -> Unwritten | None:
        """Await a write as :func:`tried` does, or return why it is not tried now.

        Parameters
        ----------
        asked : hashable
            What is to be written: another wish does not wait for a refusal of this one.
        """
        what = kind, name, asked
        if waiting := self._refusals.waiting(self._owner, what):
            write.close()
            return Unwritten(kind, name, REFUSED, *waiting)
        if self._monotonic() >= self._until:
            write.close()
            return Unwritten(
                kind, name, UNAVAILABLE, f"{kind} {name}: others take so long that it was not tried yet"
            )
        fault = await tried(kind, name, write)
        if fault is None:
            self._refusals.succeeded(self._owner, what)
        elif fault.reason == REFUSED:
            self._refusals.failed(self._owner, what, fault.message)
            waiting = self._refusals.waiting(self._owner, what)
            return fault._replace(seconds=waiting.seconds) if waiting else fault
        return fault


def seconds_until_tried(unwritten: Collection[Unwritten]) -> list[float]:
    """Return in how many seconds the first of them is tried again, if there is one."""
    return [min(each.seconds for each in unwritten)] if unwritten else []
