"""Options that commands share, and types of their values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A number in a range, neither NaN nor infinity, which are in no order or within every open end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number}: expected a finite number", param, ctx)
        return number


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
