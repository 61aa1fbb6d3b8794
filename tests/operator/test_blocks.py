"""The API server takes what users copy from the README and the guides."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.operator.world import KIND
from tests.support.blocks import Block, blocks

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("unattended")]
MANIFESTS = list(blocks("yaml"))


def whole(block: Block) -> dict[str, Any]:
    """Return an EldrDeployment of a block, which may be a part of its spec."""
    found = yaml.safe_load(block.text)
    if "kind" in found:
        return dict(found)
    spec = found.get("spec", found)
    base = {"model": {"uri": "Qwen/Qwen3-30B-A3B"}, "decode": {"replicas": 4}}
    merged = {**base, **spec, "decode": {**base["decode"], **spec.get("decode", {})}}
    merged["model"] = {**base["model"], **spec.get("model", {})}
    return {
        "apiVersion": "eldr.dev/v1alpha1",
        "kind": KIND,
        "metadata": {"name": "copied"},
        "spec": merged,
    }


@pytest.mark.parametrize("block", MANIFESTS, ids=str)
def test_manifests_are_taken_strictly(kube, block):
    options = ("-n", kube.namespace, "--dry-run=server", "--validate=strict", "-f", "-")
    kube.cluster.kubectl("create", *options, stdin=yaml.safe_dump(whole(block)))
