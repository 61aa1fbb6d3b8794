"""One completion, as a client asks for it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import urllib3

PATH = "/v1/completions"
_PROMPT = "Why is the sky blue?"
_TOKENS = 8
_RETRY_SECONDS = 1.0
_ELSEWHERE = ". The address is the Service's, which needs the cluster's network and DNS; give another one by --url, or by tests.url of the chart"

_KEY = ". Give a key by ELDR_API_KEY, or by tests.apiKey of the chart"
_AUTHORITY = ". Name the authority that signed its certificate by --ca, or by tests.ca of the chart"


class RequestError(Exception):
    """No answer, or a wrong one; the message says what came."""


class Answer(NamedTuple):
    """What came back."""

    tokens: int
    seconds: float


def body(model: str) -> dict[str, Any]:
    """Return a completion."""
    return {"model": model, "prompt": _PROMPT, "max_tokens": _TOKENS}


def ask(
    url: str,
    model: str,
    seconds: float,
    *,
    key: str | None = None,
    ca: Path | None = None,
    host: str | None = None,
) -> Answer:
    """Send a completion and check the answer.

    Parameters
    ----------
    url : str
        Without a path.
    seconds : float
        For the request, and for the address to be reached: a Service takes a moment to follow its pods.
    key : str, optional
        Of a client, where routers ask for one.
    ca : Path, optional
        Certificates to trust instead of the system's.
    host : str, optional
        Name in the certificate, if it is not that of the address.

    Raises
    ------
    RequestError
        If no answer of 200 with tokens comes.
    """
    where = f"{url.rstrip('/')}{PATH}"
    named: dict[str, Any] = (
        {"server_hostname": host, "assert_hostname": host} if host and url.startswith("https:") else {}
    )
    began = time.monotonic()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with urllib3.PoolManager(retries=False, ca_certs=str(ca) if ca else None, **named) as pool:
        while True:
            left = began + seconds - time.monotonic()
            sent = time.monotonic()
            try:
                answer = pool.request(
                    "POST", where, json=body(model), headers=headers, timeout=max(left, _RETRY_SECONDS)
                )
            except urllib3.exceptions.NameResolutionError as error:
                raise RequestError(f"{where}: {error}{_ELSEWHERE * ('.svc' in where)}") from None
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
                if left > _RETRY_SECONDS:
                    time.sleep(_RETRY_SECONDS)
                    continue
                raise RequestError(
                    f"{where} cannot be reached: {error}{_ELSEWHERE * ('.svc' in where)}"
                ) from None
            except urllib3.exceptions.HTTPError as error:
                hint = _AUTHORITY * ("CERTIFICATE_VERIFY_FAILED" in str(error))
                raise RequestError(f"{where} does not answer: {error}{hint}") from None
            return Answer(checked(where, answer.status, answer.data), time.monotonic() - sent)


def checked(where: str, status: int, data: bytes) -> int:
    """Return how many tokens were generated."""
    text = data[:500].decode(errors="replace")
    if status != 200:
        raise RequestError(f"{where} answers with status {status}: {text}{_KEY * (status == 401)}")
    try:
        answer: Any = json.loads(data)
        tokens = int(answer["usage"]["completion_tokens"])
        choices = [str(choice["text"]) for choice in answer["choices"]]
    except (ValueError, TypeError, KeyError):
        raise RequestError(f"{where} answers with something other than a completion: {text}") from None
    if tokens < 1 or not choices:
        raise RequestError(f"{where} answers without a token: {text}")
    return tokens
