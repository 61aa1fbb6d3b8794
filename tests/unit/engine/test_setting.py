"""Whether an engine balances activations: what its environment says, and what is refused with which reason."""

from types import SimpleNamespace

import pytest

from eldr.engine.balance import setting
from eldr.engine.balance.setting import bound_by_compute
from tests.support.vllm_config import engine

REPLICAS = {"enable_eplb": True, "eplb_config": SimpleNamespace(num_redundant_experts=8)}


def test_it_is_off_unless_asked_for():
    assert not setting.read({})
    assert not setting.read({"ELDR_BALANCE": "Tokens"})
    assert setting.read({"ELDR_BALANCE": "Activations"})


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (
            {"ELDR_BALANCE": "activations"},
            "ELDR_BALANCE: expected Tokens .* or Activations, got 'activations'",
        ),
        ({"ELDR_BALANCE": ""}, "ELDR_BALANCE: expected"),
    ],
)
def test_a_value_that_means_nothing_is_named(environ, named):
    with pytest.raises(ValueError, match=named):
        setting.read(environ)


def test_a_decode_engine_whose_experts_have_replicas_is_accepted_on_every_backend_that_goes_by_ids():
    for backend in setting.BACKENDS:
        assert setting.problems(engine(**REPLICAS, all2all_backend=backend), prompts=False) == []


@pytest.mark.parametrize(
    ("changes", "prompts", "named"),
    [
        ({}, True, "kv_role=kv_producer: it was tried on decode engines only"),
        (
            {"enable_eplb": False},
            False,
            "it needs --enable-eplb and, in --eplb-config, num_redundant_experts of 1 or",
        ),
        (
            {"eplb_config": SimpleNamespace(num_redundant_experts=0)},
            False,
            "experts have no replicas to choose among, and nothing else is gained",
        ),
        ({"enable_elastic_ep": True}, False, "enable_elastic_ep"),
        ({"enable_fault_tolerance": True}, False, "enable_fault_tolerance"),
        ({"all2all_backend": "moonep"}, False, "all2all_backend=moonep"),
        ({"all2all_backend": "passthrough"}, False, "all2all_backend=passthrough"),
        ({"lora": object()}, False, "LoRA"),
        ({"speculative_config": object()}, False, "speculative_config"),
        ({"sleeps": True}, False, "enable_sleep_mode"),
    ],
)
def test_what_has_no_effect_or_cannot_be_trusted_is_refused_by_name(changes, prompts, named):
    (found,) = setting.problems(engine(**REPLICAS | changes), prompts=prompts)
    assert found.startswith("ELDR_BALANCE=Activations: ")
    assert named in found


def test_compute_binds_from_a_hundred_tokens_per_expert_on():
    assert not bound_by_compute(1599, 8, 128)
    assert bound_by_compute(1600, 8, 128)
    assert not bound_by_compute(512, 8, 256)
