"""Speculative decoding in both halves: what drafts are fed, and which tokens count."""

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from eldr.engine.counting import Counting
from eldr.engine.decode.deadline import PullWatch
from eldr.engine.hooks.connector import EldrConnector
from eldr.engine.worker import Worker
from eldr.wire import decode_counts
from tests.engine.fakes import LAYERS, Capture, Slots
from tests.engine.halves import (
    EXPERTS,
    GROUP,
    REMOTE,
    TOP_K,
    config,
    output,
    prefill_half,
    request,
    route,
    run,
    sent,
)


def test_prefill_leaves_out_drafts_behind_a_prompt(engine):
    half = prefill_half(config())
    worker = Worker(config(), GROUP, n_blocks=10, prompts=True, reports=True)
    blocks = {"first": [3, 5], "second": [3, 7]}
    for name, computed, expert in (("first", 0, 0), ("second", 4, 2)):
        half.add(request(name, 6, kv=REMOTE, hashes=["shared"]))
        tokens = 8 - computed
        report = run(
            half, worker, new=[(name, computed, tokens)], blocks=blocks, drafts={name: 2}, expert=expert
        )
        answer = half.end(request(name, 6, kv=REMOTE))
        half.update(report)
        value = decode_counts(answer["eldr"])
        assert value.exact
        assert value.counts[0].tolist() == ([6, 6, 0, 0, 0, 0] if name == "first" else [4, 4, 2, 2, 0, 0])


def test_a_block_that_drafts_began_holds_nothing(engine):
    """They are left out, so that its row keeps what was there; later tokens of the same request count into it."""
    half = prefill_half(config())
    worker = Worker(config(), GROUP, n_blocks=10, prompts=True, reports=True)
    blocks = {"whole": [3, 5], "next": [3, 5]}
    half.add(request("whole", 4, kv=REMOTE, hashes=["a", "ab"]))
    run(half, worker, new=[("whole", 0, 6)], blocks=blocks, drafts={"whole": 2}, expert=0)
    half.add(request("next", 8, kv=REMOTE, hashes=["a", "ab"]))
    report = run(half, worker, new=[("next", 7, 1)], blocks=blocks, expert=0)
    answer = half.end(request("next", 8, kv=REMOTE))
    half.update(report)
    value = decode_counts(answer["eldr"])
    assert value.exact is False
    assert value.counts[0].tolist() == [4, 4, 0, 0, 0, 0]


def test_a_prompt_behind_drafts_that_were_made_here_is_inexact(engine):
    half = prefill_half(config())
    worker = Worker(config(), GROUP, n_blocks=10, prompts=True, reports=True)
    blocks = {"whole": [3, 5], "next": [3, 5]}
    half.add(request("whole", 3))
    run(half, worker, new=[("whole", 0, 3)], blocks=blocks, expert=0)
    run(half, worker, cached=[("whole", 3, 3)], blocks=blocks, drafts={"whole": 2}, expert=0)
    run(half, worker, cached=[("whole", 4, 3)], blocks=blocks, drafts={"whole": 2}, expert=0)
    half.add(request("next", 6, kv=REMOTE))
    report = run(half, worker, new=[("next", 4, 2)], blocks=blocks, expert=0)
    answer = half.end(request("next", 6, kv=REMOTE))
    half.update(report)
    assert decode_counts(answer["eldr"]).exact is False


@pytest.mark.parametrize(("drafts", "trusted"), [(0, [3, 5, 7]), (2, [3])])
def test_blocks_where_drafts_may_lie_are_no_blocks_of_the_prompt(engine, drafts, trusted):
    """Steps that are scheduled ahead may take the drafts of the two before for accepted, so that theirs lie further to the front."""
    of_engine = config()
    of_engine.num_speculative_tokens = drafts
    half = prefill_half(of_engine)
    blocks, hashes = {"whole": [3, 5, 7], "next": [3, 5, 7, 9]}, ["a", "ab", "abc"]
    half.add(request("whole", 8, hashes=hashes))
    half.orders(output(new=[("whole", 0, 8)], blocks=blocks))
    for at in range(8, 12):
        half.orders(output(cached=[("whole", at, 1)], blocks=blocks))
    if drafts:
        half.orders(
            output(cached=[("whole", 12, 3)], blocks=blocks | {"whole": [3, 5, 7, 8]}, drafts={"whole": 2})
        )
    half.add(request("next", 13, kv=REMOTE, hashes=hashes))
    finishing = half.orders(output(new=[("next", 12, 1)], blocks=blocks)).finishing
    assert finishing["next", 1] == [*trusted, 9]


def test_drafts_are_fed_beside_the_token_of_a_request(decoding):
    half, worker, _ = decoding
    for name in ("a", "b"):
        half.add(request(name, 6, kv={"do_remote_prefill": True}))
    blocks = {"a": [4, 2, 8], "b": [1, 3, 5]}
    half.update(run(half, worker, new=[("a", 5, 1), ("b", 5, 1)], blocks=blocks, expert=0))
    step = [("a", 6, 3), ("b", 6, 2)]
    half.update(run(half, worker, cached=step, blocks=blocks, drafts={"a": 2, "b": 1}, expert=0))
    stats = half.stats().data
    assert (stats["batch"], stats["fed"]) == ([2, 2], [2, 5])


@pytest.mark.parametrize("told", [True, False], ids=["forward context", "full graph"])
def test_a_step_is_counted_before_model_runner_v2_writes_over_it_with_its_drafts(decoding, told):
    """Where the forward context told where its tokens lie; else it is told when the transfer begins, behind the forward pass."""
    half, worker, records = decoding
    connector = EldrConnector.__new__(EldrConnector)
    connector._role, connector._scheduler, connector._worker = KVConnectorRole.WORKER, None, worker
    connector._reports, connector._counting, connector._prompts = [], Counting("activations"), False
    connector._watch = PullWatch(lambda _: None)
    asked = request("a", 6, kv={"do_remote_prefill": True})
    half.add(asked)
    blocks = {"a": [4, 2, 8]}
    for at, step in enumerate(({"new": [("a", 5, 1)]}, {"cached": [("a", 6, 2)]}, {"cached": [("a", 8, 1)]})):
        drafts = {"a": 1} if at == 1 else None
        connector.bind_connector_metadata(sent(half.orders(output(**step, blocks=blocks, drafts=drafts))))
        route(**step, blocks=blocks)
        slots, ids = Slots.slots, Capture.ids
        Slots.slots = slots if told else None
        connector.finish_forward()
        Slots.slots = slots if not told else torch.zeros_like(slots)
        Capture.ids = ids if not told else torch.full_like(ids, EXPERTS - 1)
        asked.num_output_tokens = (1, 3, 4)[at]
        half.update(sent(connector.build_connector_worker_meta()))
    half.end(asked)
    connector.bind_connector_metadata(sent(half.orders(output())))
    Slots.slots = None
    connector.finish_forward()
    half.update(sent(connector.build_connector_worker_meta()))
    (record,) = records()
    value = decode_counts(record)
    assert (value.tokens, value.exact) == (3, True)
    assert value.counts[:, :TOP_K].sum() == 3 * LAYERS * TOP_K
    assert len(half.stats().data["active"]) == 3
