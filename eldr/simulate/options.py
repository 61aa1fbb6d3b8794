"""Values of the command's options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from eldr.simulate.contenders import Contender, parse_contender
from eldr.simulate.objective import Objective, parse_objective
from eldr.simulate.prefix import PrefixCache
from eldr.simulate.replicas import Balance, Placing, Replicas
from eldr.simulate.setting import Setting
from eldr.simulate.workload import Prefill

Value = TypeVar("Value", int, float)
Callback = Callable[[click.Context, click.Parameter, Any], Any]


MOST_ENGINES = 1024
_PREFILL_MS, _PREFILL_US = 6e4, 1e6


def numbers(
    kind: Callable[[str], Value], least: float, most: float = math.inf, *, distinct: bool = True
) -> Callback:
    """Return a callback that reads numbers separated by commas, from ``least`` to ``most``; each once, if ``distinct``."""

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
                raise click.BadParameter(f"{value}: expected at least {least:g}{limit}", param=parameter)
        return tuple(dict.fromkeys(values)) if distinct else values

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


def objective(_: click.Context, parameter: click.Parameter, text: str | None) -> Objective | None:
    """Read ``P99=MS``."""
    try:
        return None if text is None else parse_objective(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def prefill(_: click.Context, parameter: click.Parameter, text: str | None) -> Prefill | None:
    """Read ``ENGINES,FIXED_MS,PER_TOKEN_US``."""
    if text is None:
        return None
    try:
        first, *times = text.split(",")
        engines, (fixed, per_token) = int(first), map(float, times)
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: expected ENGINES,FIXED_MS,PER_TOKEN_US", param=parameter
        ) from None
    if not (1 <= engines <= MOST_ENGINES and 0 <= fixed <= _PREFILL_MS and 0 <= per_token <= _PREFILL_US):
        raise click.BadParameter(
            f"{text!r}: expected 1 to {MOST_ENGINES} engines, 0 to {_PREFILL_MS:.0f} ms a prompt and 0 to {_PREFILL_US:g} us a token",
            param=parameter,
        )
    return Prefill(engines, fixed * 1e-3, per_token * 1e-6)


def check_requests(
    *,
    logs: bool,
    from_cluster: str | None,
    workload: str | None,
    only_of_logs: Mapping[str, Any],
    only_of_clusters: Mapping[str, Any],
    only_of_synthetic: Mapping[str, Any],
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
        (own or workload == "captured", only_of_synthetic, "these requests come from a model of their own; use --workload task or language"),
        (own, only_of_kinds, "the requests of a log have no kinds or labels; use --workload"),
    ):  # fmt: skip
        named = [name for name, value in given.items() if value not in (None, False)]
        if ignored and named:
            raise click.UsageError(f"{', '.join(named)}: {why}")


def check(settings: Sequence[Setting], objective: Objective | None, rates: tuple[float, ...] | None) -> None:
    """Refuse what options mean only together.

    Raises
    ------
    click.UsageError
    """
    if objective is not None and len(rates or ()) < 2:
        raise click.UsageError("--objective: give two rates or more with --rate, below and above it")
    if any(setting.replicas is not None and setting.ranks == 1 for setting in settings):
        raise click.UsageError("--replication: one rank needs no second replica of an expert; give --ranks")
    if any(setting.spread and setting.ranks == 1 for setting in settings):
        raise click.UsageError("--spread: the only rank of an engine holds all experts; give --ranks")


def replicas(
    replication: float | None, balance: Balance | None, placed_by: Placing | None, decision: float
) -> Replicas | None:
    """Return the replicas that options ask for.

    Raises
    ------
    click.UsageError
        If an option would change nothing.
    """
    several = replication is not None and replication > 1
    if not several and (balance or decision):
        raise click.UsageError(
            "--balance, --decision: without replicas nothing is chosen; give --replication above 1"
        )
    if not several and placed_by is None:
        return None
    return Replicas(ratio=replication or 1.0, balance=balance or "exact", placing=placed_by or "activations")


def cache(share: float | None, *, lost: bool, prefilled: bool) -> PrefixCache | None:
    """Return the prefix cache that options ask for.

    Raises
    ------
    click.UsageError
        If it would change nothing.
    """
    if share is None:
        if lost:
            raise click.UsageError("--cached-counts lost: say how much is cached with --cached")
        return None
    if not (prefilled or lost):
        raise click.UsageError(
            "--cached: prompts take no time that a cache could spare; give --prefill, or --cached-counts lost"
        )
    return PrefixCache(share, counted=not lost)
