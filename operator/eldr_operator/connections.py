"""Room for many connections in one process: each watch of a kind in a namespace holds one to the API server, with a buffer for TLS."""

from __future__ import annotations

import logging
import resource
from asyncio import sslproto

logger = logging.getLogger(__name__)

BUFFER_BYTES = 32 * 1024
"""For each TLS connection, in place of 256 KiB: twice the longest TLS record."""
_MOST_FILES = 65_536
_OTHER_FILES = 200
"""Beside the watches: lists, passes, routers, ports and the process's own files."""


def make_room(watches: int) -> None:
    """Raise this process's own limit of open files as far as it may, and give TLS connections small buffers.

    Parameters
    ----------
    watches : int
        How many connections are held.
    """
    sslproto.SSLProtocol.max_size = BUFFER_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < watches + _OTHER_FILES:
        logger.warning(
            "the limit of open files (RLIMIT_NOFILE) is %d, and %d watches need more; raise it, or watch all namespaces",
            *(soft, watches),
        )
