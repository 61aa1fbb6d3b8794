"""Entry points of vLLM's plug-in groups. Imported in every process of an engine, so it imports nothing heavy itself."""

from __future__ import annotations

import os
from typing import Any

from eldr.contract import CONNECTOR
from eldr.engine import refusal
from eldr.engine.balance import setting
from eldr.engine.hooks import compatibility


def register() -> None:
    """Make ``EldrConnector`` known, and our expert layer if it is asked for.

    ``vllm.general_plugins``. vLLM may call it several times.

    Raises
    ------
    UnsupportedEngineError
        If the expert layer is asked for in a vLLM of another version, or vLLM lacks what we hook into.
    """
    import vllm

    activations = setting.read(os.environ).activations
    with refusal.told():
        if activations:  # an engine that has no use for us may be of any version
            compatibility.require(vllm.__version__)
        with compatibility.imports(vllm.__version__):
            from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

            if CONNECTOR not in KVConnectorFactory._registry:  # noqa: SLF001 - there is no other way to ask
                KVConnectorFactory.register_connector(CONNECTOR, __name__, CONNECTOR)
            if activations:
                from eldr.engine.balance import replicas

                replicas.claim()


def __getattr__(name: str) -> Any:
    """Return ``EldrConnector``, which stands on vLLM's internals, once it is known that they are those of a supported version.

    vLLM asks for it by its name here, where an engine's configuration names it.

    Raises
    ------
    UnsupportedEngineError
        If they are not.
    """
    if name != CONNECTOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    with refusal.told():
        compatibility.require(vllm.__version__)
        with compatibility.imports(vllm.__version__):
            from eldr.engine.hooks.connector import EldrConnector
    return EldrConnector


def endpoint() -> Any:
    """Return the endpoint plug-in; ``vllm.endpoint_plugins``, loaded only if ``VLLM_PLUGINS`` names ``eldr``."""
    from eldr.engine.hooks.endpoint import ActivationsEndpoint

    return ActivationsEndpoint()
