"""How a simulated decode engine pulls a prompt's KV."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from types import TracebackType
from typing import Any, Self

import httpx

from eldr.addresses import authority
from eldr.clients import UNBOUNDED
from eldr.contract import LATE_DISCARDED, LATE_PREFILLED
from eldr.sim.telemetry import EngineMetrics
from eldr.wire import WireError, pull_deadline

logger = logging.getLogger(__name__)


class TransferError(Exception):
    """The KV blocks of a prefill engine could not be pulled."""


class Transfer:
    """Pulls of one engine; an asynchronous context manager.

    Parameters
    ----------
    metrics : EngineMetrics
    heeds_deadlines : bool
        False: ``eldr_pull_before`` means nothing to it, as to an engine without the plug-in.
    key : str
        Of its KV: prefill engines with another one refuse a pull, as vLLM's do by the hash that they compare first.
    """

    def __init__(self, metrics: EngineMetrics, *, heeds_deadlines: bool = True, key: str = "") -> None:
        self._key = key
        self._metrics = metrics
        self._heeds_deadlines = heeds_deadlines
        self._client = httpx.AsyncClient(timeout=5.0, limits=UNBOUNDED)
        self._releasing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._releasing:
            task.cancel()
        await self._client.aclose()

    async def pull(self, params: dict[str, Any]) -> str | None:
        """Read a prompt's KV from its prefill engine.

        Returns
        -------
        str or None
            None if the deadline has passed: the prompt is to be prefilled here.

        Raises
        ------
        TransferError
            If the side channel cannot be reached, is another engine than the one named, or answers after the deadline.
        """
        deadline = _deadline(params) if self._heeds_deadlines else math.inf
        if time.time() >= deadline:
            logger.warning(
                "its KV had to be pulled %.3f s ago; the prompt is prefilled here", time.time() - deadline
            )
            self._metrics.late_pull(LATE_PREFILLED)
            self.release(params)
            return None
        try:
            kv = await self._read(params)
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            self._metrics.kv_failed.inc()
            raise TransferError(f"{type(error).__name__}: {error}") from error
        if time.time() >= deadline:
            self._metrics.late_pull(LATE_DISCARDED)
            raise TransferError(f"the KV came {time.time() - deadline:.3f} s after its deadline")
        self._metrics.prompt_tokens.inc(int(params.get("remote_num_tokens", 0)))
        return kv

    def release(self, params: dict[str, Any]) -> None:
        """Have the prefill engine free the blocks, or let the lease end."""
        task = asyncio.get_running_loop().create_task(self._release(params))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, params: dict[str, Any]) -> None:
        try:
            await self._read(params)
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            logger.warning("a prefill engine keeps its blocks until their lease ends: %s", error)

    async def _read(self, params: dict[str, Any]) -> str:
        source = authority(params["remote_host"], int(params["remote_port"]))
        names = {"engine_id": params["remote_engine_id"], "request_id": params["remote_request_id"]}
        names["kv_key"] = self._key
        answer = await self._client.post(f"http://{source}/sim/v1/pull", json=names)
        answer.raise_for_status()
        return str(answer.json()["kv"])


def _deadline(params: dict[str, Any]) -> float:
    try:
        deadline = pull_deadline(params)
    except WireError as error:
        logger.warning("a request has no deadline for its KV: %s", error)
        deadline = None
    return float("inf") if deadline is None else deadline
