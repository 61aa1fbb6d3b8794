"""A kubeconfig of one cluster, one user and one context."""

from __future__ import annotations

from pathlib import Path

import yaml


def write(path: Path, **cluster: object) -> None:
    """Write one whose cluster has these fields."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
