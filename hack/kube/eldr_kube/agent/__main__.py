"""``python -m eldr_kube.agent``."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import click

from eldr_kube.agent.agent import Agent, AgentSettings
from eldr_kube.agent.images import load_images

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(context_settings={"show_default": True})
@click.option(
    "--kubeconfig", type=_FILE, required=True, help="How to reach the API server, as administrator."
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of its own; emptied.",
)
@click.option(
    "--endpoint", type=_FILE, required=True, help="The program node-endpoint: serves logs, forwards ports."
)
@click.option("--certificate", type=_FILE, required=True, help="Of the endpoint.")
@click.option("--key", type=_FILE, required=True, help="Of the certificate.")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, help="Nodes to register.")
@click.option(
    "--image-map",
    "image_maps",
    type=_FILE,
    multiple=True,
    help="YAML: image pattern -> entrypoint, path, env, workdir, keep, root. Of several, the first wins.",
)
@click.option(
    "--backoff-seconds",
    type=click.FloatRange(0.01),
    default=10.0,
    help="Second restart delay of a container.",
)
@click.option(
    "--isolate/--no-isolate", default=True, help="Whether to use mount and PID namespaces where allowed."
)
def main(
    *,
    kubeconfig: Path,
    state: Path,
    endpoint: Path,
    certificate: Path,
    key: Path,
    nodes: int,
    image_maps: tuple[Path, ...],
    backoff_seconds: float,
    isolate: bool,
) -> None:
    """Register nodes and run the containers of their pods as local processes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        images = load_images(*image_maps)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--image-map") from error
    settings = AgentSettings(
        kubeconfig=kubeconfig,
        state=state,
        endpoint=endpoint,
        certificate=certificate,
        key=key,
        n_nodes=nodes,
        images=images,
        backoff=backoff_seconds,
        isolate=isolate,
    )
    asyncio.run(_run(settings))


async def _run(settings: AgentSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Agent(settings).run(stop)


if __name__ == "__main__":
    main()
