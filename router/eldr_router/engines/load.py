"""What an engine reports of its load. Pure."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated

import msgspec

from eldr.contract import HEADER_FULL, HEADER_LOAD
from eldr_router.http.head import ResponseHead

_LOAD, _FULL = HEADER_LOAD.encode(), HEADER_FULL.encode()
_SHARE = re.compile(rb"(\d{1,9})/(\d{1,9})")
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Load(msgspec.Struct, frozen=True):
    """A report.

    Attributes
    ----------
    in_flight : int
        Sequences in flight, whoever sent them.
    limit : int
        Sequences that the engine can run.
    """

    in_flight: _Count
    limit: _Count


def load_of(head: ResponseHead) -> Load | None:
    """Return what an answer reports; None where its engine reports nothing."""
    for name, value in head.headers:
        if name == _LOAD:
            match = _SHARE.fullmatch(value)
            return None if match is None else Load(int(match[1]), int(match[2]))
    return None


def is_full(head: ResponseHead) -> bool:
    """Return whether the engine's limit refused the request unread."""
    return head.status == HTTPStatus.TOO_MANY_REQUESTS and any(name == _FULL for name, _ in head.headers)


def read_load(status: int, body: bytes) -> Load | None:
    """Read an answer of :data:`eldr.contract.PATH_LOAD`, or return None.

    An engine without the plug-in gives none.
    """
    try:
        return msgspec.json.decode(body if status == HTTPStatus.OK else b"", type=Load)
    except msgspec.MsgspecError:
        return None
