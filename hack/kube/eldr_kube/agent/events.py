"""Events of pods, as ``kubectl describe`` shows them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx

from eldr_kube.agent.api import Api, ApiError
from eldr_kube.agent.clock import timestamp

Object = dict[str, Any]
QUIET_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Recorder:
    """Writes events in the background; one that repeats within a minute is written once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recent: dict[tuple[str, ...], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Record an event of a pod; ``kind`` is Normal or Warning."""
        now = asyncio.get_running_loop().time()
        self._recent = {key: when for key, when in self._recent.items() if now - when < QUIET_SECONDS}
        key = (pod["metadata"]["uid"], kind, reason, message)
        if kind == "Warning" and key in self._recent:
            return
        self._recent[key] = now
        task = asyncio.create_task(self._write(pod, kind, reason, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, pod: Object, kind: str, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        reference = {"apiVersion": "v1", "kind": "Pod"}
        reference |= {name: metadata[name] for name in ("name", "namespace", "uid")}
        body = {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": reference,
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "eldr-node-agent", "host": pod["spec"].get("nodeName", "")},
            "firstTimestamp": timestamp(),
            "lastTimestamp": timestamp(),
            "count": 1,
        }
        try:
            await self._api.call("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", body)
        except (
            ApiError,
            httpx.HTTPError,
        ) as error:  # the namespace may be ending: an event is never worth a failure
            _log.debug("event %s of %s: %s", reason, metadata["name"], error)

    async def close(self) -> None:
        """Drop what was not written yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
