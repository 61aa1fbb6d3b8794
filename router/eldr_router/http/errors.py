"""Errors for clients, as JSON in OpenAI's and Anthropic's style."""

from __future__ import annotations

import orjson

from eldr_router.http.head import JSON, Headers


class RouterError(Exception):
    """A request that this router answers itself, with an error.

    Parameters
    ----------
    status : int
    message : str
        What is wrong, with the value and the remedy.
    code : str
        Stable machine-readable reason; also the ``outcome`` label of the request metric.
    retry_after : int, optional
        Seconds, sent as ``Retry-After``.
    param : str, optional
        Request field at fault.
    allow : str, optional
        Methods that the path takes, sent as ``Allow``.
    challenge : bool
        Whether a key is asked for, by ``WWW-Authenticate``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        retry_after: int | None = None,
        param: str | None = None,
        allow: str | None = None,
        challenge: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.retry_after = retry_after
        self.param = param
        self.allow = allow
        self.challenge = challenge

    def answer(self) -> tuple[Headers, bytes]:
        """Return headers and body, but for what the connection adds."""
        headers = [JSON]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode()))
        if self.challenge:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers, error_body(self.message, self.status, self.code, self.param)


def error_body(message: str, status: int, code: str, param: str | None = None) -> bytes:
    """Return an error object in both styles.

    The ``type`` beside OpenAI's object makes it Anthropic's as well.
    """
    kind = "invalid_request_error" if status < 500 and status != 429 else "router_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return orjson.dumps({"type": "error", "error": error})


def bad_request(message: str, code: str = "invalid_request", param: str | None = None) -> RouterError:
    """Return a 400."""
    return RouterError(400, message, code, param=param)


def check_method(method: str, wanted: str, path: str) -> None:
    """Raise a 405 unless a path takes a method; what takes GET takes HEAD."""
    allowed = ("GET", "HEAD") if wanted == "GET" else (wanted,)
    if method not in allowed:
        allow = ", ".join(allowed)
        raise RouterError(405, f"{path} takes {allow}, got {method}", "method_not_allowed", allow=allow)


def no_endpoint(role: str) -> RouterError:
    """Return the 503 for a role without any engine."""
    return RouterError(
        503,
        f"no {role} engine is known to this router; wait for one to become ready",
        f"no_{role}",
        retry_after=2,
    )


def failed(message: str) -> RouterError:
    """Return the 502 for a request whose attempts are used up."""
    return RouterError(502, message, "upstream_failed")
