"""What the operator did by itself when the mix had shifted, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from eldr_demo import objects

_LOOK_SECONDS = 1.0


@dataclass(slots=True)
class Timeline:
    """Notes the moments of a shift; Unix times.

    Parameters
    ----------
    say : callable
        Takes what happens.
    """

    view: objects.View
    say: Callable[[str], None]
    shifted: float | None = None
    moments: dict[str, float] = field(default_factory=dict)
    savings: dict[str, str] = field(default_factory=dict)

    def begin(self) -> None:
        """The mix shifts now."""
        if self.shifted is None:
            self.shifted = time.time()

    async def watch(self, stop: asyncio.Event) -> None:
        """Look at the deployment once a second until told to stop."""
        while not stop.is_set():
            if self.shifted is not None:
                await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def note(self, phase: str) -> None:
        """Keep what the operator says that placement saves, at the end of a phase."""
        locality = (await self.view.get("eldr"))["status"].get("locality", {})
        if "savingPercent" in locality:
            self.savings[phase] = f"{locality['savingPercent']} % +- {locality['savingErrorPercent']}"

    async def _look(self) -> None:
        status = (await self.view.get("eldr"))["status"]
        conditions = {found["type"]: found for found in status.get("conditions", [])}
        drift = conditions.get("DriftDetected", {})
        if drift.get("status") == "True" and "detected" not in self.moments:
            self._happened("detected", f"DriftDetected: {drift['message']}")
        elif drift.get("status") == "False" and "active" in self.moments and "over" not in self.moments:
            self._happened("over", f"drift is over: {drift['message']}")
        if fits := await self.view.fits("Drift"):
            if "fit" not in self.moments:
                self._happened("fit", f"the operator has made EldrFit {fits[0]}")
            active = (status.get("centroids", {}).get("active") or {}).get("fit")
            if active in fits and "active" not in self.moments:
                self._happened("active", f"the set of EldrFit {active} is active")

    def _happened(self, name: str, text: str) -> None:
        assert self.shifted is not None
        self.moments[name] = time.time()
        self.say(f"{self.moments[name] - self.shifted:.0f} s after the shift: {text}")

    def told(self) -> list[str]:
        """Return it in lines."""
        if self.shifted is None:
            return []
        steps = {
            "detected": "drift detected",
            "fit": "EldrFit made",
            "active": "its set active",
            "over": "drift over",
        }
        after = {name: f"{moment - self.shifted:.0f} s" for name, moment in self.moments.items()}
        when = [f"{text} after {after[name]}" for name, text in steps.items() if name in after]
        lines = [f"the mix shifted; without any help: {', '.join(when) or 'nothing was noticed'}"]
        if self.savings:
            said = "; ".join(f"{phase}: {saving}" for phase, saving in self.savings.items())
            lines.append(
                f"what placement saves of active experts, as the operator shows it (status.locality): {said}"
            )
        return lines
