"""What there is to tell of a deployment, and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

VERSION = 1
"""Of the JSON document; fields may be added, none changes its meaning."""
DELETED = "Deleted"
"""Verdict of a fit that only history knows of."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One of ``status.conditions``.

    Attributes
    ----------
    since : datetime or None
        When its status changed last.
    """

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Policy:
    """Placement policy.

    Attributes
    ----------
    wanted : str or None
        In the spec.
    in_effect : tuple of str
        That routers use; several while they differ, none where nothing is known.
    reason, message : str or None
        Why it is another one than wanted, or places without centroids.
    """

    wanted: str | None
    in_effect: tuple[str, ...]
    reason: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Centroids:
    """Sets in use.

    Attributes
    ----------
    acks : str or None
        Routers that have the active set, of all.
    previous : str or None
        Fit whose set served before.
    staged : str or None
        Fit whose set routers are loading.
    """

    fit: str | None
    since: datetime | None
    k: int | None
    epoch: int | None
    digest: str | None
    acks: str | None
    previous: str | None
    staged: str | None


@dataclass(frozen=True, slots=True)
class Saving:
    """What placement brings, in percent.

    Attributes
    ----------
    now_percent, error_percent : float or None
        Of active experts, against random batches of the same sizes, and its standard error.
    predicted_percent : float or None
        By the fit of the active set.
    expert_share_percent : float or None
        Of a decode step, for reading experts.
    message : str or None
        What that share means.
    """

    now_percent: float | None
    error_percent: float | None
    predicted_percent: float | None
    expert_share_percent: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class HalfHour:
    """The highest drift score of a half hour that began at ``time``."""

    time: datetime
    score: float


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether traffic is what the active set was fitted for.

    Attributes
    ----------
    score : float or None
        1 and above raises.
    requests : int or None
        That it rests on.
    day : tuple of HalfHour
        The oldest first.
    """

    condition: Condition | None
    score: float | None
    requests: int | None
    day: tuple[HalfHour, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """A span in which a set served.

    Attributes
    ----------
    until : datetime or None
        None while it serves.
    began, ended : str or None
        ``reason`` of ``status.history`` then, in words for the end.
    """

    epoch: int | None
    since: datetime
    until: datetime | None
    began: str | None
    ended: str | None


@dataclass(frozen=True, slots=True)
class Fit:
    """An EldrFit, or what history has of one.

    Attributes
    ----------
    trigger : str or None
        None of one that was deleted or cannot be read, like all below but ``verdict`` and ``served``.
    looks_back_to : datetime or None
        Records before it were not read.
    verdict, message : str or None
        Reason and message of its condition; ``Deleted`` where it was.
    reduction_percent : float or None
        Of active experts against JSQ, as predicted.
    served : tuple of Served
        The oldest first.
    """

    name: str
    trigger: str | None = None
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    looks_back_to: datetime | None = None
    verdict: str | None = None
    message: str | None = None
    samples: int | None = None
    reduction_percent: float | None = None
    served: tuple[Served, ...] = ()


@dataclass(frozen=True, slots=True)
class NextFit:
    """When the schedule comes next."""

    time: datetime
    schedule: str | None


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it.

    Attributes
    ----------
    at : datetime
        When it was read.
    needs_key : bool
        Whether routers ask clients for an API key.
    pods : dict of str to str
        ``ready/desired`` by role.
    fits : tuple of Fit
        The newest first.
    problems : tuple of Condition
        That are not as they should be.
    notes : tuple of str
        What else there is to know of the above.
    comparison : str or None
        What an ``eldr compare`` does with it, or has left.
    """

    name: str
    namespace: str
    at: datetime
    model: str | None
    served_as: str | None
    url: str | None
    needs_key: bool
    ready: Condition | None
    pods: dict[str, str]
    policy: Policy
    centroids: Centroids
    saving: Saving
    drift: Drift
    fits: tuple[Fit, ...]
    next_fit: NextFit | None
    problems: tuple[Condition, ...]
    notes: tuple[str, ...]
    comparison: str | None


def document(overview: Overview) -> dict[str, Any]:
    """Return it as JSON: the fields above, times as ``2026-11-21T08:30:00Z``, null for what is not known."""
    fields: dict[str, Any] = _json(asdict(overview))
    return {"version": VERSION} | fields


def _json(value: object) -> Any:
    match value:
        case dict():
            return {key: _json(one) for key, one in value.items()}
        case list() | tuple():
            return [_json(one) for one in value]
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case _:
            return value
