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


def manifests(
    *options: str, release: str = "eldr", namespace: str = "eldr-system", chart: Path = CHART
) -> list[dict[str, Any]]:
    """Render a release; AssertionError with Helm's words where it refuses the options."""
    said = _helm("template", *options, release=release, namespace=namespace, chart=chart)
    return [manifest for manifest in yaml.safe_load_all(said) if manifest]


def rendered(*options: str) -> Rendered:
    """Render the release ``eldr``; of several namespaces' objects of one name the last."""
    return {(one["kind"], one["metadata"]["name"]): one for one in manifests(*options)}


def _helm(
    command: str,
    *options: str,
    release: str = "eldr",
    namespace: str = "eldr-system",
    chart: Path = CHART,
) -> str:
    try:
        helm = clients() / "helm"
    except BinariesUnavailableError as error:
        pytest.skip(f"no helm here: {error}")
    arguments = [helm, command, release, chart, "--namespace", namespace, *options]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
