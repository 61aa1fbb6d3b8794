"""Reads what routers say of themselves from their admin ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx

from eldr import contract
from eldr_operator import border
from eldr_operator.locality.router_view import RouterPod, RouterView

_TIMEOUT = httpx.Timeout(3.0)
_LONGEST_SECONDS = 5.0
"""For a whole answer: one that comes byte by byte must not keep a pass waiting."""
_MOST_BYTES = 4 << 20


async def look(client: httpx.AsyncClient, pods: Sequence[RouterPod], token: str) -> list[RouterView]:
    """Read the state of routers, all at once. A router that does not answer is a view with a problem."""
    return list(await asyncio.gather(*(_look(client, pod, token) for pod in pods)))


async def _look(client: httpx.AsyncClient, pod: RouterPod, token: str) -> RouterView:
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    url = f"http://{host}:{contract.PORT_ADMIN}{contract.PATH_STATE}"
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            return RouterView.of(pod, border.load(await _answer(client, url, token)))
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        return RouterView(pod, problem=f"answers {status}", refuses_token=status == httpx.codes.UNAUTHORIZED)
    except (httpx.HTTPError, TimeoutError) as error:
        # The class, not the text: texts hold ports and errno, and would rewrite the status.
        return RouterView(pod, problem=f"does not answer ({type(error).__name__})")
    except ValueError:
        return RouterView(pod, problem="answers what this operator cannot read; are the versions the same?")


async def _answer(client: httpx.AsyncClient, url: str, token: str) -> bytes:
    # httpcore looks at each connection that it keeps, with every request: with hundreds of routers that was most of an idle operator's CPU
    headers, found = {"Authorization": f"Bearer {token}", "Connection": "close"}, bytearray()
    async with client.stream("GET", url, headers=headers, timeout=_TIMEOUT) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            found += part
            if len(found) > _MOST_BYTES:
                raise ValueError(f"an answer of more than {_MOST_BYTES} bytes")
    return bytes(found)
