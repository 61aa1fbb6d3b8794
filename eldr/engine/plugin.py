"""Entry points of vLLM's plug-in groups. Imported in every process of an engine, so it imports nothing heavy itself."""

from __future__ import annotations

from typing import Any

CONNECTOR = "EldrConnector"


def register() -> None:
    """Make ``EldrConnector`` known; ``vllm.general_plugins``. vLLM may call it several times."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:  # noqa: SLF001 - there is no other way to ask
        KVConnectorFactory.register_connector(CONNECTOR, "eldr.engine.connector", CONNECTOR)


def endpoint() -> Any:
    """Return the endpoint plug-in; ``vllm.endpoint_plugins``, loaded only if ``VLLM_PLUGINS`` names ``eldr``."""
    from eldr.engine.endpoint import ActivationsEndpoint

    return ActivationsEndpoint()
