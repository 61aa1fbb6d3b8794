"""Frees prefill results that no decode engine will use.

vLLM has no call for that. But when a decode engine rejects a request that names a result, it has the prefill engine free
the result at once. So a request is sent that every engine rejects: it takes no place and no compute, on a full engine too.
"""

from __future__ import annotations

import logging
from typing import Any

from eldr.contract import ROLE_DECODE
from eldr_router.api.bodies import freeing_body
from eldr_router.api.paths import COMPLETIONS
from eldr_router.flow.services import Services
from eldr_router.http.head import Headers
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError

log = logging.getLogger(__name__)

_PATIENCE = 10.0
_REJECTED = (400, 404)
"""As bad parameters, or as an unknown model. What a proxy or a limit refuses before vLLM reads it frees nothing."""


def free_result(services: Services, headers: Headers, kv: dict[str, Any], key: str) -> None:
    """Have a result's blocks freed, beside the traffic.

    Parameters
    ----------
    services : Services
    headers : list of (bytes, bytes)
        As engines get them.
    kv : dict
        What the prefill engine handed over.
    key : str
        Of the engine that holds the blocks; engines with another one cannot reach it.
    """
    services.spawn(_free(services, headers, freeing_body(kv), key))


async def _free(services: Services, headers: Headers, body: bytes, key: str) -> None:
    registry, reason = services.registry, "no decode engine accepts connections"
    for endpoint in registry.healthy_or_all(ROLE_DECODE, registry.incompatible(ROLE_DECODE, key)):
        try:
            answer = await fetch(
                services.pool, endpoint.address, COMPLETIONS, method="POST", headers=headers, body=body, patience=_PATIENCE
            )  # fmt: skip
        except (ConnectError, BrokenError) as error:
            reason = f"engine {endpoint.name}: {error}"
            continue
        if answer.status in _REJECTED:
            services.telemetry.metrics.freed_results()
            return
        reason = f"engine {endpoint.name} answered {answer.status}"
    log.info("an unused prefill result stays pinned until its lease ends: %s", reason)
