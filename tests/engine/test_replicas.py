"""Where vLLM lets replicas be chosen: our class is built in place of its own, does nothing until it is told to, and says why it cannot."""

from types import SimpleNamespace

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.eplb.policy import EPLB_POLICIES, DefaultEplbPolicy
from vllm.forward_context import DPMetadata, set_forward_context
from vllm.model_executor import custom_op
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter

from eldr.engine import refusal
from eldr.engine.balance import placement, replicas, start
from eldr.engine.errors import RanksDisagreeError, UnsupportedEngineError
from eldr.engine.hooks import plugin
from tests.engine.fakes import maps_of, transfer_config

EXPERTS, REDUNDANT, LAYERS = 8, 4, 2


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    found = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", found)
    monkeypatch.setattr(replicas, "op_registry_oot", found)
    monkeypatch.setitem(EPLB_POLICIES, "default", DefaultEplbPolicy)
    monkeypatch.setattr(replicas.EplbState, "step", replicas.EplbState.step)
    return found


def test_the_class_is_registered_only_if_the_environment_asks_for_it(registry, monkeypatch):
    monkeypatch.delenv("ELDR_BALANCE", raising=False)
    plugin.register()
    assert registry == {}
    monkeypatch.setenv("ELDR_BALANCE", "Activations")
    for _ in range(2):
        plugin.register()
    assert registry == {"RoutedExperts": replicas.BalancedExperts}


def test_a_class_of_another_plugin_stays(registry):
    registry["RoutedExperts"] = theirs = type("TheirExperts", (RoutedExperts,), {})
    replicas.claim()
    assert registry["RoutedExperts"] is theirs


def engine_with(*connectors):
    config = VllmConfig()
    if connectors:
        config.kv_transfer_config = transfer_config("kv_consumer", *connectors)
    return config


@pytest.mark.parametrize("connectors", [(), ("NixlConnector",)])
def test_without_the_connector_that_compares_ranks_no_layer_is_made(connectors, monkeypatch):
    monkeypatch.setattr(RoutedExperts, "__init__", lambda *_: pytest.fail("made"))
    replicas.claim()
    with (
        set_current_vllm_config(engine_with(*connectors)),
        pytest.raises(UnsupportedEngineError, match="needs EldrConnector"),
    ):
        RoutedExperts("layer")


@pytest.fixture
def layer(monkeypatch):
    """A layer as vLLM builds it, without weights; it returns the physical experts that it is to run."""
    monkeypatch.setattr(RoutedExperts, "__init__", lambda self, *_: torch.nn.Module.__init__(self))
    monkeypatch.setattr(RoutedExperts, "forward_modular", lambda _, x, weights, ids, *more, **named: ids)
    replicas.claim()
    with set_current_vllm_config(engine_with("NixlConnector", "EldrConnector")):
        return RoutedExperts("layer")


def test_vllm_builds_our_class_and_it_leaves_everything_until_an_exchange_is_attached(layer):
    assert type(layer) is replicas.BalancedExperts
    assert issubclass(EPLB_POLICIES["default"], placement.ActivationPolicy)
    ids = torch.tensor([[1, 2], [3, 4]])
    assert layer.forward_modular(None, None, ids) is ids
    asked = []
    layer.exchange = lambda ids, tokens: asked.append(tokens) or ids + 1
    with set_forward_context(None, VllmConfig(), num_tokens=2):
        assert layer.forward_modular(None, None, ids).tolist() == [[2, 3], [4, 5]]
    assert asked == [2]


def test_ranks_with_tokens_of_their_own_decide_by_the_number_of_all(layer, monkeypatch):
    asked = []
    layer.exchange = lambda ids, tokens: asked.append(tokens) or ids
    metadata = object.__new__(DPMetadata)
    metadata.num_tokens_across_dp_cpu = torch.tensor([2, 40])
    monkeypatch.setattr(replicas, "get_forward_context", lambda: SimpleNamespace(dp_metadata=metadata))
    layer.forward_modular(None, None, torch.tensor([[1, 2], [3, 4]]))
    assert asked == [42]


class Runner(MoERunner):
    layer_id = layer_name = _quant_method = None

    def __init__(self, number, experts, *, maps=True, monolithic=False, router=None):
        torch.nn.Module.__init__(self)
        self.layer_id, self.layer_name = number, f"layer.{number}"
        self.router = router or FusedTopKRouter(2, EXPERTS, eplb_state=state() if maps else None)
        self.routed_experts = experts
        experts.quant_method = SimpleNamespace(is_monolithic=monolithic)
        experts.local_num_experts = EXPERTS + REDUNDANT


def state():
    found = maps_of([*range(EXPERTS), *range(REDUNDANT)])
    found.expert_load_view = torch.zeros(EXPERTS + REDUNDANT, dtype=torch.int32)
    return found


def engine_of(*runners):
    context = {runner.layer_name: runner for runner in runners}
    compilation = SimpleNamespace(static_forward_context=context, static_all_moe_layers=list(context))
    return SimpleNamespace(compilation_config=compilation, speculative_config=None)


@pytest.fixture
def ours(layer):
    """Return a new layer of our class."""
    return lambda: _copy(layer)


def _copy(layer):
    other = object.__new__(type(layer))
    torch.nn.Module.__init__(other)
    other.exchange = None
    return other


def test_layers_come_by_their_number(ours):
    found = replicas.layers(engine_of(Runner(3, ours()), Runner(1, ours())))
    assert [one.layer_name for one in found] == ["layer.1", "layer.3"]


class Own(torch.nn.Module):
    """An expert layer of a model's own."""


class Router(torch.nn.Module):
    eplb_state = None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"experts": Own}, "an expert layer of its own, Own"),
        ({"monolithic": True}, "its kernel routes inside itself"),
        ({"maps": False}, "keeps no replicas of this model's experts"),
        ({"router": Router()}, "router Router does not map to replicas"),
    ],
)
def test_one_layer_that_cannot_be_balanced_is_enough_to_refuse(ours, changes, named):
    experts = changes.pop("experts", ours)()
    with pytest.raises(UnsupportedEngineError, match=f"layer 2: .*{named}; unset it"):
        replicas.layers(engine_of(Runner(1, ours()), Runner(2, experts, **changes)))


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(UnsupportedEngineError, match="no mixture-of-experts layer found"):
        replicas.layers(engine_of())


# --- the start of a worker, in a group of one rank


def config_of(*runners, eplb=True):
    model = SimpleNamespace(get_num_experts=lambda: EXPERTS, get_num_experts_per_tok=lambda: 2)
    parallel = SimpleNamespace(enable_eplb=eplb)
    config = engine_of(*runners)
    config.model_config, config.parallel_config = model, parallel
    return config


@pytest.fixture
def group(monkeypatch):
    """Give the worker a group whose other ranks say what a test puts there."""
    others = []
    alone = SimpleNamespace(world_size=1, all_reduce=lambda tensor: tensor, cpu_group=None)
    monkeypatch.setattr(start, "get_ep_group", lambda: alone)
    monkeypatch.setattr(start, "gather", lambda said, _: [said, *(said | one for one in others)])
    return others


def test_every_layer_gets_its_exchange_after_the_ranks_were_compared(ours, group):
    runners = [Runner(number, ours()) for number in range(LAYERS)]
    balance = start.start(config_of(*runners), activations=True)
    assert all(runner.routed_experts.exchange is not None for runner in runners)
    ids = runners[1].routed_experts.exchange(torch.tensor([[0, 8], [5, -1]]), 2)
    assert ids[0, 0] == ids[0, 1], "experts 0 and 8 are one"
    assert balance.figures.tolist() == [[0] * 4, [2, 2, 3, 3]]


def test_off_means_that_nothing_is_attached(ours, group):
    runner = Runner(0, ours())
    assert start.start(config_of(runner), activations=False) is None
    assert start.start(config_of(runner, eplb=False), activations=False) is None
    assert runner.routed_experts.exchange is None


def test_maps_are_read_again_after_the_step_in_which_eplb_moved_experts(ours, group, monkeypatch):
    runner = Runner(0, ours())
    maps, moved = runner.router.eplb_state, torch.arange(EXPERTS).flip(0)

    def step(self, *, is_dummy):
        assert is_dummy, "as it was asked"
        maps.logical_to_physical_map[:, 0] = moved

    monkeypatch.setattr(replicas.EplbState, "step", step)
    balance = start.start(config_of(runner), activations=True)
    before = balance._seen
    replicas.EplbState.step(None, is_dummy=True)
    assert balance._seen != before


@pytest.mark.parametrize(
    ("other", "activations"),
    [
        ({"ELDR_BALANCE": "False"}, True),
        ({"ELDR_BALANCE": "True"}, False),
        ({"eldr": "0.0.0"}, True),
        ({"eldr": "0.0.0"}, False),
        ({"layers": "2"}, True),
        ({"refused": "no"}, True),
    ],
)
def test_a_rank_that_differs_ends_the_engine_at_its_start(ours, group, other, activations):
    group.append(other)
    runner = Runner(0, ours())
    ((name, value),) = other.items()
    with pytest.raises(RanksDisagreeError, match=f"{name}: rank 0 has .*, rank 1 has '{value}'"):
        start.start(config_of(runner), activations=activations)
    assert runner.routed_experts.exchange is None


@pytest.mark.parametrize("readable", [True, False])
def test_a_layer_that_cannot_be_balanced_or_read_is_said_to_the_others_before_it_is_refused(
    ours, monkeypatch, readable
):
    said = []
    monkeypatch.setattr(start, "get_ep_group", lambda: SimpleNamespace(world_size=1))
    monkeypatch.setattr(start, "gather", lambda one, _: said.append(one) or [one])
    why = "keeps no replicas"
    if not readable:
        monkeypatch.setattr(start, "_layers", lambda _: None.maps)
        why = "the layers cannot be read: AttributeError"
    with pytest.raises(UnsupportedEngineError, match=why):
        start.start(config_of(Runner(0, ours(), maps=False)), activations=True)
    assert why in said[0]["refused"]


@pytest.mark.parametrize("where", ["__init__", "try_out"])
def test_a_rank_that_fails_after_they_have_agreed_ends_its_process(ours, group, monkeypatch, where):
    def fail(*_):
        raise ZeroDivisionError

    def ended(status):
        raise SystemExit(status)

    left = []
    monkeypatch.setattr(start.Balance, where, fail)
    monkeypatch.setattr(refusal, "leave", left.append)
    monkeypatch.setattr(refusal.os, "_exit", ended)
    with pytest.raises(SystemExit), refusal.reported():  # as the connector calls it
        start.start(config_of(Runner(0, ours())), activations=True)
    assert "replicas cannot be chosen: ZeroDivisionError()" in left[0]


def test_more_ranks_than_the_kernel_takes_are_refused(ours, group, monkeypatch):
    many = SimpleNamespace(world_size=33, all_reduce=lambda tensor: tensor, cpu_group=None)
    monkeypatch.setattr(start, "get_ep_group", lambda: many)
    with pytest.raises(UnsupportedEngineError, match="33 ranks: replicas are chosen for up to 32; unset it"):
        start.start(config_of(Runner(0, ours())), activations=True)


def test_a_group_that_does_not_fit_the_maps_is_refused(ours, group):
    runner = Runner(0, ours())
    runner.routed_experts.local_num_experts = 5
    with pytest.raises(UnsupportedEngineError, match="12 physical experts, but 1 ranks of 5"):
        start.start(config_of(runner), activations=True)
