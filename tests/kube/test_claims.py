"""Claims: pods of one see the same files, read-only where they say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.claims import claim
from tests.support.space import STAY, Space, container, pod

pytestmark = pytest.mark.kube


def mounting(name: str, command: str, **source):
    main = container(f"{command}; {STAY}")
    main["volumeMounts"] = [{"name": "shared", "mountPath": "/shared"}]
    return pod(name, main, volumes=[{"name": "shared", "persistentVolumeClaim": {"claimName": "c"} | source}])


def test_pods_share_the_volume_of_their_claim(space: Space, tmp_path: Path):
    space.apply(*claim("c", tmp_path), mounting("writer", "echo hello > /shared/file; echo done"))
    space.wait_log("writer", "done")
    assert (tmp_path / "file").read_text() == "hello\n"
    space.apply(mounting("reader", "cat /shared/file; touch /shared/no || echo refused", readOnly=True))
    assert space.wait_log("reader", "refused").startswith("hello\n")
