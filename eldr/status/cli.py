"""The command ``eldr status``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from eldr import contract
from eldr.kubeconfig import ApiServer, ClusterError, Object, foreign
from eldr.options import of_cluster
from eldr.status import text
from eldr.status.overview import Overview, document
from eldr.status.summary import summarize

_RIGHTS = "the status of a deployment takes get of eldrdeployments and list of eldrfits"
_WIDTH = 120  # of what goes to a file


@click.command("status", context_settings={"auto_envvar_prefix": "ELDR_STATUS", "show_default": True})
@click.argument("name")
@of_cluster
@click.option("--json", "as_json", is_flag=True, help="Write everything as JSON.")
def command(
    *, name: str, namespace: str | None, context: str | None, kubeconfig: Path | None, as_json: bool
) -> None:
    """Show the EldrDeployment NAME and its recent history on one screen.

    It shows whether the deployment is ready, its policy, the saving now and the drift score of the last day. It shows the
    last fits, with their predicted saving and when their centroid sets served, and conditions that need attention.

    Reads the cluster with your kubeconfig and changes nothing. Times are UTC.
    """
    try:
        overview = _read(
            ApiServer(context, namespace, str(kubeconfig) if kubeconfig else None, rights=_RIGHTS), name
        )
    except ClusterError as error:
        raise click.ClickException(f"{error.reason}: {error}") from error
    if as_json:
        click.echo(json.dumps(document(overview), indent=2))
        return
    console = Console()
    width = console.width if console.is_terminal else _WIDTH
    plain = not console.encoding.lower().startswith("utf")
    for line in text.lines(overview, width, plain=plain):
        console.print(line.text, style=line.style, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _read(server: ApiServer, name: str) -> Overview:
    deployment = server.deployment(name)
    fits, notes = _fits(server, server.path(contract.FITS))
    return summarize(deployment, fits, datetime.now(UTC), notes)


def _fits(server: ApiServer, path: str) -> tuple[list[Object] | None, list[str]]:
    """Return the fits of the namespace; without them there is still much to tell."""
    try:
        items = server.read(path, "its EldrFits").get("items")
        if not isinstance(items, list):
            raise foreign("its EldrFits", "a list in items")
    except ClusterError as error:
        return None, [f"fits are known from status.history only: {error.reason}: {error}"]
    return [one for one in items if isinstance(one, dict)], []
