"""What clients of a soak ask, and how they behave. Pure: chance is an argument."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

MODEL = "m"
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_RESPONSES, _MESSAGES = "/v1/responses", "/v1/messages"
_LONG_PROMPT = 400_000
_SHARED = "You are one of many that begin alike. " * 60


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and the only right answer to it.

    Attributes
    ----------
    name : str
        Its ``x-request-id``.
    path, method : str
    body : bytes
    prompts : tuple of str
        As the engine reads them, one per choice.
    tokens : int
        Of each choice.
    stream : bool
    status : int
        Of the answer, where nothing is disturbed.
    raw : bytes
        What is sent instead of a request that is one.
    """

    name: str
    path: str = _COMPLETIONS
    method: str = "POST"
    body: bytes = b""
    prompts: tuple[str, ...] = ()
    tokens: int = 0
    stream: bool = False
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes = b""

    def head(self, *, version: str = "1.1", close: bool = False) -> bytes:
        """Return the request's head."""
        lines = [f"{self.method} {self.path} HTTP/{version}", "host: soak", f"x-request-id: {self.name}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += ["connection: close"] if close else []
        lines += [f"content-length: {len(self.body)}"] if self.method == "POST" else []
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True, slots=True)
class Visit:
    """What one client does: how it behaves, and what it asks, one after the other.

    Attributes
    ----------
    manner : str
        One of :data:`MANNERS`.
    asks : tuple of Ask
    seconds : float
        How long it dawdles.
    phase : str
        When it leaves.
    pieces : int
        Of an upload.
    abrupt : bool
        It leaves by a reset.
    """

    manner: str
    asks: tuple[Ask, ...]
    seconds: float = 0.0
    phase: str = ""
    pieces: int = 1
    abrupt: bool = False


MANNERS = {
    "plain": 30, "keep_alive": 20, "pipeline": 8, "pieces": 8, "expect": 3, "slow": 5, "stall": 4, "leave": 14,
    "half_closed": 5, "http10": 3, "bad": 6, "poll": 3,
}  # fmt: skip
"""How clients behave, and how often."""
PHASES = ("connected", "head", "body", "sent", "waiting", "first", "middle")
_SHAPES = {
    "short": 40,
    "stream": 25,
    "long": 3,
    "huge": 5,
    "unlimited": 8,
    "tools": 6,
    "n": 5,
    "list": 6,
    "ids": 3,
    "response": 10,
    "message": 10,
}


def visit(rng: random.Random, number: int) -> Visit:
    """Draw what one client does."""
    manner = _draw(rng, MANNERS)
    names = [f"soak-{number}-{i}" for i in range(rng.randint(2, 5))]
    if manner == "bad":
        return Visit(manner, (_bad(rng, names[0]),))
    if manner == "poll":
        path = rng.choice(["/health", "/ready", "/v1/models", "/version"])
        return Visit(manner, (Ask(names[0], path, "GET"),))
    if manner in ("slow", "stall"):
        shape = rng.choice(["large_stream", "large_list"])
        return Visit(manner, (ask(rng, names[0], shape),), rng.uniform(3.0, 9.0), abrupt=rng.random() < 0.5)
    if manner == "leave":
        phase = rng.choice(PHASES)
        shape = "stream" if phase == "middle" else _draw(rng, _SHAPES)
        asks = tuple(ask(rng, name, shape) for name in names[: rng.choice([1, 1, 3])])
        return Visit(manner, asks, rng.uniform(0.0, 0.6), phase, abrupt=rng.random() < 0.5)
    many = manner in ("keep_alive", "pipeline")
    asks = tuple(ask(rng, name, _draw(rng, _SHAPES)) for name in (names if many else names[:1]))
    if manner == "half_closed":  # a stream that has begun is over when its client says that it leaves
        asks = (
            ask(
                rng,
                names[0],
                rng.choice(["short", "huge", "unlimited", "n", "list", "response"]),
                stream=False,
            ),
        )
    return Visit(manner, asks, rng.uniform(0.0, 0.3), pieces=rng.randint(3, 8))


def ask(rng: random.Random, name: str, shape: str, *, stream: bool | None = None) -> Ask:
    """Draw a request of a shape."""
    streams = rng.random() < 0.5 if stream is None else stream
    chat = rng.random() < 0.5
    text = f"{name} {rng.random()}"
    if rng.random() < 0.2:
        text = _SHARED + text
    tokens, fields = rng.randint(1, 30), {}
    if shape == "stream":
        streams, tokens = True, rng.randint(20, 120)
    elif shape == "long":
        streams, tokens = (False, rng.randint(1100, 1300)) if rng.random() < 0.4 else (True, 600)
    elif shape == "large_stream":
        streams, tokens = True, rng.randint(900, 1500)
    elif shape == "huge":
        text = (text + " ") * (_LONG_PROMPT // len(text))
    elif shape == "unlimited":
        return _chat(name, text, 16, stream=False, named=False)
    elif shape == "tools":
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        return _chat(name, text, tokens, stream=False, fields={"tools": [tool]})
    elif shape == "n":
        fields = {"n": 2}
    elif shape in ("list", "large_list"):
        few = shape == "list"
        prompts = tuple(f"{text} {i}" for i in range(rng.randint(2, 5) if few else rng.randint(150, 250)))
        return _completion(name, list(prompts), prompts, 4 if few else 12, stream=streams and few)
    elif shape == "ids":
        ids = [rng.randrange(50_000) for _ in range(rng.randint(1, 400))]
        return _completion(name, ids, (" ".join(map(str, ids)),), tokens, stream=streams)
    elif shape in ("response", "message"):
        return (_response if shape == "response" else _message)(name, text, tokens, stream=streams)
    if chat:
        made = _chat(name, text, tokens, stream=streams, fields=fields)
    else:
        choices = int(fields.get("n", 1))
        made = _completion(name, text, (text,) * choices, tokens, stream=streams, fields=fields)
    if rng.random() < 0.1:
        made = replace(made, headers=(("x-session-id", str(rng.randrange(20))),))
    if rng.random() < 0.1:
        made = replace(made, headers=(*made.headers, ("x-eldr-log", "off")))
    return made


def _chat(
    name: str,
    text: str,
    tokens: int,
    *,
    stream: bool,
    named: bool = True,
    fields: dict[str, Any] | None = None,
) -> Ask:
    fields = dict(fields or {})
    if named:
        fields["max_completion_tokens"] = tokens
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "stream": stream, **fields}
    choices = int(fields.get("n", 1))
    return Ask(name, _CHAT, "POST", _json(body), (_said(text),) * choices, tokens, stream)


def _response(name: str, text: str, tokens: int, *, stream: bool) -> Ask:
    body = {"model": MODEL, "input": text, "instructions": "Be brief.", "max_output_tokens": tokens}
    return Ask(name, _RESPONSES, "POST", _json({**body, "stream": stream}), (_said(text),), tokens, stream)


def _message(name: str, text: str, tokens: int, *, stream: bool) -> Ask:
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    body = {"model": MODEL, "messages": messages, "system": "Be brief.", "max_tokens": tokens}
    return Ask(name, _MESSAGES, "POST", _json({**body, "stream": stream}), (_said(text),), tokens, stream)


def _said(text: str) -> str:
    return f"system: Be brief.\nuser: {text}"


def _completion(
    name: str,
    prompt: object,
    prompts: tuple[str, ...],
    tokens: int,
    *,
    stream: bool,
    fields: dict[str, Any] | None = None,
) -> Ask:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": stream, **(fields or {})}
    return Ask(name, _COMPLETIONS, "POST", _json(body), prompts, tokens, stream)


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _bad(rng: random.Random, name: str) -> Ask:
    """Draw what is refused: one of each place that refuses; unit tests have all of them."""
    good = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    head = f"POST {_COMPLETIONS} HTTP/1.1\r\nhost: soak\r\nx-request-id: {name}\r\n"
    kinds = [
        Ask(name, body=b"{", status=400),
        Ask(name, body=_json({**good, "model": "other"}), status=404),
        Ask(name, body=_json({**good, "kv_transfer_params": {}}), status=400),
        Ask(name, body=b'{"prompt":"x","n":%b}' % (b"1" * 100_000), status=400),
        Ask(name, body=b'{"prompt":[%b""]}' % (b'"",' * 10_000), status=400),
        Ask(name, body=b'{%b"a":0}' % (b'"a":0,' * 50_000), status=400),
        Ask(name, body=_json({"model": MODEL, "input": "x", "store": True}), path=_RESPONSES, status=400),
        Ask(name, _COMPLETIONS, "GET", status=405),
        Ask(name, "/nothing", "GET", status=404),
        Ask(name, raw=b"NONSENSE\r\n\r\n", status=400),
        Ask(name, raw=b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", status=400),
        Ask(name, raw=f"{head}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n".encode(), status=400),
        Ask(name, raw=f"{head}content-length: {1 << 40}\r\n\r\n".encode(), status=413),
        Ask(name, raw=f"{head}x: {'y' * 70_000}\r\n\r\n".encode(), status=431),
    ]
    return rng.choice(kinds)


def _draw(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
