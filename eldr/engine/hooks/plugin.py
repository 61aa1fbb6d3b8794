"""Entry points of vLLM's plug-in groups. Imported in every process of an engine, so it imports nothing heavy itself."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Collection
from typing import Any

from eldr.contract import CONNECTOR
from eldr.engine import needs, refusal
from eldr.engine.balance import setting
from eldr.engine.errors import UnsupportedEngineError

logger = logging.getLogger("vllm.eldr")  # where the rest of the plug-in logs; this module has no vLLM


def register() -> None:
    """Make ``EldrConnector`` known, and our expert layer if it is asked for.

    ``vllm.general_plugins``. vLLM may call it several times.

    Raises
    ------
    UnsupportedEngineError
        If vLLM lacks what we hook into.
    """
    with refusal.reported():
        if setting.read(os.environ):  # an engine that has no use for us may lack anything
            _connector()
            from eldr.engine.balance import replicas

            replicas.claim()
        try:
            from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        except ImportError as error:
            _refuse_without([str(error)])
            raise
    if CONNECTOR not in KVConnectorFactory._registry:  # noqa: SLF001 - there is no other way to ask
        KVConnectorFactory.register_connector(CONNECTOR, __name__, CONNECTOR)


def __getattr__(name: str) -> Any:
    """Return ``EldrConnector``; vLLM asks for it by its name here, where an engine's configuration names it.

    Raises
    ------
    UnsupportedEngineError
        If vLLM lacks what we hook into.
    """
    if name != CONNECTOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with refusal.reported():
        return _connector()


@functools.cache
def _connector() -> Any:
    """Return the class, which stands on vLLM's internals, once it is known that they are what it needs."""
    _refuse_without(needs.missing())
    from eldr.engine.hooks.connector import EldrConnector
    from eldr.engine.metrics import EnginePromMetrics, EngineStats

    lacking = needs.different(EldrConnector)
    for ours in (EldrConnector, EngineStats, EnginePromMetrics):
        lacking += needs.unmet(ours)
    _refuse_without(lacking)
    if not needs.tested():
        logger.warning(
            "ELDR: vLLM %s has everything that this plug-in hooks into, but was never tested with it; tested: %s",
            needs.version(),
            needs.RELEASES,
        )
    return EldrConnector


def _refuse_without(lacking: Collection[str]) -> None:
    if lacking:
        raise UnsupportedEngineError(needs.lack(lacking))


def endpoint() -> Any:
    """Return the endpoint plug-in; ``vllm.endpoint_plugins``, loaded only if ``VLLM_PLUGINS`` names ``eldr``."""
    from eldr.engine.hooks.endpoint import ActivationsEndpoint

    return ActivationsEndpoint()
