"""A vLLM that the plug-in does not know, or that lacks what it hooks into: told where Kubernetes looks, before anything is imported."""

import sys

import pytest
import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from eldr.engine import refusal
from eldr.engine.errors import UnsupportedEngineError
from eldr.engine.hooks import plugin

FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
HOOK = "vllm.model_executor.layers.fused_moe.routed_experts"
OURS = (
    *("hooks.connector", "balance.replicas", "balance.placement", "balance.start", "capture.routing"),
    *("decode.worker", "decode.scheduler", "prefill.worker", "prefill.scheduler"),
)


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """Return what was left in the termination log; our modules are imported anew, and nobody else sees it."""
    found = []
    monkeypatch.setattr(refusal, "leave", found.append)
    monkeypatch.setattr(KVConnectorFactory, "_registry", {})
    monkeypatch.delenv("ELDR_BALANCE", raising=False)
    for name in OURS:
        room, _, module = name.partition(".")
        monkeypatch.delitem(sys.modules, f"eldr.engine.{name}", raising=False)
        if (package := sys.modules.get(f"eldr.engine.{room}")) is not None:
            monkeypatch.delattr(package, module, raising=False)
    return found


def take_balance():
    plugin.register()


def take_connector():
    plugin.register()
    KVConnectorFactory.get_connector_class_by_name("EldrConnector")


@pytest.mark.parametrize(("setting", "take"), [("Activations", take_balance), ("Tokens", take_connector)])
def test_what_vllm_lacks_is_told_with_its_version_and_the_remedy(monkeypatch, told, setting, take):
    monkeypatch.setenv("ELDR_BALANCE", setting)
    monkeypatch.setitem(sys.modules, HOOK, None)
    with pytest.raises(UnsupportedEngineError) as caught:
        take()
    (text,) = told
    assert text == str(caught.value)
    for part in (f"vLLM {vllm.__version__}", HOOK, "use an image with vLLM 0.32.x"):
        assert part in text


@pytest.mark.parametrize(("setting", "take"), [("Activations", take_balance), ("Tokens", take_connector)])
def test_another_version_is_told_before_anything_of_it_is_imported(monkeypatch, told, setting, take):
    monkeypatch.setenv("ELDR_BALANCE", setting)
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    monkeypatch.setitem(sys.modules, HOOK, None)
    with pytest.raises(UnsupportedEngineError):
        take()
    (text,) = told
    assert "vLLM 0.33.1: this plug-in was tested with 0.32.x" in text
    assert not [name for name in OURS if f"eldr.engine.{name}" in sys.modules]


def test_a_vllm_without_a_table_of_connectors_is_told(monkeypatch, told):
    monkeypatch.setitem(sys.modules, FACTORY, None)
    with pytest.raises(UnsupportedEngineError, match=FACTORY):
        plugin.register()
    assert len(told) == 1


def test_an_engine_of_another_version_that_has_no_use_for_us_is_left_alone(monkeypatch, told):
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    plugin.register()
    assert told == []


def test_the_connector_is_found_where_it_is_registered():
    take_connector()
    assert KVConnectorFactory.get_connector_class_by_name("EldrConnector").__name__ == "EldrConnector"
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        plugin.Other  # noqa: B018
