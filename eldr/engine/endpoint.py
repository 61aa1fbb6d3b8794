"""``/eldr/v1/activations`` on the engine's API server: finished requests, by cursor."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from eldr import contract
from eldr.engine.ring import RingReader, path_of

_STATE = "eldr_activations"


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
        """Open the ring of this server's engine; a prefill engine has none."""
        del args
        ring = None
        if engine_client is not None:
            try:
                ring = RingReader(path_of(engine_client.vllm_config.instance_id))
            except FileNotFoundError:
                ring = None
        setattr(state, _STATE, ring)


def activations(
    request: Request,
    *,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=256)] = 64,
    prefix: str = "",
    boot: str = "",
    rate: Annotated[float, Query(ge=0, le=1)] = 1.0,
) -> Response:
    """Serve records; see :data:`eldr.contract.PATH_ACTIVATIONS`."""
    ring: RingReader | None = getattr(request.app.state, _STATE, None)
    if ring is None:
        message = "this engine keeps no activations: it is not a decode engine with ELDR's connector"
        error = {"message": message, "type": "NotFoundError", "param": None, "code": 404}
        return JSONResponse({"error": error}, 404)
    return JSONResponse(read(ring, after=after, limit=limit, prefix=prefix, boot=boot, rate=rate))


def read(
    ring: RingReader, *, after: int, limit: int, prefix: str = "", boot: str = "", rate: float = 1.0
) -> dict[str, Any]:
    """Return the answer of the path.

    Parameters
    ----------
    ring : RingReader
    after : int
        Cursor.
    limit : int
        Records to return at most.
    prefix : str
        Only requests whose base id begins so.
    boot : str
        The boot the cursor belongs to; with another one, reading begins at the oldest record.
    rate : float
        Only requests that are sampled at this rate.
    """
    if boot and boot != ring.boot:
        after = 0
    start, end = max(after, ring.oldest), ring.written
    lost, cursor = max(0, start - after), start
    records: list[dict[str, Any]] = []
    while cursor < end and len(records) < limit:
        raw = ring.get(cursor)
        cursor += 1
        if raw is None:
            lost += 1
            continue
        record = json.loads(raw)
        name = contract.base_id(record["request_id"])
        if name.startswith(prefix) and contract.is_sampled(name, rate):
            records.append(record | {"request_id": name})
    return {
        "v": contract.COUNTS_VERSION,
        "boot": ring.boot,
        "next": max(cursor, after if after <= end else 0),
        "lost": lost,
        "records": records,
    }
