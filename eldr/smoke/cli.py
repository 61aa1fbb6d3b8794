"""The command ``eldr smoke``."""

from __future__ import annotations

from pathlib import Path

import click

from eldr import contract
from eldr.kubeconfig import ApiServer, ClusterError, Object, foreign
from eldr.options import FiniteRange
from eldr.smoke.choice import NoTargetError, choose
from eldr.smoke.pods import ask_router
from eldr.smoke.request import RequestError, ask

_RIGHTS = "this takes list of eldrdeployments"
_PODS = "this takes list of pods and create of pods/proxy; or name an address by --url"


@click.command("smoke", context_settings={"auto_envvar_prefix": "ELDR_SMOKE", "show_default": True})
@click.argument("name", default="")
@click.option(
    "--namespace",
    "-n",
    "namespaces",
    multiple=True,
    help="Where to look; may be repeated [default: the context's].",
)
@click.option("--all-namespaces", "-A", is_flag=True, help="Look in every namespace.")
@click.option("--context", help="Context of the kubeconfig [default: the current one].")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The kubeconfig [default: KUBECONFIG's, or ~/.kube/config].",
)
@click.option(
    "--url",
    help="Where to send the request, without a path [default: in a pod the Service; elsewhere a router, through the API server].",
)
@click.option(
    "--api-key",
    help="Key of a client, where routers ask for one; better in the variable ELDR_API_KEY.",
    envvar="ELDR_API_KEY",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM certificates to trust [default: the system's].",
)
@click.option("--timeout-seconds", type=FiniteRange(1, 3600), default=60.0, help="For the answer.")
def command(
    *,
    name: str,
    namespaces: tuple[str, ...],
    all_namespaces: bool,
    context: str | None,
    kubeconfig: Path | None,
    url: str | None,
    api_key: str | None,
    ca: Path | None,
    timeout_seconds: float,
) -> None:
    """Send one request to the EldrDeployment NAME, and check the answer; without a NAME, to one that is Ready.

    In a pod, the request takes the way of every client: Service, router, prefill engine, decode engine. Elsewhere, it reaches the
    router through the API server. Exits with 1 if no right answer comes, and says why. `helm test` runs this.
    """
    if all_namespaces and namespaces:
        raise click.UsageError("--all-namespaces looks in every namespace; leave out --namespace")
    api_key = (
        api_key.strip() if api_key else None
    )  # files end with a line break, and routers leave it out, too
    if api_key and not all("!" <= sign <= "~" for sign in api_key):
        raise click.UsageError(
            "--api-key: must be printable ASCII characters without spaces, as routers take"
        )
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url {url}: must begin with http:// or https://")
    try:
        file = str(kubeconfig) if kubeconfig else None
        deployments, where = _read(context, namespaces, file, everywhere=all_namespaces)
        target = choose(deployments, name, where)
        server = ApiServer(context, target.namespace, file, rights=_PODS)
        if url or server.is_inside:
            asked = url or target.url
            answer = ask(asked, target.model, timeout_seconds, key=api_key, ca=ca)
        else:
            answer, asked = ask_router(server, target, timeout_seconds, key=api_key, ca=ca)
    except ClusterError as error:
        raise click.ClickException(f"{error.reason}: {error}") from error
    except (NoTargetError, RequestError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{target} answered: {answer.tokens} tokens of {target.model} in {answer.seconds:.2f} s, from {asked}"
    )


def _read(
    context: str | None, namespaces: tuple[str, ...], kubeconfig: str | None, *, everywhere: bool
) -> tuple[list[Object], str]:
    """Return the deployments, and where they were looked for."""
    if everywhere:
        server = ApiServer(context, None, kubeconfig, rights=f"{_RIGHTS} in all namespaces")
        return _items(server, f"/apis/{contract.API_VERSION}/{contract.DEPLOYMENTS}"), "any namespace"
    deployments = []
    servers = [ApiServer(context, one, kubeconfig, rights=_RIGHTS) for one in namespaces or (None,)]
    for server in servers:
        deployments += _items(server, server.path(contract.DEPLOYMENTS))
    return deployments, f"namespace {', '.join(server.namespace for server in servers)}"


def _items(server: ApiServer, path: str) -> list[Object]:
    what = f"{contract.KIND_DEPLOYMENT}s"
    items = server.read(path, what).get("items")
    if isinstance(items, list) and all(map(_is_deployment, items)):
        return items
    raise foreign(what, "a list of them in items")


def _is_deployment(one: Object) -> bool:
    match one:
        case {"metadata": {"name": str(), "namespace": str()}}:
            return True
    return False
