"""Reads what routers say of themselves from their admin ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

import aiohttp

from eldr import admin_tls, contract
from eldr.addresses import authority
from eldr_operator import parsing
from eldr_operator.kube.authorities import Trust
from eldr_operator.locality.router_view import RouterPod, RouterView

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=3.0, sock_read=3.0)
_LONGEST_SECONDS = 5.0
"""For a whole answer: one that comes byte by byte must not keep a pass waiting."""
_MOST_BYTES = 4 << 20


class StatusError(Exception):
    """A router answers with another status than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answers {status}")
        self.status = status


class Fetch(Protocol):
    """Returns what is served at a URL to who has a token; raises as :func:`fetch` does."""

    async def __call__(self, url: str, token: str, trust: Trust | None = None, /) -> bytes: ...  # noqa: D102 - the class says it


def session() -> aiohttp.ClientSession:
    """Return a client for any number of routers, to be closed."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def fetch(client: aiohttp.ClientSession, url: str, token: str, trust: Trust | None = None) -> bytes:
    """Return what is served at a URL.

    Parameters
    ----------
    trust : Trust, optional
        For a URL by https.

    Raises
    ------
    StatusError
        If the status is not 200.
    ValueError
        If it is too large.
    aiohttp.ClientError, TimeoutError, OSError
        If there is no answer.
    """
    headers, body = {"Authorization": f"Bearer {token}"}, bytearray()
    context = True if trust is None or trust.context is None else trust.context
    name = None if trust is None else trust.name
    if trust is not None:
        headers["Connection"] = "close"  # a certificate is checked with each question
    async with client.get(
        url, headers=headers, timeout=_TIMEOUT, allow_redirects=False, ssl=context, server_hostname=name
    ) as answer:
        if answer.status != HTTPStatus.OK:
            raise StatusError(answer.status)
        async for part in answer.content.iter_any():
            body += part
            if len(body) > _MOST_BYTES:
                raise ValueError(f"an answer of more than {_MOST_BYTES} bytes")
    return bytes(body)


async def look(
    fetch: Fetch, pods: Sequence[RouterPod], token: str, trust: Trust | None = None
) -> list[RouterView]:
    """Read the state of routers, all at once. A router that does not answer is a view with a problem.

    Parameters
    ----------
    trust : Trust, optional
        For the pods that speak TLS.
    """
    return list(await asyncio.gather(*(_look(fetch, pod, token, trust) for pod in pods)))


async def _look(fetch: Fetch, pod: RouterPod, token: str, trust: Trust | None) -> RouterView:
    where = f"{authority(pod.address, contract.PORT_ADMIN)}{contract.PATH_STATE}"
    if pod.is_secure and (trust is None or trust.context is None):
        return RouterView(pod, problem=trust.problem if trust else "no authority", is_distrusted=True)
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            asked = (
                fetch(f"https://{where}", token, trust) if pod.is_secure else fetch(f"http://{where}", token)
            )
            return RouterView.of(pod, parsing.load(await asked))
    except StatusError as error:
        return RouterView(pod, problem=str(error), refuses_token=error.status == HTTPStatus.UNAUTHORIZED)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if distrust := admin_tls.distrust(error):
            return RouterView(pod, problem=distrust, is_distrusted=True)
        # The class, not the text: texts hold ports and errno, and would rewrite the status.
        return RouterView(pod, problem=f"does not answer ({type(error).__name__})")
    except ValueError:
        return RouterView(pod, problem="answers what this operator cannot read; are the versions the same?")
