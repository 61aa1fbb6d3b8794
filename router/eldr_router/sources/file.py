"""The file source: a worker file and a centroid file, both watched."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta, Struct
from msgspec.structs import replace

from eldr import centroids
from eldr.contract import POLICY_DOMAIN, PORT_ENGINE, ROLE_DECODE, ROLE_PREFILL
from eldr_router.engines.spec import EndpointSpec
from eldr_router.placement.table import PoolSettings, RoutingDocument, RoutingError, SetRef, read
from eldr_router.settings import SettingsError, parse_url
from eldr_router.sources.routing import MissingError, Routing

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5

Stamp = tuple[int, int, int] | None


class Worker(Struct, frozen=True, forbid_unknown_fields=True):
    """An engine; its name becomes a response header.

    ``kv`` is the same for engines that may exchange KV.
    """

    name: Annotated[str, Meta(pattern=r"^[ -~]+\Z")]
    url: str
    slot: Annotated[int, Meta(ge=-1, le=1 << 20)] | None = None
    kv: str = ""


class Workers(PoolSettings, frozen=True, forbid_unknown_fields=True):
    """A worker file."""

    prefill: tuple[Worker, ...] | None = None
    decode: tuple[Worker, ...] | None = None


def parse_workers(text: str) -> tuple[RoutingDocument, list[EndpointSpec], list[EndpointSpec]]:
    """Return settings, prefill and decode engines of a worker file.

    RoutingError names the field, the value and what is expected.
    """
    try:
        fields = yaml.safe_load(text)
    except Exception as error:  # noqa: BLE001 - its constructors fail in many ways
        raise RoutingError(f"not YAML: {error!s:.300}") from None
    workers = read(fields, Workers)
    decode = _endpoints(ROLE_DECODE, workers.decode or ())
    slots = tuple(sorted(spec.slot for spec in decode if spec.slot >= 0))
    if len(set(slots)) < len(slots):
        raise RoutingError(f"decode: every slot belongs to one engine, got {list(slots)}")
    if workers.policy == POLICY_DOMAIN and decode and len(workers.domains) > len(slots):
        raise RoutingError(
            f"domains: {len(workers.domains)} of them cannot share {len(slots)} decode engines with a slot; every domain needs one"
        )
    document = msgspec.convert(workers, RoutingDocument, from_attributes=True)
    return replace(document, slots=slots), _endpoints(ROLE_PREFILL, workers.prefill or ()), decode


def _endpoints(role: str, workers: tuple[Worker, ...]) -> list[EndpointSpec]:
    specs: dict[str, EndpointSpec] = {}
    for index, worker in enumerate(workers):
        if worker.name in specs:
            raise RoutingError(f"{role}[{index}].name: {worker.name!r} appears twice")
        try:
            host, port = parse_url(f"{role}[{index}].url", worker.url, PORT_ENGINE)
        except SettingsError as error:
            raise RoutingError(str(error)) from None
        slot = index if worker.slot is None else worker.slot
        slot = slot if role == ROLE_DECODE else -1  # none
        specs[worker.name] = EndpointSpec(role, worker.name, host, port, slot, worker.kv)
    return list(specs.values())


class FileSource:
    """Watches the worker file and the centroid file by their stat."""

    def __init__(self, workers: Path, centroid_file: Path | None, routing: Routing) -> None:
        self._workers = workers
        self._centroids = centroid_file
        self._routing = routing
        self._stamps: tuple[Stamp, Stamp] | None = None
        self._document: RoutingDocument | None = None
        self._active: SetRef | None = None
        self._epoch = 0

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await self.step()
            await asyncio.sleep(_POLL_SECONDS)

    async def step(self) -> None:
        """Read what has changed since the last step."""
        stamps = await asyncio.to_thread(lambda: (_stamp(self._workers), _stamp(self._centroids)))
        if stamps == self._stamps:
            return
        self._stamps = stamps
        problems: list[str] = []
        try:
            text = await asyncio.to_thread(self._workers.read_text)
            self._document, prefill, decode = parse_workers(text)
            self._routing.set_endpoints(ROLE_PREFILL, prefill)
            self._routing.set_endpoints(ROLE_DECODE, decode)
        except (OSError, UnicodeDecodeError, RoutingError) as error:
            problems.append(f"worker file {self._workers}: {error}")
        if self._centroids is not None and stamps[1] is not None:
            try:
                self._point_at(await asyncio.to_thread(self._centroids.read_bytes), self._centroids.stem)
            except OSError as error:
                problems.append(f"centroid file {self._centroids}: {error}")
        elif self._active is not None:
            problems.append(f"centroid file {self._centroids}: it is gone; its centroids stay in effect")
        self._routing.set_problem("; ".join(problems) or None)
        if self._document is not None:
            document = replace(self._document, epoch=self._epoch, active=self._active)
            self._routing.set_document(document, self._fetch)

    def _point_at(self, data: bytes, name: str) -> None:
        digest = centroids.digest(data)
        if self._active is not None and self._active.digest == digest:
            return
        try:
            k = centroids.load(data).k
        except Exception:  # noqa: BLE001 - whatever it is: loading it meets it again, and refuses with the reason
            k = 0
        self._active = SetRef(name, digest, k)
        self._epoch += 1

    async def _fetch(self, ref: SetRef) -> bytes:
        if self._centroids is None:
            raise MissingError("no centroid file")
        try:
            data = await asyncio.to_thread(self._centroids.read_bytes)
        except OSError as error:
            raise MissingError(f"centroid file {self._centroids}: {error}") from None
        if centroids.digest(data) != ref.digest:
            raise MissingError("the centroid file changed while it was read")
        return data


def _stamp(path: Path | None) -> Stamp:
    if path is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
