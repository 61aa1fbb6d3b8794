"""Runs a comparison: sets policies in turn, waits, measures, and leaves the deployment as it was."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from eldr import contract
from eldr.compare import figures
from eldr.compare.course import Course, Do, Phase, due, step
from eldr.compare.figures import Figures, Reading
from eldr.compare.recovery import (
    PASSING,
    Clock,
    CompareError,
    Deployment,
    moment,
    patiently,
    refuse_or_recover,
    restore,
)
from eldr.kubeconfig import ClusterError, Object
from eldr.status import hold
from eldr.status.fields import inside
from eldr.status.hold import Hold

_STOPPED: Final = "Stopped"
_RENEW_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 300.0
"""How long an API server may be away; traffic goes on meanwhile, and so does the window."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Measured:
    """A window: its figures, or why there are none."""

    pair: int
    policy: str
    figures: Figures | str


class Comparison:
    """One comparison.

    Parameters
    ----------
    against : str
        The policy that the deployment's own is compared with.
    say : callable
        Takes lines about how it goes.
    poll : float
        Seconds between looks.

    Attributes
    ----------
    measured : list of Measured
        So far; what there is also if it does not end well.
    own : str
        The deployment's policy, once it has begun.
    """

    def __init__(
        self,
        deployment: Deployment,
        clock: Clock,
        against: str,
        *,
        say: Callable[[str], None],
        poll: float = 2.0,
    ) -> None:
        self._deployment, self._clock, self._say, self._poll = deployment, clock, say, poll
        self._against = against
        self._renewed = 0.0
        self.measured: list[Measured] = []
        self.own = ""

    def run(self, course: Course) -> None:
        """Measure all windows; the policy of before is set again, however this ends."""
        if isinstance(reading := self._reading(), str):
            raise CompareError("Unreadable", f"nothing was changed: {reading}")
        mark = self._begin(course)
        is_stopped = False
        try:
            self._alternate(course, mark)
        except CompareError as error:
            if error.reason != _STOPPED:
                raise
            is_stopped = True
        finally:
            left = restore(self._deployment, self._clock, mark, self._say)
        if is_stopped:
            raise CompareError(_STOPPED, f"by Ctrl-C or a signal: {left}")

    def _begin(self, course: Course) -> Hold:
        """Put the mark on the deployment together with the first policy."""
        while True:
            resource = self._patiently(self._deployment.read)
            if refuse_or_recover(resource, self._deployment, self._clock, self._say):
                continue
            self.own = own = hold.values(resource)["policy"]
            self._check(resource, own)
            first = own if course.window.is_own else self._against
            mark = hold.new(resource, uuid.uuid4().hex, self._at(), first)
            try:
                self._deployment.patch(hold.patch(resource, mark))
            except ClusterError as error:
                if error.reason == "Conflict":
                    continue  # it is decided anew: another comparison may have begun
                if error.reason in PASSING:
                    # it may have been written all the same
                    restore(self._deployment, self._clock, mark, self._say)
                raise
            self._renewed = self._clock.now()
            return mark

    def _check(self, resource: Object, own: str) -> None:
        has_set = inside(resource, "status", "centroids", "active")
        if contract.POLICY_ELDR in {own, self._against} and not has_set:
            raise CompareError(
                "NoCentroids",
                "without a centroid set ELDR places as JSQ: wait for a fit, or compare MarginalUnion",
            )

    def _alternate(self, course: Course, mark: Hold) -> None:
        done = self.measured
        opened: Reading | str = "it did not open"
        while True:
            resource = self._patiently(self._deployment.read)
            # a switch that got no answer may have been written: the mark on the resource is of the same patch
            live = hold.of(resource)
            mark = live if live is not None and live.id == mark.id else mark
            if change := hold.changed(resource, mark):
                raise CompareError("Interfered", f"{change}: stopped, and what they set stays")
            policy = self._wanted(course)
            is_set = mark.now["policy"] == policy
            before = course.phase
            is_adopted = is_set and self._is_adopted(course, policy)
            course, do = step(course, self._clock.now(), is_set=is_set, is_adopted=is_adopted)
            match do:
                case Do.END:
                    return
                case Do.GIVE_UP:
                    raise CompareError(
                        "NotAdopted",
                        f"routers do not place by {policy}: {self._policies()}; does the operator run, and is there a centroid set?",
                    )
                case Do.SWITCH:
                    mark = self._write(mark.but(self._at(), policy), resource) or mark
                case Do.OPEN:
                    opened = self._reading()
                case Do.CLOSE:
                    done.append(Measured(course.windows[course.at - 1].pair, policy, self._close(opened)))
                    self._say(f"window {course.at} of {len(course.windows)}, {_shown(done[-1])}")
                    if len(done) == 2 and all(one.figures == figures.NO_TRAFFIC for one in done):
                        raise CompareError(
                            "NoTraffic",
                            "the first two windows had no traffic to measure; compare while the deployment serves traffic",
                        )
                case Do.WAIT:
                    if self._clock.now() - self._renewed > _RENEW_SECONDS:
                        mark = self._write(mark.but(self._at()), resource) or mark
                    elif before is course.phase:
                        self._pause(course)

    def _wanted(self, course: Course) -> str:
        """Return the policy of the window that is on; after the last one there is none."""
        if course.at >= len(course.windows):
            return ""
        return self.own if course.window.is_own else self._against

    def _write(self, mark: Hold, resource: Object) -> Hold | None:
        """Set what a mark says; None where that is not sure, so that the next look tells."""
        try:
            self._deployment.patch(hold.patch(resource, mark))
        except ClusterError as error:
            if error.reason not in PASSING:
                raise
            return None
        self._renewed = self._clock.now()
        return mark

    def _is_adopted(self, course: Course, policy: str) -> bool:
        if course.at >= len(course.windows) or course.phase not in {Phase.SWITCH, Phase.ADOPT}:
            return True
        policies = self._policies()
        return bool(policies) and set(policies.values()) == {policy}

    def _policies(self) -> dict[str, str]:
        try:
            return self._deployment.policies()
        except ClusterError as error:
            if error.reason not in {*PASSING, "PodUnreachable"}:
                raise
            return {}

    def _reading(self) -> Reading | str:
        try:
            return self._deployment.reading()
        except ClusterError as error:
            if error.reason in {"Forbidden", "NoFigures"}:
                raise
            return str(error)

    def _close(self, opened: Reading | str) -> Figures | str:
        closed = self._reading()
        if isinstance(opened, str):
            return opened
        return closed if isinstance(closed, str) else figures.window(opened, closed)

    def _pause(self, course: Course) -> None:
        end = due(course)
        left = self._poll if end is None else max(0.0, min(self._poll, end - self._clock.now()))
        self._clock.wait(left)

    def _patiently(self, act: Callable[[], _Result]) -> _Result:
        def unless_stopped() -> _Result:
            if self._clock.is_stopped():
                raise CompareError(_STOPPED, "by Ctrl-C or a signal")
            return act()

        return patiently(unless_stopped, self._clock, _PATIENCE_SECONDS, self._say)

    def _at(self) -> datetime:
        return moment(self._clock)


def _shown(window: Measured) -> str:
    if isinstance(window.figures, str):
        return f"{window.policy}: left out, {window.figures}"
    measured = window.figures
    return (
        f"{window.policy}: TPOT {1e3 * measured.tpot:.1f} ms, TTFT {1e3 * measured.ttft:.0f} ms, "
        f"{measured.throughput:.0f} tokens/s, {measured.requests} requests"
    )
