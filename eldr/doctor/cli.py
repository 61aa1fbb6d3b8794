"""The command ``eldr doctor``."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from eldr.doctor import report
from eldr.doctor.gather import gather
from eldr.kubeconfig import ApiServer, ClusterError
from eldr.options import of_cluster

_RIGHTS = (
    "eldr doctor takes get of eldrdeployments; docs/reference/doctor.md lists what each check reads beside it"
)
_WIDTH = 120  # of what goes to a file
_PROBLEMS = 1


class _BlindError(click.ClickException):
    """It could not look."""

    exit_code = 2


@click.command("doctor", context_settings={"auto_envvar_prefix": "ELDR_DOCTOR", "show_default": True})
@click.argument("name")
@of_cluster
@click.option("--json", "as_json", is_flag=True, help="Write problems and checks as JSON.")
def command(
    *, name: str, namespace: str | None, context: str | None, kubeconfig: Path | None, as_json: bool
) -> None:
    """Find what keeps the EldrDeployment NAME from serving as it should, and say what to do.

    Looks at images, devices, RDMA, quota, Secrets, the model, containers, NetworkPolicies, routers and conditions. Reads the
    cluster with your kubeconfig and changes nothing. Exit code: 0 no problem found, 1 problems, 2 it could not look.
    """
    try:
        with ApiServer(context, namespace, str(kubeconfig) if kubeconfig else None, rights=_RIGHTS) as server:
            diagnosis = report.examine(gather(server, name), datetime.now(UTC))
    except ClusterError as error:
        raise _BlindError(f"{error.reason}: {error}") from error
    if as_json:
        click.echo(json.dumps(report.document(diagnosis), indent=2))
    else:
        console = Console()
        for text, style in report.lines(diagnosis, console.width if console.is_terminal else _WIDTH):
            console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)
    sys.exit(_PROBLEMS if diagnosis.problems else 0)
