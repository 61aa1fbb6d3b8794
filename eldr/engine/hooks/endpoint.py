"""``/eldr/v1/activations`` on the engine's API server: finished requests, by cursor."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from vllm.logger import init_logger

from eldr import contract
from eldr.engine.decode.records import CURSOR, page
from eldr.engine.decode.ring import RingReader, rings_of

_STATE = "eldr_activations"

logger = init_logger("vllm.eldr")


class ActivationsEndpoint:
    """An endpoint plug-in of vLLM; see ``vllm/plugins/endpoint_plugins/interface.py`` there."""

    name = "eldr"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the path."""
        router = APIRouter()
        router.add_api_route(contract.PATH_ACTIVATIONS, activations, methods=["GET"])
        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Open the rings of this server's engine; a prefill engine has none."""
        del args
        found: list[RingReader] | None = None
        if engine_client is not None:
            config = engine_client.vllm_config
            try:
                found = [
                    RingReader(path)
                    for path in rings_of(
                        config.kv_transfer_config.engine_id, config.parallel_config.data_parallel_size
                    )
                ]
            except FileNotFoundError:  # its log says so, if it was to keep them
                found = None
            except Exception:
                logger.exception("ELDR: what this engine counts cannot be read: its server starts without it")
        setattr(state, _STATE, found)


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
        message = "this engine keeps no activations: it is no decode engine with ELDR's connector, or its log says why it has none"
        error = {"message": message, "type": "NotFoundError", "param": None, "code": 404}
        return JSONResponse({"error": error}, 404)
    return JSONResponse(page(rings, after=after, limit=limit, prefix=prefix, boot=boot, rate=rate))
