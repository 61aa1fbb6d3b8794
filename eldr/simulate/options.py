"""Values of the command's options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from eldr.simulate.contenders import Contender, parse_contender

Value = TypeVar("Value", int, float)
Callback = Callable[[click.Context, click.Parameter, Any], Any]


MOST_ENGINES = 1024


def numbers(kind: Callable[[str], Value], least: float, most: float = math.inf) -> Callback:
    """Return a callback that reads different numbers separated by commas, from ``least`` to ``most``."""

    def read(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[Value, ...] | None:
        if text is None:
            return None
        try:
            values = tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise click.BadParameter(
                f"{text!r}: expected numbers separated by commas", param=parameter
            ) from None
        for value in values:
            if not (math.isfinite(value) and least <= value <= most):
                limit = "" if most == math.inf else f" and at most {most:g}"
                raise click.BadParameter(
                    f"{value}: expected a finite number, at least {least:g}{limit}", param=parameter
                )
        return tuple(dict.fromkeys(values))

    return read


def parse_policies(text: str) -> tuple[Contender, ...]:
    """Read policies separated by commas; JSQ, which all are compared with, comes first whether named or not.

    Raises
    ------
    ValueError
        As :func:`eldr.simulate.contenders.parse_contender` does.
    """
    return tuple(dict.fromkeys(parse_contender(part.strip()) for part in f"JSQ,{text}".split(",")))


def policies(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[Contender, ...] | None:
    """Read policies as :func:`parse_policies` does."""
    try:
        return None if text is None else parse_policies(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def check_requests(
    *,
    logs: bool,
    from_cluster: str | None,
    workload: str | None,
    only_of_logs: Mapping[str, Any],
    only_of_clusters: Mapping[str, Any],
    only_of_kinds: Mapping[str, Any],
) -> None:
    """Refuse several kinds of requests at once, and options that would change nothing of the kind that is asked for.

    Raises
    ------
    click.UsageError
    """
    if from_cluster is not None and not from_cluster.strip():
        raise click.UsageError("--from-cluster: expected the name of an EldrDeployment, got nothing")
    if logs + bool(workload) + bool(from_cluster) > 1:
        raise click.UsageError("--log, --from-cluster and --workload: choose one")
    own = logs or bool(from_cluster)
    for ignored, given, why in (
        (not own, only_of_logs, "there is no log; name one with --log, or a deployment with --from-cluster"),
        (not from_cluster, only_of_clusters, "there is no deployment; name one with --from-cluster"),
        (own, only_of_kinds, "the requests of a log have no kinds or labels; use --workload"),
    ):  # fmt: skip
        named = [name for name, value in given.items() if value not in (None, False)]
        if ignored and named:
            raise click.UsageError(f"{', '.join(named)}: {why}")
