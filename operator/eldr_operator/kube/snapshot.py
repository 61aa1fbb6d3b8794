"""What one look at a deployment's objects found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eldr_operator.kube.owners import is_ours, owner_uids

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was found.

    Parameters
    ----------
    children : mapping
        Kind and name to object, for everything that carries our labels.
    pods : list of dict
    token : str
        By which routers are asked.
    """

    children: Mapping[tuple[str, str], Object]
    pods: list[Object]
    token: str

    def owned(self, kind: str, name: str, uid: str) -> Object | None:
        """Return a child, if the resource of that uid owns it."""
        child = self.children.get((kind, name))
        return child if child is not None and uid in owner_uids(child) else None

    def ours(self, kind: str, name: str, deployment: str, uid: str) -> Object | None:
        """Return a child that belongs to a deployment, or did and nobody owns it any more."""
        child = self.children.get((kind, name))
        return child if child is not None and is_ours(child, deployment, uid) else None

    def of_kind(self, kind: str) -> dict[str, Object]:
        """Return the children of a kind by name."""
        return {name: child for (its, name), child in self.children.items() if its == kind}

    def surplus(self, wanted: Iterable[Object], uid: str) -> list[tuple[str, Object]]:
        """Return the children that the resource of that uid owns and does not want any more."""
        kept = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
        return [
            (kind, child)
            for (kind, name), child in self.children.items()
            if kind not in {"ConfigMap", "ControllerRevision", "Job"}
            and (kind, name) not in kept
            and uid in owner_uids(child)
        ]
