"""Entry points of vLLM's plug-in groups. Imported in every process of an engine, so it imports nothing heavy itself."""

from __future__ import annotations

import os
from typing import Any

from eldr.engine import balance_setting

CONNECTOR = "EldrConnector"


def register() -> None:
    """Make ``EldrConnector`` known, and our expert layer if it is asked for.

    ``vllm.general_plugins``. vLLM may call it several times.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:  # noqa: SLF001 - there is no other way to ask
        KVConnectorFactory.register_connector(CONNECTOR, "eldr.engine.connector", CONNECTOR)
    if balance_setting.read(os.environ).activations:
        from eldr.engine import refusal, replicas

        with refusal.told():
            replicas.claim()


def endpoint() -> Any:
    """Return the endpoint plug-in; ``vllm.endpoint_plugins``, loaded only if ``VLLM_PLUGINS`` names ``eldr``."""
    from eldr.engine.endpoint import ActivationsEndpoint

    return ActivationsEndpoint()
