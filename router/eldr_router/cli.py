"""``eldr router``: command line of the data plane."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from eldr.contract import ENV_ADMIN_TOKEN, ENV_POD_NAMESPACE, PORT_ADMIN, PORT_ROUTER
from eldr.kubeconfig_files import CredentialsError, KubeconfigError
from eldr.logs import write_logs
from eldr.options import FiniteRange
from eldr.threads import one_thread

_option = partial(click.option, show_envvar=True)
_PATH = click.Path(path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POSITIVE = FiniteRange(min=0, min_open=True)


@click.command(context_settings={"auto_envvar_prefix": "ELDR_ROUTER", "show_default": True})
@_option(
    "--source",
    type=click.Choice(["file", "kubernetes"]),
    default="file",
    help="Where engines and settings come from.",
)
@_option("--workers", type=_FILE, help="Worker file (YAML), watched; file source.")
@_option("--centroids", type=_PATH, help="Centroid file made by `eldr fit`, watched; file source.")
@_option("--peer", multiple=True, help="Admin URL of another router, http or https; repeatable; file source.")
@_option(
    "--namespace",
    default="",
    envvar=["ELDR_ROUTER_NAMESPACE", ENV_POD_NAMESPACE],
    help="Namespace of the EldrDeployment; kubernetes source.",
)
@_option("--deployment", default="", help="Name of the EldrDeployment; kubernetes source.")
@_option("--host", default="127.0.0.1", help="Address for clients.")
@_option("--port", type=click.IntRange(0, 65535), default=PORT_ROUTER, help="Port for clients; 0 picks one.")
@_option(
    "--loopback",
    is_flag=True,
    help="Also listen for clients on 127.0.0.1, where kubectl port-forward connects to; a port that is taken there is skipped.",
)
@_option("--admin-host", default="", show_default="--host", help="Address of the admin port.")
@_option("--admin-port", type=click.IntRange(0, 65535), default=PORT_ADMIN, help="Admin port; 0 picks one.")
@_option(
    "--api-keys",
    type=_PATH,
    help="Folder of API keys, one to a file, watched. Clients then need one: authorization: Bearer KEY, or x-api-key: KEY.",
)
@_option("--tls-certificate", type=_PATH, help="PEM chain for clients, watched; with --tls-key.")
@_option("--tls-key", type=_PATH, help="Key of the certificate, read again with it; keep both in one folder.")
@_option(
    "--admin-tls-certificate",
    type=_PATH,
    help="PEM chain for the admin port, watched; with --admin-tls-key. The port then speaks HTTPS only.",
)
@_option("--admin-tls-key", type=_PATH, help="Key of that certificate, in the same folder.")
@_option(
    "--admin-authority",
    type=_PATH,
    help="PEM certificates of who signs those of other routers' admin ports, watched.",
)
@_option(
    "--admin-token-file",
    type=_PATH,
    help="File of the admin ports' bearer token, watched; in place of ELDR_ADMIN_TOKEN.",
)
@_option("--log-dir", type=_PATH, help="Directory of the signature log; without it nothing is logged.")
@_option("--log-mebibytes", type=click.IntRange(1), default=256, help="Bound of the signature log.")
@_option("--log-hours", type=_POSITIVE, default=168.0, help="Older log segments are dropped.")
@_option("--drain-seconds", type=FiniteRange(0), default=300.0, help="Time for running requests on SIGTERM.")
@_option(
    "--prefill-timeout-seconds", type=_POSITIVE, default=120.0, help="Longest wait for a prefill answer."
)
@_option(
    "--decode-idle-timeout-seconds",
    type=_POSITIVE,
    default=600.0,
    help="Longest silence of a decode engine, or of a client that does not read; "
    "must exceed the longest answer that is not streamed.",
)
@_option(
    "--client-idle-timeout-seconds",
    type=_POSITIVE,
    default=620.0,
    help="How long a client connection may rest between two requests; must exceed what a proxy in front keeps it for.",
)
@_option("--connect-timeout-seconds", type=_POSITIVE, default=2.0, help="Longest wait for a connection.")
@_option("--max-body-mebibytes", type=click.IntRange(1, 4096), default=16, help="Larger requests get 413.")
@_option(
    "--max-bodies-mebibytes",
    type=click.IntRange(1),
    default=512,
    help="Bodies held together: requests until their answers begin, and answers not read. Beyond it 503. Sending one needs a second copy.",
)
@_option(
    "--max-waiting",
    type=click.IntRange(0),
    default=0,
    help="Requests that may wait, before their prefill, while all decode engines are full; 0: they get 429 at once.",
)
@_option("--max-wait-seconds", type=_POSITIVE, default=10.0, help="Longest wait of those; then 429.")
@_option(
    "--access-log",
    is_flag=True,
    help="Log a line for every request, not only for those that fail or are retried.",
)
@_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Messages on standard error.",
)
def command(
    *,
    peer: tuple[str, ...],
    log_mebibytes: int,
    log_hours: float,
    max_body_mebibytes: int,
    max_bodies_mebibytes: int,
    log_level: str,
    **plain: Any,
) -> None:
    """Route OpenAI requests: prefill, then the decode engine that fits best.

    The admin port needs a bearer token, in ELDR_ADMIN_TOKEN or --admin-token-file, unless it listens on loopback only.
    SIGTERM drains: /ready answers 503, running requests are finished, then the process ends.
    """
    one_thread()  # thread pools cost more than they save on small products
    import uvloop

    from eldr_router.app import serve
    from eldr_router.settings import Settings, SettingsError

    write_logs(log_level)
    try:
        settings = Settings(
            **plain,
            peers=peer,
            admin_token=os.environ.get(ENV_ADMIN_TOKEN, "").strip(),
            log_bytes=log_mebibytes << 20,
            log_seconds=log_hours * 3600,
            max_body=max_body_mebibytes << 20,
            max_bodies=max_bodies_mebibytes << 20,
        )
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    try:
        uvloop.run(serve(settings))
    except (OSError, SettingsError, KubeconfigError, CredentialsError) as error:
        raise click.ClickException(str(error)) from None
