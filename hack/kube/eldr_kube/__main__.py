"""``python -m eldr_kube``: a cluster to play with."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from eldr_kube.binaries import binaries
from eldr_kube.cluster import Cluster, CommandError
from eldr_kube.control_plane import ControlPlaneError
from eldr_kube.packages import BinariesUnavailableError
from eldr_kube.vllm import NoEnvironmentError, vllm_images

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(context_settings={"show_default": True, "auto_envvar_prefix": "ELDR_KUBE"})
def main() -> None:
    """Run a real Kubernetes control plane on this machine, with a node whose pods are local processes."""


@main.command("binaries")
def show_binaries() -> None:
    """Build or fetch the programs once, and print the folder that holds them."""
    try:
        click.echo(binaries())
    except BinariesUnavailableError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option(
    "--nodes", type=click.IntRange(1, 64), default=1, show_envvar=True, help="Nodes with 8 GPUs each."
)
@click.option(
    "--image-map",
    type=_FILE,
    show_envvar=True,
    help="YAML: image pattern -> entrypoint, path, env, workdir, keep.",
)
@click.option(
    "--vllm",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    show_envvar=True,
    help="Environment that hack/vllm/install has made: vLLM images then run from it.",
)
@click.option("--data", type=_FOLDER, show_envvar=True, help="Folder to keep; without it, a temporary one.")
@click.option("--audit/--no-audit", default=False, show_envvar=True, help="Whether to write an audit log.")
def up(*, nodes: int, image_map: Path | None, vllm: Path | None, data: Path | None, audit: bool) -> None:
    """Start a cluster, print its KUBECONFIG, and stay until ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    try:
        images = vllm_images(vllm) if vllm else None
        with Cluster(nodes=nodes, image_map=image_map, images=images, data=data, audit=audit) as cluster:
            click.echo(f"export KUBECONFIG={cluster.kubeconfig}")
            click.echo(f'export PATH="{cluster.bin}:$PATH"')
            click.echo(f"logs: {cluster.data}; ctrl-C ends everything", err=True)
            sys.stdout.flush()
            cluster.wait()
    except (BinariesUnavailableError, ControlPlaneError, CommandError, NoEnvironmentError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("ended", err=True)


if __name__ == "__main__":
    main()
