"""Speculative decoding in both halves: what drafts are fed, and which tokens count."""

import pytest
import torch

from eldr.contract import METRIC_DRAFT_EXPERTS
from eldr.wire import decode_counts
from tests.engine.fakes import LAYERS, Capture, Prometheus, Slots, worker_connector
from tests.engine.halves import EXPERTS, REMOTE, TOP_K, config, output, prefill_half, request, route, sent


def signature(at, name, prompt, step, **more):
    """Compute the last step of a prompt that was taken before; return what its answer says."""
    report = at.report((name, *step), **more)
    answer = at.half.end(request(name, prompt, kv=REMOTE))
    at.half.update(report)
    return decode_counts(answer["eldr"])


def test_prefill_leaves_out_drafts_behind_a_prompt(serving):
    for name, blocks, computed, expert in (("first", [3, 5], 0, 0), ("second", [3, 7], 4, 2)):
        serving.add(name, 6, blocks, kv=REMOTE, hashes=["shared"])
        value = signature(serving, name, 6, (computed, 8 - computed), drafts={name: 2}, expert=expert)
        assert value.exact
        assert value.counts[0].tolist() == ([6, 6, 0, 0, 0, 0] if name == "first" else [4, 4, 2, 2, 0, 0])


def test_a_block_that_drafts_began_holds_nothing(serving):
    """They are left out, so that its row keeps what was there; later tokens of the same request count into it."""
    serving.add("whole", 4, [3, 5], kv=REMOTE, hashes=["a", "ab"])
    serving.report(("whole", 0, 6), drafts={"whole": 2})
    serving.add("next", 8, [3, 5], kv=REMOTE, hashes=["a", "ab"])
    value = signature(serving, "next", 8, (7, 1))
    assert value.exact is False
    assert value.counts[0].tolist() == [4, 4, 0, 0, 0, 0]


def test_a_prompt_behind_drafts_that_were_made_here_is_inexact(serving):
    serving.add("whole", 3, [3, 5])
    serving.report(("whole", 0, 3))
    for at in (3, 4):
        serving.report(("whole", at, 3), drafts={"whole": 2})
    serving.add("next", 6, [3, 5], kv=REMOTE)
    assert signature(serving, "next", 6, (4, 2)).exact is False


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
        blocks["whole"] = [3, 5, 7, 8]
        half.orders(output(cached=[("whole", 12, 3)], blocks=blocks, drafts={"whole": 2}))
    half.add(request("next", 13, kv=REMOTE, hashes=hashes))
    finishing = half.orders(output(new=[("next", 12, 1)], blocks=blocks)).finishing
    assert finishing["next", 1] == [*trusted, 9]


def test_experts_that_drafting_loads_reach_prometheus_over_the_layers_of_the_model(decoding):
    loads = iter([6, 4, 8])
    decoding.worker._capture.drafted = lambda: torch.tensor(next(loads))
    decoding.add("a", 6, [4, 2, 8], kv={"do_remote_prefill": True})
    for at in (5, 6, 7):
        decoding.step(("a", at, 1))
    stats = decoding.half.stats()
    assert stats.data["drafted"] == [6 / LAYERS, 4 / LAYERS, 8 / LAYERS]
    assert stats.data["active"] == [[TOP_K] * LAYERS] * 3, "counted apart"
    prometheus = Prometheus()
    prometheus.observe(stats.to_dict())
    assert prometheus.seen(f"{METRIC_DRAFT_EXPERTS}_total") == 18 / LAYERS


def test_drafts_are_fed_beside_the_token_of_a_request(decoding):
    for name, blocks in (("a", [4, 2, 8]), ("b", [1, 3, 5])):
        decoding.add(name, 6, blocks, kv={"do_remote_prefill": True})
    decoding.step(("a", 5, 1), ("b", 5, 1))
    decoding.step(("a", 6, 3), ("b", 6, 2), drafts={"a": 2, "b": 1})
    stats = decoding.half.stats().data
    assert (stats["batch"], stats["fed"]) == ([2, 2], [2, 5])


@pytest.mark.parametrize("told", [True, False], ids=["forward context", "full graph"])
def test_a_step_is_counted_before_model_runner_v2_writes_over_it_with_its_drafts(decoding, told):
    """Where the forward context told where its tokens lie; else it is told when the transfer begins, behind the forward pass."""
    half, connector = decoding.half, worker_connector(decoding.worker)
    asked = decoding.add("a", 6, [4, 2, 8], kv={"do_remote_prefill": True})
    for at, tokens, made in ((5, 1, 1), (6, 2, 3), (8, 1, 4)):
        step, drafts = [("a", at, tokens)], {"a": 1} if tokens > 1 else None
        orders = half.orders(output(cached=step, blocks=decoding.blocks, drafts=drafts))
        connector.bind_connector_metadata(sent(orders))
        route(cached=step, blocks=decoding.blocks)
        slots, ids = Slots.slots, Capture.ids
        Slots.slots = slots if told else None
        connector.finish_forward()
        Slots.slots = slots if not told else torch.zeros_like(slots)
        Capture.ids = ids if not told else torch.full_like(ids, EXPERTS - 1)
        asked.num_output_tokens = made
        half.update(sent(connector.build_connector_worker_meta()))
    half.end(asked)
    connector.bind_connector_metadata(sent(half.orders(output())))
    Slots.slots = None
    connector.finish_forward()
    half.update(sent(connector.build_connector_worker_meta()))
    (record,) = decoding.records()
    value = decode_counts(record)
    assert (value.tokens, value.exact) == (3, True)
    assert value.counts[:, :TOP_K].sum() == 3 * LAYERS * TOP_K
    assert len(half.stats().data["active"]) == 3
