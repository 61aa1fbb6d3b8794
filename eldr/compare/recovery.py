"""How a comparison ends: the policy of before is set again, by itself or by the next one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

from eldr.compare.figures import Reading
from eldr.kubeconfig import ClusterError, Object
from eldr.status import hold
from eldr.status.hold import Hold

_RESTORE_SECONDS: Final = 60.0
PASSING: Final = frozenset({"ClusterUnreachable", "Conflict"})
"""Reasons of errors that a moment later may be over."""
_Result = TypeVar("_Result")


class CompareError(Exception):
    """A comparison cannot begin or go on; ``reason`` is one CamelCase word, the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Clock(Protocol):
    """Tells and passes time."""

    def now(self) -> float:
        """Return seconds."""

    def wait(self, seconds: float) -> None:
        """Let time pass, until somebody asks the program to end."""

    def is_stopped(self) -> bool:
        """Tell whether somebody has."""


class Deployment(Protocol):
    """What is under comparison; see :class:`eldr.compare.cluster.Target`."""

    def read(self) -> Object:
        """Return the resource."""

    def patch(self, body: Object) -> None:
        """Change the resource."""

    def policies(self) -> dict[str, str]:
        """Return the policy that each router places by."""

    def reading(self) -> Reading:
        """Return what has been counted."""


def restore(deployment: Deployment, clock: Clock, mark: Hold, say: Callable[[str], None]) -> str:
    """Set what was before, but for what somebody else has set meanwhile, and say so; CompareError where that cannot be done now."""

    def act() -> str:
        resource = deployment.read()
        live = hold.of(resource)
        if live is not None and live.id != mark.id:
            return "another comparison has restored this one"
        # what the deployment says was set last counts: a switch may have been written and not answered
        last = live or mark
        deployment.patch(hold.undo(resource, last))
        is_ours = hold.values(resource)["policy"] == last.now["policy"]
        return (
            f"policy {mark.was['policy']} as before"
            if is_ours
            else "the policy stays as somebody else has set it"
        )

    try:
        done = patiently(act, clock, _RESTORE_SECONDS, say)
    except ClusterError as error:
        raise CompareError(
            "NotRestored",
            f"the policy {mark.was['policy']} could not be set again: {error}; run eldr compare NAME --restore when the cluster answers",
        ) from error
    say(done)
    return done


def refuse_or_recover(
    resource: Object, deployment: Deployment, clock: Clock, say: Callable[[str], None]
) -> bool:
    """Undo what a comparison that ended without a word has left, and tell whether there was one; CompareError if it may still run."""
    left = hold.of(resource)
    if left is None:
        return False
    if left.is_alive(moment(clock)):
        raise CompareError(
            "InUse",
            f"another eldr compare holds the deployment, until {left.until:%H:%M:%S} UTC unless it goes on; stop it, or wait",
        )
    say("an earlier comparison ended without restoring: doing that first")
    restore(deployment, clock, left, say)
    return True


def patiently(
    act: Callable[[], _Result], clock: Clock, seconds: float, say: Callable[[str], None]
) -> _Result:
    """Do something that a lost connection or another writer may keep from succeeding, until it does or time is over."""
    end = clock.now() + seconds
    is_reported = False
    while True:
        try:
            return act()
        except ClusterError as error:
            if error.reason not in PASSING or clock.now() >= end:
                raise
            if error.reason != "Conflict":
                if not is_reported:
                    say(f"{error}: trying on")
                is_reported = True
                clock.wait(2.0)


def moment(clock: Clock) -> datetime:
    """Return a clock's time as a date."""
    return datetime.fromtimestamp(clock.now(), UTC)
