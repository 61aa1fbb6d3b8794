"""Objects that could not be written, and whether that is their own affair: then the rest of a pass goes on."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple

from eldr_operator.errors import ApiError, ForeignConflictError, OwnedElsewhereError, RequestFailedError

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
        If there is no answer, or one that asks to come back later.
    ConflictError
        If what the write was made from has changed.
    """
    try:
        await write
    except ForeignConflictError as error:
        return Unwritten(kind, name, FOREIGN, str(error))
    except OwnedElsewhereError as error:
        return Unwritten(kind, name, REFUSED, str(error))
    except RequestFailedError as error:
        return Unwritten(kind, name, UNAVAILABLE, f"{kind} {name}: {error.message}")
    except ApiError as error:
        return Unwritten(kind, name, REFUSED, f"{kind} {name}: {error.message or error}")
    return None
