"""Revisions of a deployment as its ControllerRevisions tell them, and what to go back to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from eldr import contract

Object = Mapping[str, Any]

ENGINES: Final = (contract.ROLE_PREFILL, contract.ROLE_DECODE)


class Revision(NamedTuple):
    """One state of the pods of a role.

    Attributes
    ----------
    number : int
        Later ones have higher numbers.
    created : str
        Time stamp, as the two that follow.
    completed : str
        When all pods were ready with it last; empty if never.
    failed : str
        When it was given up because no pod got ready; empty if it was not.
    image : str
        Of its engines, or of its routers.
    key : str
        Of the engines that it may exchange KV with.
    """

    name: str
    role: str
    number: int
    created: str
    completed: str
    failed: str
    image: str
    key: str


class UndoError(ValueError):
    """There is nothing to go back to; ``reason`` is one CamelCase word, the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def revision(live: Object) -> Revision | None:
    """Read a ControllerRevision; None if it is not one of ours."""
    match live:
        case {"metadata": {"name": str(name), "labels": {contract.LABEL_REVISION_OF: str(role)}} as metadata}:
            marks = metadata.get("annotations") or {}
        case _:
            return None
    match live.get("data"):
        case {"template": {"spec": {"containers": [*containers]}} as template}:
            labels = (template.get("metadata") or {}).get("labels") or {}
        case _:
            return None
    number = live.get("revision")
    return Revision(
        name=name,
        role=role,
        number=number if isinstance(number, int) else 0,
        created=str(metadata.get("creationTimestamp", "")),
        completed=str(marks.get(contract.ANNOTATION_COMPLETED, "")),
        failed=str(marks.get(contract.ANNOTATION_FAILED, "")),
        image=_image(containers),
        key=str(labels.get(contract.LABEL_KV, "")),
    )


def in_use(deployment: Object, role: str) -> str:
    """Return the name of the revision that the pods of a role have or are getting; empty if that is not known."""
    match deployment:
        case {"status": dict(status)} if isinstance(status.get(role), dict):
            return str(status[role].get("revision", ""))
    return ""


def condition(deployment: Object, name: str) -> Object:
    """Return a condition; empty if there is none yet."""
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == name), {})


def is_observed(deployment: Object) -> bool:
    """Tell whether the operator has seen the spec as it is now."""
    observed = condition(deployment, "Progressing").get("observedGeneration")
    return bool(observed == (deployment.get("metadata") or {}).get("generation"))


def before(
    deployment: Object, revisions: Sequence[Revision], roles: Iterable[str] = (), *, to: str = ""
) -> dict[str, Revision]:
    """Return the revision to go back to, by role; what the operator has not seen yet cannot be undone.

    Parameters
    ----------
    roles : iterable of str
        That go back. Empty: those whose rollout is not over, else the one whose rollout ended last; and the other one where KV
        could not move otherwise.
    to : str
        Name of the revision. Empty: the last one that worked before the one in use.

    Raises
    ------
    UndoError
        If there is none.
    """
    if to:
        named = _named(revisions, to)
        return {named.role: named}
    if not is_observed(deployment):
        text = "the operator has not seen the last change of the resource yet; try again in a moment"
        raise UndoError("NotObserved", text)
    if not [*roles] and condition(deployment, "Progressing").get("reason") == "RolledBack":
        text = "the operator has gone back already; name a revision with --to-revision, or a role with --role, to go further"
        raise UndoError("RolledBack", text)
    by_name = {each.name: each for each in revisions}
    current = {role: by_name.get(in_use(deployment, role)) for role in ENGINES}
    known = {role: each for role, each in current.items() if each is not None}
    if not known:
        raise UndoError(
            "NoRevisions", "no revision of its engines is known yet; wait until the operator has seen it"
        )
    open_ = [role for role, each in known.items() if each != _last_completed(revisions, role)]
    latest = max(known, key=lambda role: known[role].completed)
    chosen = {role: _last(revisions, role, known.get(role)) for role in (*roles,) or open_ or [latest]}
    if not [*roles] and len(chosen) == 1:
        ((role, back),) = chosen.items()
        other = ENGINES[1 - ENGINES.index(role)]
        partner = known.get(other)
        matching = _last_completed((each for each in revisions if each.key == back.key), other)
        if matching and partner is not None and back.key != partner.key == known[role].key:
            chosen[other] = matching
    return chosen


def _last_completed(revisions: Iterable[Revision], role: str) -> Revision | None:
    completed = [each for each in revisions if each.role == role and each.completed]
    return max(completed, key=lambda each: (each.completed, each.number), default=None)


def _last(revisions: Iterable[Revision], role: str, current: Revision | None) -> Revision:
    worked = _last_completed((each for each in revisions if each != current), role)
    if worked is None:
        text = f"no earlier revision of {role} is known to have worked; name one of `eldr rollout status` with --to-revision"
        raise UndoError("NothingToUndo", text)
    return worked


def _named(revisions: Iterable[Revision], name: str) -> Revision:
    for each in revisions:
        if each.name == name and each.role in ENGINES:
            return each
    text = f"there is no revision {name} of prefill or decode; `eldr rollout status` lists them"
    raise UndoError("NoSuchRevision", text)


def _image(containers: Sequence[Any]) -> str:
    named = {each.get("name"): each.get("image", "") for each in containers if isinstance(each, dict)}
    return str(named.get(contract.CONTAINER_ENGINE) or next(iter(named.values()), ""))
