"""An overview as lines for a screen. Pure."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from eldr.status import chart
from eldr.status.overview import DELETED, Condition, Drift, Fit, Overview, Saving, Served

FITS: Final = 5
"""That are shown; JSON has all."""
_LABEL: Final = 11
_INDENT: Final = " " * 4
_DAY: Final = timedelta(days=1)
_UNKNOWN: Final = "not known yet"
_Z: Final = 1.96


class Line(NamedTuple):
    """A line, and how it is shown where colours are."""

    text: str
    style: str = ""


def lines(overview: Overview, width: int, *, plain: bool = False) -> list[Line]:
    """Return the screen.

    Parameters
    ----------
    width : int
        Characters.
    plain : bool
        ASCII only, apart from what stands in the resources.
    """
    screen = [
        Line(f"{overview.name} in namespace {overview.namespace}, {overview.at:%Y-%m-%d %H:%M} UTC", "bold"),
        *(line for note in overview.notes for line in _entry("note", note, width, "yellow")),
        *(_entry("compare", overview.comparison, width, "yellow") if overview.comparison else ()),
        *_summary(overview, width),
        *_chart(overview, plain=plain),
        *_fits(overview, width),
        *_problems(overview, width),
    ]
    # a message may hold what a router was sent, and a terminal obeys some characters
    return [
        line._replace(text="".join(one if one.isprintable() else "?" for one in line.text)) for line in screen
    ]


def _summary(overview: Overview, width: int) -> Iterator[Line]:
    now, ready, policy = overview.at, overview.ready, overview.policy
    good = ready is not None and ready.status == "True"
    yield from _entry("ready", _ready(overview), width, "green" if good else "red")
    served = f", served as {overview.served_as}" if overview.served_as else ""
    yield from _entry("model", f"{overview.model or _UNKNOWN}{served}", width)
    yield from _clients(overview)
    effect = " and ".join(policy.in_effect) or _UNKNOWN
    as_wanted = policy.in_effect == (policy.wanted,)
    said = f"{policy.wanted}, in effect" if as_wanted else f"{policy.wanted or _UNKNOWN}; in effect: {effect}"
    why = f", {policy.reason}: {policy.message}" if policy.reason else ""
    yield from _entry("policy", f"{said}{why}", width, "" if as_wanted and not why else "yellow")
    yield from _entry("centroids", _centroids(overview), width)
    yield from _entry("saving", _saving(overview.saving), width)
    if experts := _experts(overview.saving):
        yield from _entry("experts", experts, width)
    yield from _entry("drift", _drift(overview.drift, now), width, _drift_style(overview.drift))
    if overview.next_fit is not None:
        schedule = f" by schedule {overview.next_fit.schedule}" if overview.next_fit.schedule else ""
        wait = overview.next_fit.time - now
        due = f"in {span(wait)}" if wait > timedelta() else "due"
        yield from _entry("next fit", f"{when(overview.next_fit.time, now)} ({due}){schedule}", width)


def _ready(overview: Overview) -> str:
    ready = overview.ready
    pods = ", ".join(f"{role} {count}" for role, count in overview.pods.items())
    if ready is None:
        return _UNKNOWN + (f" ({pods})" if pods else "")
    word = {"True": "yes", "False": "no"}.get(ready.status, "unknown")
    since = f" since {ago(ready.since, overview.at)}" if ready.since else ""
    reason = "" if ready.status == "True" else f", {ready.reason}"
    return f"{word}{since}{reason}: {ready.message}"


def _clients(overview: Overview) -> Iterator[Line]:
    """Say where clients go, and how to ask from here: commands to copy, so no line of them is broken."""
    if not overview.url:
        return
    is_tls = overview.url.startswith("https:")
    here, ports = ("https://localhost:8443", "8443:443") if is_tls else ("http://localhost:8080", "8080:80")
    body = json.dumps({"model": overview.served_as or "MODEL", "prompt": "Hello"})
    options = ["--cacert ca.crt"] * is_tls + ["-H 'authorization: Bearer KEY'"] * overview.needs_key
    for label, said in (
        ("clients", f"{overview.url}, or from here:"),
        ("", f"kubectl port-forward -n {overview.namespace} svc/{overview.name} {ports} &"),
        (
            "",
            f"curl --retry 5 --retry-connrefused {here}/v1/completions \\",
        ),
        ("", " ".join(["  -H 'content-type: application/json'", *options, "-d", shlex.quote(body)])),
    ):
        yield Line(f"{label:<{_LABEL}}{said}")


def _centroids(overview: Overview) -> str:
    sets, now = overview.centroids, overview.at
    staged = f"; routers are loading that of {sets.staged}" if sets.staged else ""
    if sets.fit is None:
        return f"no set serves{staged}"
    parts = [f"the set of {sets.fit}"]
    if sets.since is not None:
        parts.append(f"since {ago(sets.since, now)}")
    if sets.epoch is not None:
        parts.append(f"epoch {sets.epoch}")
    if sets.k is not None:
        parts.append(f"k {sets.k}")
    if sets.acks is not None:
        parts.append(f"on {sets.acks} routers")
    before = f"; before it that of {sets.previous}" if sets.previous else ""
    return ", ".join(parts) + before + staged


def _saving(saving: Saving) -> str:
    promised = (
        ""
        if saving.predicted_percent is None
        else f"; its fit predicted {saving.predicted_percent:.1f} % against these"
    )
    now, error = saving.now_percent, saving.error_percent
    if now is None:
        return f"{_UNKNOWN}{promised}"
    interval = "" if error is None else f" ({now - _Z * error:.1f} to {now + _Z * error:.1f})"
    return f"{now:.1f} %{interval} of active experts now, against random batches{promised}"


def _experts(saving: Saving) -> str:
    if saving.message is not None or saving.expert_share_percent is None:
        return saving.message or ""
    return f"reading experts takes {saving.expert_share_percent:g} % of a decode step"


def _drift(drift: Drift, now: datetime) -> str:
    condition = drift.condition
    if condition is None:
        return _UNKNOWN
    word = {"True": "yes", "False": "no"}.get(condition.status, "unknown")
    since = f" since {ago(condition.since, now)}" if condition.since else ""
    return f"{word}{since}, {condition.reason}: {condition.message}"


def _drift_style(drift: Drift) -> str:
    return "red" if drift.condition is not None and drift.condition.status == "True" else ""


def _chart(overview: Overview, *, plain: bool) -> Iterator[Line]:
    yield Line("")
    now = overview.at
    day = [one for one in overview.drift.day if now - _DAY < one.time <= now]
    if not day:
        yield Line("drift score: none in the last day")
        return
    highest = max(day, key=lambda one: one.score)
    head = "drift score of the last day, the highest of each half hour"
    yield Line(f"{head}; at most {highest.score:.2f}, at {when(highest.time, now)}", "bold")
    activations = [one.since for fit in overview.fits for one in fit.served]
    for drawn in chart.draw(day, now, activations, plain=plain):
        yield Line(drawn)


def _fits(overview: Overview, width: int) -> Iterator[Line]:
    yield Line("")
    if not overview.fits:
        yield Line("fits: none yet")
        return
    shown = overview.fits[:FITS]
    more = f", {len(shown)} of {len(overview.fits)}" if len(overview.fits) > len(shown) else ""
    yield Line(f"last fits, the newest first{more}", "bold")
    rows = [_row(fit, overview.at) for fit in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for fit, row in zip(shown, rows, strict=True):
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        yield Line(f"  {'  '.join(cells)}".rstrip(), _fit_style(fit))
        for said in (fit.message or "", *(_served(one, overview.at) for one in fit.served)):
            for part in _wrapped(said, width, _INDENT):
                yield Line(part)


def _row(fit: Fit, now: datetime) -> tuple[str, ...]:
    records = "" if fit.samples is None else _some(fit.samples, "record")
    if fit.looks_back_to is not None:
        records = f"{records or 'records'} since {when(fit.looks_back_to, now)}"
    brings = _brings(fit.reduction_percent)
    began = "" if fit.created is None else when(fit.created, now)
    verdict = "EldrFit deleted" if fit.verdict == DELETED else fit.verdict or ""
    return fit.name, fit.trigger or "", began, verdict, brings, records


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _brings(percent: float | None) -> str:
    if percent is None:
        return ""
    return f"saves {percent:.1f} % against JSQ" if percent >= 0 else f"uses {-percent:.1f} % more than JSQ"


def _fit_style(fit: Fit) -> str:
    if any(one.until is None for one in fit.served):
        return "green"
    return "" if fit.verdict in {"Accepted", "Running", "Queued", "Pending", DELETED, None} else "yellow"


def _served(one: Served, now: datetime) -> str:
    epoch = "" if one.epoch is None else f", epoch {one.epoch}"
    began = "" if one.began in {"Accepted", None} else f", {one.began}"
    if one.until is None:
        return f"serves since {ago(one.since, now)}{epoch}{began}"
    return (
        f"served {when(one.since, now)} to {when(one.until, now)} ({span(one.until - one.since)}){epoch}{began}; "
        f"{one.ended}"
    )


def _problems(overview: Overview, width: int) -> Iterator[Line]:
    yield Line("")
    if not overview.problems:
        known = overview.ready is not None
        yield Line("problems: none" if known else f"problems: {_UNKNOWN}", "green" if known else "yellow")
        return
    yield Line("problems, what to do: docs/reference/conditions.md", "bold")
    above = {
        one.message for one in (overview.ready, overview.drift.condition, overview.policy) if one is not None
    }
    for problem in overview.problems:
        message = "see above" if problem.message in above else problem.message
        for part in _wrapped(_problem(problem, message, overview.at), width, "  "):
            yield Line(part, "red")


def _problem(condition: Condition, message: str, now: datetime) -> str:
    since = f" since {ago(condition.since, now)}" if condition.since else ""
    return f"{condition.type} {condition.status}{since}, {condition.reason}: {message}"


def _entry(label: str, said: str, width: int, style: str = "") -> Iterator[Line]:
    parts = _wrapped(said, width, " " * _LABEL)
    for number, part in enumerate(parts):
        yield Line(f"{label:<{_LABEL}}{part[_LABEL:]}" if number == 0 else part, style)


def _wrapped(said: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        " ".join(said.split()),
        max(width, 2 * len(indent) + 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def when(time: datetime, now: datetime) -> str:
    """Return a time in short, with its date where it is not of the last or next day."""
    far = abs(time - now) >= _DAY
    return f"{time:%b %d %H:%M}" if far else f"{time:%H:%M}"


def ago(time: datetime, now: datetime) -> str:
    """Return a time and how long ago it was."""
    return f"{when(time, now)} ({span(now - time)})"


def span(time: timedelta) -> str:
    """Return a length of time in its two largest units.

    Examples
    --------
    >>> span(timedelta(hours=2, minutes=20, seconds=5)), span(timedelta(seconds=40))
    ('2 h 20 min', '40 s')
    """
    seconds = max(0, round(time.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"
