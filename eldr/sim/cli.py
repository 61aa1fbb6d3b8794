"""The command ``eldr engine-sim``."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click
import uvicorn

from eldr.contract import DEFAULT_LEASE_SECONDS, PORT_ENGINE
from eldr.options import FiniteRange
from eldr.sim import traces
from eldr.sim.engine import EngineSettings
from eldr.sim.lifetime import DrainingServer
from eldr.sim.server import EngineApp


@click.command("engine-sim", context_settings={"auto_envvar_prefix": "ELDR_ENGINE_SIM", "show_default": True})
@click.option(
    "--role", type=click.Choice(["prefill", "decode"]), required=True, help="What the engine is for."
)
@click.option("--host", default="127.0.0.1", help="Address to listen on; decode engines pull from it.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT_ENGINE, help="Port to listen on.")
@click.option("--model", default="simulated", help="Served model name; other names are answered with 404.")
@click.option("--speed", type=FiniteRange(1e-6), default=1.0, help="Multiplies all times; below 1 is faster.")
@click.option(
    "--lease-seconds", type=FiniteRange(0.1), default=DEFAULT_LEASE_SECONDS, help="Of prefill results."
)
@click.option(
    "--ignore-deadlines",
    is_flag=True,
    help="Pull at any time, as an engine without the plug-in: only the router keeps late results from clients.",
)
@click.option(
    "--kv-key", default="", help="Engines with another key hold KV of another kind: pulls between them fail."
)
@click.option("--max-num-seqs", type=click.IntRange(1), default=256, help="Largest batch.")
@click.option("--kv-blocks", type=click.IntRange(1), default=16384, help="KV capacity in blocks.")
@click.option("--block-size", type=click.IntRange(1, 255), default=16, help="Tokens per KV block.")
@click.option(
    "--max-model-len", type=click.IntRange(1), default=8192, help="Longest prompt plus output, tokens."
)
@click.option(
    "--context-seconds-per-token",
    type=FiniteRange(0),
    default=0.0,
    help="What a step takes longer for each token of context.",
)
@click.option(
    "--drafts", type=click.IntRange(0), default=0, help="Tokens that a step drafts for each request."
)
@click.option("--accepted", type=FiniteRange(0, 1), default=0.8, help="Share of drafts that are accepted.")
@click.option(
    "--first-step-delay",
    type=FiniteRange(0),
    default=0.0,
    help="Seconds between a pull and the first token.",
)
@click.option(
    "--shutdown-timeout",
    type=FiniteRange(0),
    default=0.0,
    help="Seconds to finish requests after SIGTERM.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning")
def command(
    *,
    host: str,
    port: int,
    lease_seconds: float,
    ignore_deadlines: bool,
    shutdown_timeout: float,
    log_level: str,
    **plain: Any,
) -> None:
    """Serve a simulated engine with vLLM's HTTP surface.

    It replays captured activations.

    Its decode step takes T(B, A) for the active experts of its batch. Output text is a function of the prompt. KV blocks
    that were pulled twice or too late give other text without an error, as on a real engine.
    """
    settings = EngineSettings(
        **plain, address=(host, port), lease=lease_seconds, heeds_deadlines=not ignore_deadlines
    )
    try:
        engine = EngineApp(settings, traces.load())
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    config = uvicorn.Config(
        engine.app(),
        host=host,
        port=port,
        log_level=log_level,
        access_log=False,
        timeout_graceful_shutdown=1,  # for the last bytes: requests were finished before
        timeout_keep_alive=300,
    )
    # Containers send SIGTERM to process 1, where the default action is to ignore it; uvicorn installs its own handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    DrainingServer(config, engine, shutdown_timeout).run()
