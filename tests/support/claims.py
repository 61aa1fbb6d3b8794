"""Claims whose volume is a folder of this machine."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

Object = dict[str, Any]


def claim(name: str, folder: Path) -> list[Object]:
    """Return a PersistentVolume of a folder, and the claim that is bound to it."""
    spec: Object = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = f"folder-{uuid.uuid4().hex[:10]}"
    of_volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    of_claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": spec | of_volume | {"persistentVolumeReclaimPolicy": "Retain"},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": spec | of_claim,
        },
    ]
