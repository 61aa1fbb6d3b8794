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


def manifests(*options: str) -> list[dict[str, Any]]:
    """Render a release ``eldr`` in ``eldr-system``; AssertionError with Helm's words where it refuses the options."""
    said = _helm("template", *options)
    return [manifest for manifest in yaml.safe_load_all(said) if manifest]


def notes(*options: str) -> str:
    """Return what Helm prints after the installation of that release."""
    return _helm("install", "--dry-run=client", *options).partition("\nNOTES:\n")[2]


def rendered(*options: str) -> Rendered:
    """Render as :func:`manifests` does; of several namespaces' objects of one name the last."""
    return {(one["kind"], one["metadata"]["name"]): one for one in manifests(*options)}


def _helm(command: str, *options: str) -> str:
    try:
        helm = clients() / "helm"
    except BinariesUnavailableError as error:
        pytest.skip(f"no helm here: {error}")
    arguments = [helm, command, "eldr", CHART, "--namespace", "eldr-system", *options]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
