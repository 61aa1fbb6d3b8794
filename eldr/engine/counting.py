"""Whether an engine counts: what goes wrong there ends counting, never the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec

from eldr.engine.errors import HiddenRoutingError

P = ParamSpec("P")

logger = logging.getLogger("vllm.eldr")  # where the rest of the plug-in logs; this module has no vLLM


class Counting:
    """The state of what counts in one process. As a context it takes every exception but those that must end the engine.

    Every hook that vLLM calls runs in such a context. Inside a hook, more of them separate what must go on from what failed.

    Parameters
    ----------
    what : str
        What is counted, for the log.

    Attributes
    ----------
    stopped : str
        Why nothing is counted any more; empty while it is.

    Examples
    --------
    >>> counting = Counting("signatures")
    >>> with counting:
    ...     raise KeyError("a field that vLLM renamed")
    >>> counting.stopped
    "counting failed: KeyError('a field that vLLM renamed')"
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.stopped = ""

    def stop(self, why: str) -> None:
        """Count no more; the first reason is kept, and logged."""
        if not self.stopped:
            self.stopped = why
            logger.error("ELDR: serving without %s from now on: %s", self._what, why)

    def guarded(self, function: Callable[P, None]) -> Callable[P, None]:
        """Return a function whose failures end counting, not its caller."""

        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            with self:
                function(*args, **kwargs)

        return run

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, HiddenRoutingError):  # known, and reported with its remedy
            self.stop(str(error))
            return True
        if not self.stopped:
            logger.error("ELDR: counting failed", exc_info=error)
        self.stop(f"counting failed: {error!r}")
        return True
