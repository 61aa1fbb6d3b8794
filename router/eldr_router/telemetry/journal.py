"""The journal: a line for each failure and each chain of retries.

On wish a line for each request.

A line is ``request`` and a JSON object: ids, engines tried, causes, what the client saw. Never a word of a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import orjson

from eldr_router.engines.health import Failure

log = logging.getLogger("eldr_router.requests")

_QUIET = frozenset(("ok", "disconnected", "overloaded", "engine_error"))
"""Outcomes that alone are no reason for a line: they are the client's, or there are too many of them.

So is whatever the router refuses with 4xx: no client may fill the log by its mistakes.
"""


class Journal:
    """Writes the lines.

    Parameters
    ----------
    access : bool
        A line for every request, not only for those that something happened to.
    """

    def __init__(self, *, access: bool) -> None:
        self._access = access

    def wants(self, outcome: str, status: int, failures: Collection[Failure]) -> bool:
        """Return whether a request deserves a line."""
        return self._access or _is_noteworthy(outcome, status, failures)

    def write(
        self,
        outcome: str,
        status: int,
        failures: Collection[Failure],
        fields: dict[str, Any],
        message: str = "",
    ) -> None:
        """Write a request's line.

        Parameters
        ----------
        outcome : str
            As in the request metric.
        status : int
            What the client got; 0 if nothing.
        failures : collection of Failure
            Attempts given up.
        fields : dict
            What else is known of it.
        message : str
            The last error.
        """
        tried = [
            {
                "leg": f.leg,
                "engine": None if f.engine is None else str(f.engine),
                "cause": f.cause,
                "message": f.message,
            }
            for f in failures
        ]
        line: dict[str, Any] = {"outcome": outcome, "status": status, **fields}
        if tried:
            line["tried"] = tried
        if message:
            line["error"] = message
        level = logging.WARNING if _is_noteworthy(outcome, status, failures) else logging.INFO
        log.log(level, "request %s", orjson.dumps(line).decode())


def _is_noteworthy(outcome: str, status: int, failures: Collection[Failure]) -> bool:
    return bool(failures) or not (outcome in _QUIET or 400 <= status < 500)
