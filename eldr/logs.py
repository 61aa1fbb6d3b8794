"""How programs that run in pods write their log: one line a message, to standard error, in UTC."""

from __future__ import annotations

import logging
import time


def write_logs(level: str) -> None:
    """Write messages of this level and above, such as ``2026-11-29T17:33:00.193Z INFO eldr_router: ...``.

    Parameters
    ----------
    level : str
        ``debug``, ``info``, ``warning`` or ``error``.
    """
    form = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    form.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    logging.basicConfig(level=level.upper(), handlers=[handler])
