"""Steps and requests as vLLM's scheduler makes them, for the halves of the connector."""

import pickle
from types import SimpleNamespace

import torch
from vllm.v1.core.sched.output import CachedRequestData, KVConnectorBlockState, SchedulerOutput
from vllm.v1.request import RequestStatus

from eldr.engine.capture.cache import CacheGroup
from eldr.engine.decode.records import page
from eldr.engine.decode.windows import Windows
from eldr.engine.scheduler import Scheduler
from eldr.engine.worker import Worker
from tests.engine.fakes import LAYERS, Capture, Slots

GROUP = CacheGroup(index=1, layer_name="layer", block_size=4)
NO_WINDOWS = Windows(SimpleNamespace(kv_cache_groups=[]))
EXPERTS, TOP_K = 6, 2
REMOTE = {"do_remote_decode": True}


def config(engine="test"):
    model = SimpleNamespace(
        get_num_experts=lambda: EXPERTS,
        get_num_experts_per_tok=lambda: TOP_K,
        get_total_num_hidden_layers=lambda: LAYERS,
    )
    return SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        parallel_config=SimpleNamespace(data_parallel_size=1, data_parallel_rank=0),
        kv_transfer_config=SimpleNamespace(engine_id=engine),
        num_speculative_tokens=0,
    )


def prefill_half(of_engine=None):
    """Return the scheduler's half of an engine that counts prompts."""
    return Scheduler(of_engine or config(), GROUP, NO_WINDOWS, 4, hash_size=GROUP.block_size)


def decode_half(of_engine=None):
    """Return the scheduler's half of an engine that pulls its prompts."""
    return Scheduler(of_engine or config(), GROUP, NO_WINDOWS, 4)


def request(
    name,
    prompt,
    *,
    status=RequestStatus.FINISHED_LENGTH_CAPPED,
    kv=None,
    resumable=False,
    generated=0,
    hashes=(),
):
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=prompt,
        num_output_tokens=generated,
        block_hashes=list(hashes),
        status=status,
        kv_transfer_params=kv,
        resumable=resumable,
    )


def output(new=(), cached=(), blocks=None, preempted=None, drafts=None):
    """Return a step: new and cached are (request, tokens computed before, tokens in the step), drafts how many of these are ones."""
    return SchedulerOutput(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=done) for name, done, _ in new],
        scheduled_cached_reqs=CachedRequestData(
            req_ids=[name for name, _, _ in cached],
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[],
            num_computed_tokens=[done for _, done, _ in cached],
            num_output_tokens=[],
        ),
        num_scheduled_tokens={name: n for name, _, n in (*new, *cached)},
        total_num_scheduled_tokens=sum(n for _, _, n in (*new, *cached)),
        scheduled_spec_decode_tokens={name: [-1] * n for name, n in (drafts or {}).items()},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[],
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
        preempted_req_ids=preempted,
        kv_connector_block_state=KVConnectorBlockState(
            req_ids=set(blocks or ()),
            resolve_block_ids=lambda name: ([99], (blocks or {})[name]),
            boundary_state_offloads={},
        ),
    )


def slots_of(new=(), cached=(), blocks=None):
    """Return where a step's tokens lie in their requests' blocks; the last one is padding. None without tokens."""
    slots = [
        blocks[name][position // GROUP.block_size] * GROUP.block_size + position % GROUP.block_size
        for name, done, n in (*new, *cached)
        for position in range(done, done + n)
    ]
    return torch.tensor([*slots, -1]) if slots else None


def route(new=(), cached=(), blocks=None, *, expert=0):
    """Have every token of a step use the experts (expert, expert + 1), in the slots of its request's blocks."""
    Slots.slots = slots = slots_of(new, cached, blocks)
    tokens = 1 if slots is None else len(slots)
    Capture.ids = torch.tensor([expert, expert + 1], dtype=torch.int32).expand(tokens, LAYERS, TOP_K)


def counts_of(tokens):
    """Return counts that sum to tokens x top_k in every layer."""
    value = torch.zeros(LAYERS, EXPERTS, dtype=torch.int32)
    value[:, :TOP_K] = tokens
    return value


def sent(report):
    """Return a report as it arrives in the other process."""
    return pickle.loads(pickle.dumps(report))


def worker_of(of_engine=None, *, prompts, **more):
    """Return the worker's half of an engine."""
    return Worker(of_engine or config(), GROUP, 40, prompts=prompts, **({"reports": True} | more))


class Halves:
    """Both halves of an engine, whose requests are served step by step.

    Attributes
    ----------
    blocks : dict
        Of each request.
    """

    def __init__(self, half, worker, reader=None):
        self.half, self.worker, self._reader, self.blocks = half, worker, reader, {}

    def add(self, name, prompt, blocks=(), **more):
        """Take a request."""
        self.blocks[name] = blocks
        self.half.add(asked := request(name, prompt, **more))
        return asked

    def report(self, *tokens, expert=0, drafts=None):
        """Run a step of (request, tokens computed before, tokens in it) that all use the experts (expert, expert + 1); return its report."""
        self.worker.begin(sent(self.half.orders(output((), tokens, self.blocks, drafts=drafts))))
        route((), tokens, self.blocks, expert=expert)
        self.worker.load(None)
        return sent(self.worker.finish())

    def step(self, *tokens, **more):
        """Run such a step, and take its report."""
        self.half.update(self.report(*tokens, **more))

    def end(self, asked, generated):
        """End a request that has generated some tokens; return what its answer carries."""
        asked.num_output_tokens = generated
        return self.half.end(asked)

    def records(self):
        """Return what was left of whole requests."""
        return page([self._reader], after="0", limit=9)["records"]
