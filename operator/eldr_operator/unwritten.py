"""Objects that could not be written, and whether that is their own affair: then the rest of a pass goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

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


class Unwritten(NamedTuple):
    """An object, or all of a kind where ``name`` is empty, and why it is not as it should be.

    Parameters
    ----------
    reason : str
        Of the condition Progressing.
    """

    kind: str
    name: str
    reason: str
    message: str


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
        return Unwritten(kind, name, FOREIGN, str(error))
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
    """The writes of a pass: where some of them take all of its time, the others wait for the next one, and the pass still ends."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until = monotonic() + PATIENCE_SECONDS

    async def tried(self, kind: str, name: str, write: Coroutine[Any, Any, object]) -> Unwritten | None:
        """Await a write as :func:`tried` does, or tell that there is no time for it."""
        if self._monotonic() < self._until:
            return await tried(kind, name, write)
        write.close()
        return Unwritten(
            kind, name, UNAVAILABLE, f"{kind} {name}: others take so long that it was not tried yet"
        )
