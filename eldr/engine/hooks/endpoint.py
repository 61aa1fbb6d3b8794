"""What the plug-in adds to the engine's API server: ``/eldr/v1/activations``, and the limit of sequences in flight."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import Counter, Gauge
from vllm.logger import init_logger

from eldr import contract
from eldr.engine.decode.records import CURSOR, page
from eldr.engine.decode.ring import RingReader, rings_of
from eldr.engine.steps import connectors_of
from eldr.engine_limit import NO_LIMIT, Bound, EngineLimit, InFlight, hold_to

_STATE = "eldr_activations"

logger = init_logger("vllm.eldr")


class ActivationsEndpoint:
    """An endpoint plug-in of vLLM; see ``vllm/plugins/endpoint_plugins/interface.py`` there."""

    name = "eldr"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the path, and the limit before all paths; vLLM's own middleware, which checks keys, stands before that."""
        router = APIRouter()
        router.add_api_route(contract.PATH_ACTIVATIONS, activations, methods=["GET"])
        app.include_router(router)
        app.add_middleware(EngineLimit, state=app.state)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Open the rings of this server's engine, and set its limit."""
        rings: list[RingReader] | None = None
        if engine_client is not None:
            config = engine_client.vllm_config
            hold_to(state, _bound(config, args))
            rings = _rings(config)
        setattr(state, _STATE, rings)


def _rings(config: Any) -> list[RingReader] | None:
    try:
        if (transfer := config.kv_transfer_config) is None:
            return None
        return [
            RingReader(path)
            for path in rings_of(transfer.engine_id, config.parallel_config.data_parallel_size)
        ]
    except FileNotFoundError:  # its log reports it, if it was to keep them
        return None
    except Exception:
        logger.exception("ELDR: what this engine counts cannot be read: its server starts without it")
        return None


def _bound(config: Any, args: Any) -> Bound | None:
    """Return what an engine holds to over all of its API servers: what it can run.

    One that produces KV and has a transport prefills for others, and lets requests queue. One that pulls without our connector
    reports no load: it keeps no deadline, and routers trust those that report.
    """
    try:
        transfer = config.kv_transfer_config
        connectors = connectors_of(transfer)
        if connectors and contract.CONNECTOR not in connectors:
            return None
        prefills = len(connectors) > 1 and transfer.kv_role == "kv_producer"
        several = (args.api_server_count or 1) > 1
        # a folder that the API servers of one engine share, and no others
        path = (
            Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]) / f"eldr-in-flight-{args.port}" if several else None
        )
        limit = config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size
        return Bound(InFlight(path), NO_LIMIT if prefills else limit, *_metrics())
    except Exception:
        logger.exception("ELDR: this engine reports no load and keeps no limit")
        return None


@functools.cache
def _metrics() -> tuple[Callable[[float], None], Callable[[], None]]:
    in_flight = Gauge(
        contract.METRIC_IN_FLIGHT, "Sequences in flight over all API servers.", multiprocess_mode="mostrecent"
    )
    return in_flight.set, Counter(
        contract.METRIC_REFUSED, "Requests refused because the engine was full."
    ).inc


def activations(
    request: Request,
    *,
    after: Annotated[str, Query(pattern=CURSOR, max_length=512)] = "0",
    limit: Annotated[int, Query(ge=1, le=256)] = 64,
    prefix: str = "",
    boot: str = "",
    rate: Annotated[float, Query(ge=0, le=1)] = 1.0,
) -> Response:
    """Serve records; see :data:`eldr.contract.PATH_ACTIVATIONS`."""
    rings: list[RingReader] | None = getattr(request.app.state, _STATE, None)
    if rings is None:
        message = (
            "this engine keeps no activations: it has no EldrConnector, or its log says why it keeps none"
        )
        error = {"message": message, "type": "NotFoundError", "param": None, "code": 404}
        return JSONResponse({"error": error}, 404)
    return JSONResponse(page(rings, after=after, limit=limit, prefix=prefix, boot=boot, rate=rate))
