"""Malformed ``kv_transfer_params`` under vLLM's own scheduler and NIXL's half of it: they must not end the engine, on either role."""

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request, RequestStatus

from eldr.engine import scheduler as scheduler_half
from eldr.engine.decode.ring import path_of
from eldr.engine.hooks import plugin
from eldr.engine.steps import drop_malformed
from tests.engine.fakes import BLOCK, REMOTE, engine_config, scheduler_of, transfer_config

NEEDED = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
MALFORMED = {
    "alone": {"do_remote_prefill": True},
    "text": "x",
    "number": 7,
    "list": [1],
    **{f"without {name}": {key: value for key, value in REMOTE.items() if key != name} for name in NEEDED},
    **{f"{name} null": REMOTE | {name: None} for name in NEEDED},
    "no blocks": REMOTE | {"remote_block_ids": []},
    "blocks text": REMOTE | {"remote_block_ids": "abc"},
    "blocks flat": REMOTE | {"remote_block_ids": [1, 2]},
    "blocks of text": REMOTE | {"remote_block_ids": [["z"]]},
    "blocks below zero": REMOTE | {"remote_block_ids": [[-5]]},
    "port text": REMOTE | {"remote_port": "no"},
    "port true": REMOTE | {"remote_port": True},
    "engine a list": REMOTE | {"remote_engine_id": ["p"]},
    "tokens text": REMOTE | {"remote_num_tokens": "many"},
    "size text": REMOTE | {"tp_size": "2"},
    "size zero": REMOTE | {"tp_size": 0},
    "size below zero": REMOTE | {"pp_size": -1},
    "size a half": REMOTE | {"tp_size": 1.5},
    "tokens no number": REMOTE | {"remote_num_tokens": float("nan")},
    "expiry no number": REMOTE | {"remote_blocks_expiry_time": float("nan")},
    "port beyond": REMOTE | {"remote_port": 99999},
    "block beyond": REMOTE | {"remote_block_ids": [[1 << 40]]},
    "both ways": REMOTE | {"do_remote_decode": True},
    "a result of a result": REMOTE
    | {"do_remote_prefill": False, "do_remote_decode": True, "remote_num_tokens": "x"},
}
SOUND = {
    "pull": REMOTE,
    "pull of several groups": REMOTE | {"remote_block_ids": [[1], []]},
    "prefill": {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None},
    "nothing": {},
    "none": None,
    "taken": {"do_remote_prefill": False},
}


@pytest.fixture(params=["kv_producer", "kv_consumer"])
def scheduler(request, tmp_path, monkeypatch):
    """Return vLLM's scheduler of an engine of a role, with the connectors as the operator lists them."""
    plugin.register()
    monkeypatch.setattr(scheduler_half, "rings_of", lambda instance, _: [path_of(instance, tmp_path)])
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    transfer = transfer_config(request.param, "EldrConnector", "NixlConnector")
    made = scheduler_of(engine_config(tmp_path, transfer))
    init_none_hash(sha256)
    yield made
    made.shutdown()


def request_with(params):
    sampling = SamplingParams(max_tokens=3, extra_args={"kv_transfer_params": params})
    return Request("a", list(range(10)), sampling, None, block_hasher=get_request_block_hasher(BLOCK, sha256))


@pytest.mark.parametrize("rejected", [False, True], ids=["served", "rejected"])
@pytest.mark.parametrize("name", MALFORMED)
def test_what_would_end_the_engine_is_dropped(scheduler, caplog, name, rejected):
    scheduler.add_request(request_with(MALFORMED[name]))
    assert scheduler.requests["a"].kv_transfer_params is None
    assert "request a has malformed kv_transfer_params" in caplog.text
    if rejected:  # as vLLM does with a body that it refuses, so that its result is freed
        scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == ({} if rejected else {"a": 10}), "it is prefilled here"


@pytest.mark.parametrize("name", SOUND)
def test_what_nixl_reads_stays(name):
    request = request_with(SOUND[name])
    drop_malformed(request)
    assert request.kv_transfer_params == SOUND[name]
