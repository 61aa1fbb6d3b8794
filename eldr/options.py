"""Options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def of_cluster(command: _Command) -> _Command:
    """Add the options that lead to a deployment in a cluster: ``namespace``, ``context``, ``kubeconfig``."""
    options = (
        click.option("--namespace", "-n", help="Namespace of the deployment [default: the context's]."),
        click.option("--context", help="Context of the kubeconfig [default: the current one]."),
        click.option(
            "--kubeconfig",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The kubeconfig [default: KUBECONFIG's, or ~/.kube/config].",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
