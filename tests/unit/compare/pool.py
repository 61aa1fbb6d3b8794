"""A deployment whose routers and engines are played, and a clock that passes as fast as it is asked."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from eldr.compare.figures import Reading, Totals
from eldr.kubeconfig import ClusterError
from eldr.status import hold

ADOPTS_AFTER = 6.0
"""Seconds from a change of the spec until routers place by it."""


class PlayedClock:
    """Time passes when somebody waits, and what is due happens."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0
        self.due: list[tuple[float, Any]] = []
        self.stopped = False

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.time += seconds + 0.001
        for entry in [one for one in self.due if one[0] <= self.time]:
            self.due.remove(entry)
            entry[1]()

    def is_stopped(self) -> bool:
        return self.stopped

    def after(self, seconds: float, act: Any) -> None:
        self.due.append((self.time + seconds, act))


class Pool:
    """One EldrDeployment under load.

    Parameters
    ----------
    tpot : dict
        Seconds by policy.
    scatter : float
        Of a window's TPOT, relative; beside it load swings by a third over the hours.
    """

    def __init__(
        self, clock: PlayedClock, tpot: dict[str, float], *, scatter: float = 0.02, seed: int = 0
    ) -> None:
        self._clock, self._tpot, self._scatter = clock, tpot, scatter
        self._draw = np.random.default_rng(seed)
        self._totals = Totals()
        self._counted = clock.now()
        self._placing = "MarginalUnion"
        self._changed = clock.now()
        self.away = False
        self.answers_lost = 0
        self.patches: list[dict[str, Any]] = []
        self.resource: dict[str, Any] = {
            "metadata": {"name": "x", "resourceVersion": "1", "annotations": {}},
            "spec": {
                "router": {"policy": "MarginalUnion"},
                "refit": {"suspend": "Disabled", "drift": {"mode": "Enabled"}},
            },
            "status": {"router": {"epoch": 1}, "centroids": {"active": {"fit": "f"}}},
        }

    @property
    def policy(self) -> str:
        return str(self.resource["spec"]["router"]["policy"])

    @property
    def fields(self) -> dict[str, str]:
        return hold.values(self.resource)

    def read(self) -> dict[str, Any]:
        self._reach()
        return deepcopy(self.resource)

    def patch(self, body: dict[str, Any]) -> None:
        self._reach()
        if body["metadata"]["resourceVersion"] != self.resource["metadata"]["resourceVersion"]:
            raise ClusterError("Conflict", "changed")
        self.patches.append(body)
        self.edit(body.get("spec", {}), body["metadata"]["annotations"])
        if self.answers_lost:
            self.answers_lost -= 1
            raise ClusterError("ClusterUnreachable", "no answer")

    def edit(self, spec: dict[str, Any], annotations: dict[str, Any] | None = None) -> None:
        """Change the resource, as anybody may."""
        self._count()
        before = self.policy
        _merge(self.resource["spec"], spec)
        _merge(self.resource["metadata"]["annotations"], annotations or {})
        self.resource["metadata"]["resourceVersion"] += "1"
        if self.policy != before:
            self._changed = self._clock.now()

    def policies(self) -> dict[str, str]:
        self._reach()
        self._count()
        return {"r0": self._placing}

    def reading(self) -> Reading:
        self._reach()
        self._count()
        return Reading(self._clock.now(), {"pool": self._totals}, self.resource["status"]["router"]["epoch"])

    def _count(self) -> None:
        """Count what was served since the last time."""
        now = self._clock.now()
        seconds, self._counted = now - self._counted, now
        load = 1 + 0.33 * np.sin(now / 4000)
        tokens = 1000.0 * seconds
        tpot = self._tpot[self._placing] * load * (1 + self._scatter * self._draw.standard_normal())
        firsts = tokens / 100
        grown = (tokens, (tokens - firsts) * tpot, firsts, 0.5 * firsts * load, firsts)
        self._totals = Totals(*(a + b for a, b in zip(self._totals, grown, strict=True)))
        if now - self._changed >= ADOPTS_AFTER:
            self._placing = self.policy

    def _reach(self) -> None:
        if self.away:
            raise ClusterError("ClusterUnreachable", "no route to host")


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
