"""``eldr operator``."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import sys
from typing import Any

import click

import eldr
from eldr.logs import write_logs
from eldr.options import FiniteRange
from eldr_operator.errors import OperatorError
from eldr_operator.settings import DEFAULT_IMAGE, Settings
from eldr_operator.startup import serve

logger = logging.getLogger(__name__)

_MOST_CALLS = 12_000
"""In one another. JSON takes one for each level, and the API server takes 10,000 levels: with Python's own limit, one object that is nested
deeper would keep lists and watches from reading all others."""
_option = functools.partial(click.option, show_envvar=True)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out kopf's warning that it handles no signals in this thread: the operator handles them itself."""
    return not str(record.msg).startswith("OS signals are ignored")


def _labels(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    del context, parameter
    labels: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign) or name in labels:
            raise click.BadParameter(f"expected LABEL=VALUE, each label once, got {text!r}")
        labels[name] = value
    return tuple(labels.items())


@click.command("operator", context_settings={"auto_envvar_prefix": "ELDR_OPERATOR", "show_default": True})
@_option(
    "--namespace",
    "namespaces",
    multiple=True,
    envvar="ELDR_OPERATOR_NAMESPACES",
    help="Namespace to watch; repeatable.",
)
@_option("--all-namespaces", is_flag=True, help="Watch every namespace.")
@_option(
    "--image",
    default=DEFAULT_IMAGE,
    help="Image of routers, simulated engines and fits if a resource names none.",
)
@_option(
    "--resync-seconds",
    type=FiniteRange(0.5, 3600),
    default=60.0,
    help="Between two passes over every resource.",
)
@_option(
    "--metrics-port", type=click.IntRange(0, 65535), default=8080, help="Port of /metrics; 0 turns it off."
)
@_option(
    "--liveness-port", type=click.IntRange(0, 65535), default=8081, help="Port of /healthz; 0 turns it off."
)
@_option("--lease", default="eldr-operator", help="Name of the Lease that lets one of several operators act.")
@_option(
    "--lease-namespace",
    default="",
    help="Namespace of the Lease, the operator's own. Without it there must be no other operator, and it runs outside the cluster.",
)
@_option(
    "--identity",
    default=socket.gethostname,
    show_default="the host's name",
    help="Name of this operator in the Lease; each needs its own.",
)
@_option(
    "--key",
    default="eldr-operator-key",
    help="Secret with the key that tokens of admin ports are derived from; made if it is missing.",
)
@_option("--key-namespace", default="default", help="Namespace of that Secret.")
@_option(
    "--monitoring-namespaces",
    "monitoring",
    multiple=True,
    metavar="LABEL=VALUE",
    callback=_labels,
    help="Label of the namespaces that may read metrics of routers and engines; repeatable: they need all of the labels.",
)
@_option("--host", default="0.0.0.0", help="Address of both ports.")
@_option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def command(*, namespaces: tuple[str, ...], all_namespaces: bool, log_level: str, **plain: Any) -> None:
    """Reconcile EldrDeployment and EldrFit in a cluster.

    Uses the pod's service account, or outside a cluster the kubeconfig. SIGTERM stops it; the pods that it made go on running.
    """
    if bool(namespaces) == all_namespaces:
        raise click.UsageError("give either --namespace NAME, once or more, or --all-namespaces")
    if plain["metrics_port"] == plain["liveness_port"] != 0:
        raise click.UsageError(
            f"--metrics-port and --liveness-port are both {plain['metrics_port']}; give each its own, or 0 to turn one off"
        )
    sys.setrecursionlimit(_MOST_CALLS)
    write_logs(log_level)
    for noisy in ("aiohttp.access", "httpx", "kopf.activities.probe", "kopf.objects"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").addFilter(_is_news)
    settings = Settings(namespaces=namespaces, **plain)
    logger.info(
        "eldr operator %s serves %s; image of routers, simulated engines and fits: %s",
        eldr.__version__,
        f"namespaces {', '.join(namespaces)}" if namespaces else "all namespaces",
        settings.image,
    )
    try:
        asyncio.run(serve(settings))
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
