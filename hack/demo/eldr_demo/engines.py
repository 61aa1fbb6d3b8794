"""What a demo needs to know about its engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from eldr_demo.arrivals import Arrivals
from eldr_demo.load import Workload
from eldr_demo.plan import Mix, Step
from eldr_kube.agent.images import Image

DRIFT = {"windowRequests": 150, "windowSeconds": 10, "consecutiveWindows": 2, "coolDownMinutes": 5}
"""``spec.refit.drift`` of a demo: short windows, because it lasts minutes, not days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Size of the demo; durations in seconds.

    Attributes
    ----------
    tokens : int
        Output tokens per request.
    settle, measure : float
        Before each measured span, and the span itself.
    samples : int
        Log records that each fit waits for.
    prefill, decode : int
        Engines.
    start_seconds : float
        How long the engines may take to become ready.
    fit_seconds : float
        How long a fit may take, with the time until it has its samples.
    """

    tokens: int
    settle: float
    measure: float
    samples: int
    prefill: int
    decode: int
    start_seconds: float
    fit_seconds: float


class Engines(Protocol):
    """A kind of engine: what is deployed, and what it is asked.

    ``known`` are options that tell ``eldr simulate`` of the pool; empty if it could not predict this one.
    """

    title: str
    remark: str
    """How to read the table; empty where nothing is to be said."""
    settings: DemoSettings
    plan: tuple[Step, ...]
    known: tuple[str, ...]
    paced: bool
    """Whether a step takes what a step-time model says, and engines report that."""

    def manifest(self) -> dict[str, Any]:
        """Return the ``spec`` of the EldrDeployment."""

    def images(self) -> Mapping[str, Image]:
        """Return what images mean on this machine, besides our own."""

    def arrivals(self) -> Arrivals:
        """Return when requests come, the same throughout."""

    def workload(self, name: str, mix: Mix, *, logged: bool) -> Workload:
        """Return requests of a mix of texts; logged ones are for fits, others for measuring, never the same."""
