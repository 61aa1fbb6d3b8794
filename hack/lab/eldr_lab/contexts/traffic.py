"""Requests with short and long prompts of real text, and a client that sends them when they are due."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import httpx
import numpy as np

from eldr.clients import UNBOUNDED
from eldr.simulate.workload import poisson
from eldr_demo.answers import AnswerError
from eldr_tiny_moe.corpus import Prompts

SHORT, LONG, SPREAD = 64, 1400, 0.1
"""Tokens of prompts, log-normal: medians and the standard deviation of their logarithms."""
SHORTEST, LONGEST = 48, 208
"""Tokens of answers."""
_FIRST_ID, _IDS = 300, 97
"""Token ids that number a prompt: any will do."""
_RETRY_SECONDS = 1.0
_TIMEOUT = httpx.Timeout(240.0)


class Request(NamedTuple):
    """One request.

    Attributes
    ----------
    at : float
        When it comes, seconds.
    prompt : list of int
    tokens : int
        Of its answer.
    is_long : bool
    """

    at: float
    prompt: list[int]
    tokens: int
    is_long: bool


class Served(NamedTuple):
    """What became of a request: when its first and its last token came, in seconds after it was due, and how often it was refused."""

    first: float
    last: float
    refusals: int


def draw(
    prompts: Prompts,
    kinds: Sequence[str],
    encode: Callable[[str], Sequence[int]],
    *,
    rate: float,
    share: float,
    seconds: float,
    seed: int,
) -> list[Request]:
    """Draw requests, ascending in time.

    Parameters
    ----------
    kinds : sequence of str
        Kinds of text, drawn alike.
    encode : callable
        The tokenizer.
    rate : float
        Requests per second, a Poisson process.
    share : float
        Of long prompts.
    """
    times = poisson(rate, seconds, np.random.default_rng([seed, 1]))
    rng = np.random.default_rng([seed, 2])
    found = []
    for at in times.tolist():
        is_long = bool(rng.random() < share)
        length = round((LONG if is_long else SHORT) * rng.lognormal(0, SPREAD))
        prompt = prompts.tokens(str(rng.choice(kinds)), length, encode)
        found.append(Request(at, prompt, int(rng.integers(SHORTEST, LONGEST + 1)), is_long))
    return found


def numbered(prompt: Sequence[int], *numbers: int) -> list[int]:
    """Return a prompt of the same length that begins like no other: nobody finds it in a prefix cache."""
    head = [_FIRST_ID + digit for number in numbers for digit in divmod(number, _IDS)]
    return [*head, *prompt[len(head) :]]


async def play(url: str, model: str, requests: Sequence[Request]) -> list[Served]:
    """Send requests to a router when they are due; return what became of each, in their order.

    Who gets 429 comes again a second later, as often as it takes.

    Raises
    ------
    AnswerError
        If one is answered otherwise, or not in full.
    """
    began = asyncio.get_running_loop().time()
    async with httpx.AsyncClient(base_url=url, limits=UNBOUNDED, timeout=_TIMEOUT) as client:
        return await asyncio.gather(*(_send(client, model, one, began + one.at) for one in requests))


async def _send(client: httpx.AsyncClient, model: str, request: Request, due: float) -> Served:
    loop = asyncio.get_running_loop()
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.tokens,
        "temperature": 0.8,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    await asyncio.sleep(due - loop.time())
    refusals = 0
    while True:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                first = await _read(answer, request)
                return Served(first - due, loop.time() - due, refusals)
        refusals += 1
        await asyncio.sleep(_RETRY_SECONDS)


async def _read(answer: httpx.Response, request: Request) -> float:
    """Read an answer; return when its first token came, by the loop's clock."""
    if answer.status_code != httpx.codes.OK:
        raise AnswerError(f"a request was answered by {answer.status_code}: {(await answer.aread())[:300]!r}")
    first, usage = 0.0, None
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            first = first or asyncio.get_running_loop().time()
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise AnswerError(f"a stream ended by {line}")
            usage = event.get("usage") or usage
    told = usage and usage["completion_tokens"]
    if told != request.tokens:
        raise AnswerError(f"a request for {request.tokens} tokens was answered with {told}")
    return first
