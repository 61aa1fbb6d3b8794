"""A vLLM that lacks what the plug-in hooks into is told where Kubernetes looks, by name, before anything of ours is imported; one that has it runs."""

import sys
from types import SimpleNamespace

import pytest
import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.model_executor.layers.fused_moe.routed_experts_capturer import RoutedExpertsCapturer
from vllm.v1 import request

from eldr import contract
from eldr.engine import needs, refusal
from eldr.engine.errors import UnsupportedEngineError
from eldr.engine.hooks import plugin
from tests.engine.fakes import Prometheus

FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
HOOK = "vllm.model_executor.layers.fused_moe.routed_experts"
OURS = (
    *("hooks.connector", "balance.replicas", "balance.placement", "balance.start", "capture.routing"),
    *("worker", "scheduler", "prefill.prompts", "orders"),
)


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """Return what was left in the termination log; our modules are imported anew, and nobody else sees it."""
    found = []
    monkeypatch.setattr(refusal, "leave", found.append)
    monkeypatch.setattr(KVConnectorFactory, "_registry", {})
    monkeypatch.delenv("ELDR_BALANCE", raising=False)
    for name in OURS:
        room, _, module = f"eldr.engine.{name}".rpartition(".")
        monkeypatch.delitem(sys.modules, f"eldr.engine.{name}", raising=False)
        if (package := sys.modules.get(room)) is not None:
            monkeypatch.delattr(package, module, raising=False)
    for once in (needs.missing, plugin._connector):
        once.cache_clear()
    yield found
    for once in (needs.missing, plugin._connector):
        once.cache_clear()


@pytest.fixture
def warned(monkeypatch):
    """Return what was logged as a warning."""
    found = []
    monkeypatch.setattr(plugin.logger, "warning", lambda text, *values: found.append(text % values))
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
    for part in (f"vLLM {vllm.__version__}", HOOK, "use an image with vLLM 0.31.x, 0.32.x, 0.33.x"):
        assert part in text
    assert not [name for name in OURS if f"eldr.engine.{name}" in sys.modules]


@pytest.mark.parametrize(("setting", "take"), [("Activations", take_balance), ("Tokens", take_connector)])
def test_an_unknown_release_that_has_everything_runs_and_is_told_once(
    monkeypatch, told, warned, setting, take
):
    monkeypatch.setenv("ELDR_BALANCE", setting)
    monkeypatch.setattr(vllm, "__version__", "0.34.1")
    take()
    take()
    assert told == []
    (text,) = warned
    assert "vLLM 0.34.1 has everything" in text
    assert "tested: 0.31.x, 0.32.x, 0.33.x" in text


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0+cpu", "0.33.2.dev1"])
def test_a_known_release_is_silent(monkeypatch, told, warned, version):
    monkeypatch.setattr(vllm, "__version__", version)
    take_connector()
    assert told == warned == []


@pytest.mark.parametrize(("version", "tested"), [("0.34.1", "false"), ("0.31.2", "true")])
def test_metrics_tell_the_version_and_whether_it_was_tested(monkeypatch, version, tested):
    monkeypatch.setattr(vllm, "__version__", version)
    assert Prometheus().seen(contract.METRIC_INFO, vllm=version, tested=tested) == 1


def summarize(self):
    raise NotImplementedError


FAULTS = [
    (request, "RequestStatus", None, "vllm.v1.request:RequestStatus is gone"),
    (
        *(RoutedExpertsCapturer, "capture", lambda self, layer_id, expert_ids: None),
        "RoutedExpertsCapturer.capture takes (layer_id, expert_ids) instead of (layer_id, topk_ids)",
    ),
    (
        *(KVConnectorBase_V1, "on_new_request", lambda self, request, arrived: None),
        "KVConnectorBase_V1.on_new_request takes (request, arrived) instead of (request)",
    ),
    (KVConnectorBase_V1, "on_new_request", None, "on_new_request, a hook, is gone"),
    (KVConnectorStats, "summarize", summarize, "KVConnectorStats.summarize is new, and must be supplied"),
]


@pytest.mark.parametrize("version", ["0.32.0", "0.34.1"])
@pytest.mark.parametrize(("owner", "name", "other", "told_so"), FAULTS)
def test_what_changed_in_vllm_is_refused_by_name(
    monkeypatch, told, warned, owner, name, other, told_so, version
):
    monkeypatch.setattr(vllm, "__version__", version)
    if other is None:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, other, raising=False)
    with pytest.raises(UnsupportedEngineError):
        take_connector()
    (text,) = told
    assert text.startswith(
        f"ELDR cannot run in this engine: vLLM {version} lacks what it hooks into; use an image with vLLM 0.31.x"
    )
    assert told_so in text
    assert warned == []


def test_a_configuration_without_a_field_that_is_read_is_refused_by_its_name(told):
    with pytest.raises(UnsupportedEngineError, match="use an image with vLLM"), refusal.of_missing_fields():
        SimpleNamespace().enable_dbo  # noqa: B018
    (text,) = told
    assert "no attribute 'enable_dbo'" in text


def test_a_vllm_without_a_table_of_connectors_is_told(monkeypatch, told):
    monkeypatch.setitem(sys.modules, FACTORY, None)
    with pytest.raises(UnsupportedEngineError, match=FACTORY):
        plugin.register()
    assert len(told) == 1


def test_an_engine_of_another_version_that_has_no_use_for_us_is_left_alone(monkeypatch, told):
    monkeypatch.setattr(vllm, "__version__", "0.30.0")
    plugin.register()
    assert told == []


def test_the_connector_is_found_where_it_is_registered():
    take_connector()
    assert KVConnectorFactory.get_connector_class_by_name("EldrConnector").__name__ == "EldrConnector"
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        plugin.Other  # noqa: B018
