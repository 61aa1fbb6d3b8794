"""Decode engines: KV blocks are pulled, and used, only before the deadline that the router gave with them.

When a prefill engine's lease ends it gives the blocks to other requests, and whoever pulls them then reads what those
wrote, without an error. The scheduler half keeps such a pull from beginning: the prompt is prefilled here instead. Between
its decision and the read a handshake can take seconds, so the worker half watches the pulls in flight: one that has not
ended at its deadline is reported as failed, and vLLM never uses what it brings. What ended before was read before.

Prompts of which too little would be pulled (:mod:`eldr.engine.decode.windows`) are prefilled here in the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from eldr.contract import LATE_DISCARDED, LATE_PREFILLED
from eldr.engine.steps import transfer_of
from eldr.wire import WireError, pull_deadline

logger = logging.getLogger("vllm.eldr")  # where the rest of the plug-in logs; this module has no vLLM

_NEVER = float("-inf")
"""Deadline of what must not be pulled at all."""
_OFFER = "do_remote_prefill"  # the transport pulls if it is set, and clears it once it has taken the blocks' addresses

Count = Callable[[str], None]
"""Called with the outcome of every late pull."""


def offered(request: Any) -> bool:
    """Return whether a transport would pull a request's KV."""
    return bool(transfer_of(request).get(_OFFER))


def withdraw(request: Any) -> None:
    """Have nothing pulled for a request. The prefill engine frees the blocks at the request's end, or when their lease ends."""
    if offered(request):
        request.kv_transfer_params[_OFFER] = False


class PullDeadlines:
    """Scheduler half.

    Parameters
    ----------
    count : Count
    count_cut : callable
        Called for every prompt that is prefilled here because too little would be pulled.
    cut : callable
        Returns whether that is so for a prompt of so many tokens.
    """

    def __init__(self, count: Count, count_cut: Callable[[], None], cut: Callable[[int], bool]) -> None:
        self._count, self._count_cut, self._cut = count, count_cut, cut
        self._deadlines: dict[str, float] = {}
        self._refused: set[str] = set()
        # refused, and not yet reported to the prefill engine, which may free the blocks
        self._held: set[str] = set()
        self._pulling: dict[str, float] = {}

    def add(self, request: Any) -> None:
        """Take a new request's deadline; one that cannot be read is as good as none."""
        params = transfer_of(request)
        if not params.get(_OFFER):
            return
        if self._cut(request.num_prompt_tokens):
            self._deadlines[request.request_id] = _NEVER
            return
        try:
            deadline = pull_deadline(params)
        except WireError as error:
            logger.warning("ELDR: request %s has no deadline for its KV: %s", request.request_id, error)
            return
        if deadline is not None:
            self._deadlines[request.request_id] = deadline

    def refuse(self, request: Any) -> bool:
        """Take the offer of remote blocks away if it is too late, or would be too little; True if it was there until now.

        The caller must then have all connectors asked again: one that was asked earlier may have accepted the offer.
        """
        name, params = request.request_id, transfer_of(request)
        deadline = self._deadlines.get(name)
        if deadline is None or not params.get(_OFFER):
            return False
        late = time.time() - deadline
        if late < 0:
            return False
        params[_OFFER] = False
        self._held.add(name)
        if name not in self._refused:
            self._refused.add(name)
            if deadline == _NEVER:
                self._count_cut()
            else:
                self._count(LATE_PREFILLED)
                logger.warning(
                    "ELDR: request %s: its KV had to be pulled %.3f s ago; the prompt is prefilled here",
                    name,
                    late,
                )
        return True

    def allocated(self, request: Any) -> None:
        """Take that a request has its blocks: what was offered is pulled from now on.

        With the offer of a refused request the transport has the prefill engine free the blocks, as there is nothing
        left to pull: it would go on renewing their lease otherwise. If it was asked before us it does so at the
        request's end.
        """
        name = request.request_id
        if name in self._held:
            self._held.remove(name)
            request.kv_transfer_params[_OFFER] = True
        elif (deadline := self._deadlines.pop(name, None)) is not None:
            self._pulling[name] = deadline  # the offer is taken, and never made again

    def arrived(self, requests: Iterable[str] | None) -> None:
        """Forget the pulls that have ended."""
        for name in requests or ():
            self._pulling.pop(name, None)

    def pulls(self, scheduled: Iterable[str]) -> dict[str, float]:
        """Return the deadlines of the pulls in flight; requests that run in this step have nothing in flight."""
        self.arrived(scheduled)
        return dict(self._pulling)

    def end(self, request: Any) -> None:
        """Forget a request."""
        name = request.request_id
        if name in self._held:  # it never got blocks of its own
            self._held.remove(name)
            request.kv_transfer_params[_OFFER] = True
        self._deadlines.pop(name, None)
        self._pulling.pop(name, None)
        self._refused.discard(name)


class PullWatch:
    """Worker half."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._pulls: dict[str, float] = {}
        self._failed: set[str] = set()

    def begin(self, pulls: dict[str, float]) -> None:
        """Take the pulls in flight and their deadlines."""
        self._pulls = pulls
        self._failed &= pulls.keys()

    def late(self) -> set[str]:
        """Return the pulls whose deadline passed since they were asked for last; each is reported to vLLM once."""
        now = time.time()
        late = {name for name, deadline in self._pulls.items() if now >= deadline} - self._failed
        for name in late:
            self._count(LATE_DISCARDED)
            logger.warning(
                "ELDR: request %s: its KV has not arrived, and had to be there %.3f s ago; what comes is not used",
                name,
                now - self._pulls[name],
            )
        self._failed |= late
        return late
