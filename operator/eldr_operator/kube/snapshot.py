"""What one look at a deployment's objects found. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eldr import contract
from eldr_operator.kube.owners import owner_uids

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was found.

    Parameters
    ----------
    children : mapping
        Kind and name to object, for everything that carries our labels.
    pods : list of dict
    secret : dict or None
        The Secret of the admin ports, whoever owns it.
    """

    children: Mapping[tuple[str, str], Object]
    pods: list[Object]
    secret: Object | None

    def owned(self, kind: str, name: str, uid: str) -> Object | None:
        """Return a child, if the resource of that uid owns it."""
        found = self.children.get((kind, name))
        return found if found is not None and uid in owner_uids(found) else None

    def of_kind(self, kind: str) -> dict[str, Object]:
        """Return the children of a kind by name."""
        return {name: found for (its, name), found in self.children.items() if its == kind}

    def surplus(self, wanted: Iterable[Object], uid: str) -> list[tuple[str, Object]]:
        """Return the children that the resource of that uid owns and does not want any more."""
        kept = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
        return [
            (kind, found)
            for (kind, name), found in self.children.items()
            if kind not in {"ConfigMap", "ControllerRevision", "Job"}
            and (kind, name) not in kept
            and uid in owner_uids(found)
        ]

    @property
    def token(self) -> str:
        """The bearer token of the admin ports; empty while there is none."""
        try:
            return base64.b64decode(
                ((self.secret or {}).get("data") or {})[contract.SECRET_TOKEN_KEY]
            ).decode()
        except (KeyError, binascii.Error, UnicodeDecodeError):
            return ""
