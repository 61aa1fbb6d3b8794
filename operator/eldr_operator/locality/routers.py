"""Reads what routers say of themselves from their admin ports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

import aiohttp

from eldr import contract
from eldr.addresses import authority
from eldr_operator import border
from eldr_operator.locality.router_view import RouterPod, RouterView

Fetch = Callable[[str, str], Awaitable[bytes]]
"""Returns what is served at a URL to who has a token; raises as :func:`fetch` does."""

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=3.0, sock_read=3.0)
_LONGEST_SECONDS = 5.0
"""For a whole answer: one that comes byte by byte must not keep a pass waiting."""
_MOST_BYTES = 4 << 20


class StatusError(Exception):
    """A router answers with another status than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answers {status}")
        self.status = status


def session() -> aiohttp.ClientSession:
    """Return a client for any number of routers, to be closed; each is asked so seldom that its connection is not kept."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def fetch(client: aiohttp.ClientSession, url: str, token: str) -> bytes:
    """Return what is served at a URL.

    Raises
    ------
    StatusError
        If the status is not 200.
    ValueError
        If it is too large.
    aiohttp.ClientError, TimeoutError, OSError
        If there is no answer.
    """
    headers, found = {"Authorization": f"Bearer {token}"}, bytearray()
    async with client.get(url, headers=headers, timeout=_TIMEOUT, allow_redirects=False) as answer:
        if answer.status != HTTPStatus.OK:
            raise StatusError(answer.status)
        async for part in answer.content.iter_any():
            found += part
            if len(found) > _MOST_BYTES:
                raise ValueError(f"an answer of more than {_MOST_BYTES} bytes")
    return bytes(found)


async def look(fetch: Fetch, pods: Sequence[RouterPod], token: str) -> list[RouterView]:
    """Read the state of routers, all at once. A router that does not answer is a view with a problem."""
    return list(await asyncio.gather(*(_look(fetch, pod, token) for pod in pods)))


async def _look(fetch: Fetch, pod: RouterPod, token: str) -> RouterView:
    url = f"http://{authority(pod.address, contract.PORT_ADMIN)}{contract.PATH_STATE}"
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            return RouterView.of(pod, border.load(await fetch(url, token)))
    except StatusError as error:
        return RouterView(pod, problem=str(error), refuses_token=error.status == HTTPStatus.UNAUTHORIZED)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        # The class, not the text: texts hold ports and errno, and would rewrite the status.
        return RouterView(pod, problem=f"does not answer ({type(error).__name__})")
    except ValueError:
        return RouterView(pod, problem="answers what this operator cannot read; are the versions the same?")
