"""Where records come from: log directories, or the admin ports of routers."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import stamina

from eldr import contract
from eldr.admin_tls import distrust
from eldr.fit.samples import FitError
from eldr.siglog import FrameReader, Record, read, segments

TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class Counted:
    """Records as they come, and how many have come."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = records
        self.seen = 0

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            self.seen += 1
            yield record


def from_directories(directories: list[Path]) -> Iterator[Record]:
    """Yield records of log directories; FitError if one holds no log."""
    for directory in directories:
        if not segments(directory):
            raise FitError("NoLog", f"{directory}: holds no signature log (*.siglog)")
        yield from read(directory)


class Trust(NamedTuple):
    """Whom to trust at admin ports, and their certificates' name."""

    context: ssl.SSLContext
    name: str


def from_routers(
    urls: list[str], token: str, report: dict[str, str], trust: Trust | None = None
) -> Iterator[Record]:
    """Yield the records that routers serve on their admin ports.

    A router that cannot be read is left out: its log is sampled data.

    Parameters
    ----------
    urls : list of str
        Base URLs of admin ports.
    token : str
    report : dict of str to str
        Filled with the reason for each URL left out, or read only in part.
    trust : Trust, optional
        For URLs by https.

    Raises
    ------
    FitError
        If no router could be read.
    """
    unreachable = 0
    headers, verify = {"authorization": f"Bearer {token}"}, True if trust is None else trust.context
    for url in urls:
        try:
            with httpx.Client(headers=headers, timeout=TIMEOUT, verify=verify) as client:
                yield from _read_router(client, url, report, "" if trust is None else trust.name)
        except httpx.HTTPError as error:
            report[url] = distrust(error) or f"{type(error).__name__}: {error}"
            unreachable += 1
    if unreachable == len(urls):
        raise FitError(
            "RoutersUnreachable",
            "no router could be read: " + "; ".join(f"{u}: {r}" for u, r in report.items()),
        )


def _read_router(client: httpx.Client, url: str, report: dict[str, str], name: str) -> Iterator[Record]:
    reader = FrameReader()
    response = _open(client, url + contract.PATH_SIGLOG, name)
    try:
        for data in response.iter_bytes():
            yield from reader.feed(data)
    finally:
        response.close()
    if reader.damaged:
        report[url] = f"read up to byte {reader.valid_bytes}: {reader.damaged}"


@stamina.retry(on=httpx.TransportError, attempts=4, timeout=20.0)
def _open(client: httpx.Client, url: str, name: str) -> httpx.Response:
    extensions = {"sni_hostname": name} if name else None
    response = client.send(client.build_request("GET", url, extensions=extensions), stream=True)
    if response.is_error:
        response.close()
    return response.raise_for_status()
