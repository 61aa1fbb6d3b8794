"""The file source: one YAML file of engines and settings, one centroid file, both watched."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from eldr import centroids
from eldr.contract import POLICY_DOMAIN, PORT_ENGINE, ROLE_DECODE, ROLE_PREFILL
from eldr.shown import shown
from eldr_router.plan.spec import EndpointSpec
from eldr_router.plan.table import Intent, RoutingError, SetRef, read_settings
from eldr_router.settings import SettingsError, parse_url
from eldr_router.state.control import Control, MissingError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_MOST_SLOTS = 1 << 20
_KEYS = {
    "model",
    "policy",
    "tau",
    "min_candidates",
    "max_load",
    "prior",
    "domains",
    "max_in_flight",
    "max_waiting",
    "max_wait_seconds",
    "sample_rate",
    "lease_seconds",
    ROLE_PREFILL,
    ROLE_DECODE,
}

Stamp = tuple[int, int, int] | None
Workers = tuple[Intent, list[EndpointSpec], list[EndpointSpec]]


class _Loader(yaml.SafeLoader):
    """Tells where a value stands that YAML's own constructors stumble over: 5,000 digits, the 99th of a month."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"this is no {kind}: {error}", node.start_mark) from None


def parse_workers(text: str) -> Workers:
    """Read a worker file; RoutingError names the field, the value and what is expected."""
    try:
        fields = yaml.load(text, _Loader)  # noqa: S506 - a safe one
    except yaml.YAMLError as error:
        raise RoutingError(f"not YAML: {error}") from None
    except RecursionError:
        raise RoutingError("not YAML: lists or mappings stand too deep in each other") from None
    if not isinstance(fields, dict):
        raise RoutingError(f"expected a mapping, got {type(fields).__name__}")
    unknown = sorted(shown(key) for key in fields if key not in _KEYS)
    if unknown:
        raise RoutingError(f"unknown field {unknown[0]}; known are {', '.join(sorted(_KEYS))}")
    intent, decode = read_settings(fields), _endpoints(fields, ROLE_DECODE)
    slots = tuple(sorted(spec.slot for spec in decode if spec.slot >= 0))
    if intent.policy == POLICY_DOMAIN and decode and len(intent.domains) > len(slots):
        raise RoutingError(
            f"domains: {len(intent.domains)} of them cannot share {len(slots)} decode engines with a slot; every domain needs one"
        )
    return replace(intent, slots=slots), _endpoints(fields, ROLE_PREFILL), decode


def _endpoints(fields: dict[str, Any], role: str) -> list[EndpointSpec]:
    entries = fields.get(role) or []
    if not isinstance(entries, list):
        raise RoutingError(f"{role}: expected a list, got {shown(entries)}")
    specs: dict[str, EndpointSpec] = {}
    slots: set[int] = set()
    for index, entry in enumerate(entries):
        where = f"{role}[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
            raise RoutingError(f"{where}: expected name and url, got {shown(entry)}")
        name, slot = entry["name"], entry.get("slot", index)
        if name in specs:
            raise RoutingError(f"{where}.name: {shown(name)} appears twice")
        if not name.isascii() or not name.isprintable():
            raise RoutingError(
                f"{where}.name: expected printable ASCII, it is a response header, got {shown(name)}"
            )
        if not isinstance(slot, int) or isinstance(slot, bool) or not -1 <= slot <= _MOST_SLOTS:
            raise RoutingError(
                f"{where}.slot: expected a whole number in 0..{_MOST_SLOTS} (or -1, none), got {shown(slot)}"
            )
        if role == ROLE_DECODE and slot >= 0 and slot in slots:
            raise RoutingError(f"{where}.slot: {slot} appears twice; every centroid belongs to one engine")
        slots.add(slot)
        kv = entry.get("kv", "")
        if not isinstance(kv, str):
            raise RoutingError(
                f"{where}.kv: expected text, the same for engines that may exchange KV, got {shown(kv)}"
            )
        try:
            host, port = parse_url(f"{where}.url", entry.get("url"), PORT_ENGINE)
        except SettingsError as error:
            raise RoutingError(str(error)) from None
        specs[name] = EndpointSpec(role, name, host, port, slot if role == ROLE_DECODE else -1, kv)
    return list(specs.values())


class FileSource:
    """Watches the worker file and the centroid file by their stat."""

    def __init__(self, workers: Path, centroid_file: Path | None, control: Control) -> None:
        self._workers = workers
        self._centroids = centroid_file
        self._control = control
        self._stamps: tuple[Stamp, Stamp] | None = None
        self._intent: Intent | None = None
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
            self._intent, prefill, decode = parse_workers(text)
            self._control.set_endpoints(ROLE_PREFILL, prefill)
            self._control.set_endpoints(ROLE_DECODE, decode)
        except (OSError, UnicodeDecodeError, RoutingError) as error:
            problems.append(f"worker file {self._workers}: {error}")
        if self._centroids is not None and stamps[1] is not None:
            try:
                self._point_at(await asyncio.to_thread(self._centroids.read_bytes), self._centroids.stem)
            except OSError as error:
                problems.append(f"centroid file {self._centroids}: {error}")
        elif self._active is not None:
            problems.append(f"centroid file {self._centroids}: it is gone; its centroids stay in effect")
        self._control.set_problem("; ".join(problems) or None)
        if self._intent is not None:
            intent = replace(self._intent, epoch=self._epoch, active=self._active)
            self._control.set_intent(intent, self._fetch)

    def _point_at(self, data: bytes, name: str) -> None:
        digest = centroids.digest(data)
        if self._active is not None and self._active.digest == digest:
            return
        try:
            k = centroids.load(data).k
        except Exception:  # noqa: BLE001 - whatever it is: the control meets it again, and refuses with the reason
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
