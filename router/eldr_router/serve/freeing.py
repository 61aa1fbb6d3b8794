"""Prefill results that no decode engine will use: their blocks are pinned for the rest of their lease unless somebody pulls them.

vLLM has no call that lets a prefill engine forget a result. What frees it is a pull; so a decode engine with room pulls
it and answers one token that nobody reads.
"""

from __future__ import annotations

import logging

from eldr.contract import ROLE_DECODE
from eldr_router.http.errors import RouterError
from eldr_router.http.head import Headers
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.plan.signature import WHOLE
from eldr_router.serve.services import Services

log = logging.getLogger(__name__)

_PATIENCE = 60.0


def free_blocks(services: Services, path: str, headers: Headers, body: bytes, key: str) -> None:
    """Have a result's blocks pulled beside the traffic.

    Parameters
    ----------
    path : str
        Of the request that the result belongs to.
    headers : list of (bytes, bytes)
        As engines get them.
    body : bytes
        Ends after one token.
    key : str
        Of the engine that holds them; those that are unlike it cannot pull.
    """
    services.spawn(_pull(services, path, headers, body, key))


async def _pull(services: Services, path: str, headers: Headers, body: bytes, key: str) -> None:
    try:
        unlike = services.registry.unlike(ROLE_DECODE, key)
        placement = services.placer.place(services.table, WHOLE, unlike)
    except RouterError as error:
        log.info("blocks of a result that nobody uses stay pinned for their lease: %s", error)
        return
    with placement.lease:
        try:
            address = placement.endpoint.address
            await fetch(
                services.pool, address, path, method="POST", headers=headers, body=body, patience=_PATIENCE
            )
        except (ConnectError, BrokenError) as error:
            log.info("blocks of a result that nobody uses may stay pinned for their lease: %s", error)
            return
    services.metrics.freed_results()
