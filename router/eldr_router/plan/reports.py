"""What routers ask each other and answer, on the wire. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import orjson

from eldr.contract import PATH_COUNTS
from eldr_router.plan.split import Report, View

_MOST = 1 << 53
_MOST_TERMS = 1 << 52
"""Less, as the next terms are to be read as well."""


def question(router: str) -> str:
    """Return the path with which router ``router`` asks another one."""
    return f"{PATH_COUNTS}?router={router}"


def read_question(query: str) -> str:
    """Return who asks; an empty text for somebody who is no router."""
    return parse_qs(query).get("router", [""])[0]


def write_report(report: Report) -> dict[str, Any]:
    """Return the object of :data:`eldr.contract.PATH_COUNTS`."""
    fields = {
        "v": 1,
        "router": report.router,
        "seq": report.seq,
        "term": report.term,
        "members": report.view.members,
        "limit": report.view.limit,
        "in_flight": report.in_flight,
        "rights": report.rights,
        "granted": report.granted,
        "got": report.got,
        "waiting": report.waiting,
        "prefill": dict(report.prefill),
    }
    if report.tokens:
        fields["tokens"] = dict(report.tokens)
    if report.held:  # seldom
        fields["held"] = {address: dict(counts) for address, counts in report.held.items()}
    if report.leaving:
        fields["leaving"] = True
    return fields


def read_object(status: int, body: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object of another router's answer; ValueError if it is none, or of a version that is not known."""
    if status != 200:
        raise ValueError(f"answers {status}")
    fields = orjson.loads(body)
    if not isinstance(fields, dict) or fields.get("v") != 1:
        raise ValueError(f"its answer is no {what} object of version 1")
    return fields


def read_report(status: int, body: bytes) -> Report:
    """Read another router's answer; ValueError if it is none."""
    fields = read_object(status, body, "counts")
    try:
        return Report(
            router=str(fields["router"]),
            seq=_count(fields["seq"]),
            view=View(tuple(str(member) for member in fields["members"]), _count(fields["limit"])),
            term=_count(fields["term"], most=_MOST_TERMS),
            in_flight=_counts(fields["in_flight"]),
            rights=_counts(fields["rights"], least=-_MOST),  # who gave more than it has now owes some
            granted=_counts(fields["granted"]),
            got=_counts(fields["got"]),
            waiting=_count(fields["waiting"]),
            prefill=_counts(fields["prefill"]),
            held={str(at): _counts(counts) for at, counts in fields.get("held", {}).items()},
            tokens=_counts(fields.get("tokens", {})),  # routers of older versions tell none
            leaving=fields.get("leaving") is True,
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its counts lack or have a wrong {error}") from None


def _counts(fields: dict[str, Any], *, least: int = 0) -> dict[str, int]:
    return {str(name): _count(count, least=least) for name, count in fields.items()}


def _count(value: float, *, least: int = 0, most: int = _MOST) -> int:
    """Return a number that this router can add up and report on."""
    if not least <= value <= most:
        raise ValueError(f"its counts have {value!r}, expected {least} to {most}")
    return int(value)
