"""``python -m eldr_kube``: a cluster to play with."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from eldr_kube.binaries import BinariesUnavailableError, binaries
from eldr_kube.cluster import Cluster


@click.group(context_settings={"show_default": True})
def main() -> None:
    """Run a real Kubernetes control plane on this machine, with nodes whose pods are local processes."""


@main.command("binaries")
def binaries_command() -> None:
    """Build or fetch the programs once and print their folder."""
    try:
        click.echo(binaries())
    except BinariesUnavailableError as error:
        raise click.ClickException(str(error)) from error


@main.command("up")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, help="Nodes to register.")
@click.option(
    "--image-map", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What images mean here."
)
def up_command(nodes: int, image_map: Path | None) -> None:
    """Start a cluster and keep it until ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with Cluster(nodes=nodes, image_map=image_map) as cluster:
            click.echo(f"export KUBECONFIG={cluster.kubeconfig} PATH={cluster.bin}:$PATH")
            signal.pause()
    except KeyboardInterrupt:
        return
    except BinariesUnavailableError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
