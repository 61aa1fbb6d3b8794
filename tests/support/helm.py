"""What the chart renders, without a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from eldr_kube.binaries import BinariesUnavailableError, clients

CHART = Path(__file__).parents[2] / "charts" / "eldr"
Rendered = dict[tuple[str, str], dict[str, Any]]
"""Manifests by kind and name."""


def rendered(*options: str) -> Rendered:
    """Render a release ``eldr`` in ``eldr-system``; AssertionError with Helm's words where it refuses the options."""
    try:
        helm = clients() / "helm"
    except BinariesUnavailableError as error:
        pytest.skip(f"no helm here: {error}")
    command = [helm, "template", "eldr", CHART, "--namespace", "eldr-system", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in made}
