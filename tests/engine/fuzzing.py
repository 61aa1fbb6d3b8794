"""A simulated engine around vLLM's own schedulers: everything is real but the model, its runner and the transport beside us."""

from __future__ import annotations

import json
import pickle
import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config import SpeculativeConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorWorkerMetadata
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from eldr.engine.capture.cache import CacheGroup
from eldr.engine.decode.deadline import PullWatch
from eldr.engine.decode.ring import RingReader
from eldr.engine.worker import Worker
from tests.engine.fakes import BLOCK, LAYERS, Capture, Slots, engine_config, scheduler_of, transfer_config
from tests.engine.fuzz_runner import Runner

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
RING = "ring"
"""An engine's ring of records, in the folder of its model."""


@dataclass(frozen=True)
class Setting:
    """What an engine is started with.

    Attributes
    ----------
    drafts : int
        Draft tokens of a step and request, 0 without speculative decoding.
    heads : bool
        Whether MTP heads draft them: they have KV, and compute the last cached block again.
    blocks : int
        Few, so that requests are preempted and cached blocks evicted.
    window : int
        Of the sliding-window layers, 0 without some.
    chunk : int
        Most tokens of a prompt in a step, 0 for no limit of its own.
    on_failure : str
        What vLLM does about KV that does not arrive: "recompute" or "fail".
    runner_v2 : bool
        Whether the scheduler takes itself to drive model runner V2.
    first : bool
        Whether our connector is asked before the transport.
    """

    role: str
    asynchronous: bool
    drafts: int
    heads: bool
    policy: str
    blocks: int
    window: int
    prefix_caching: bool
    chunk: int
    on_failure: str
    runner_v2: bool
    first: bool

    @classmethod
    def drawn(cls, seed: int, chance: random.Random) -> Setting:
        """Return the setting of a seed: any sixteen in a row have all kinds of engines, the rest is chance."""
        window = chance.choice([0, 0, 9])
        return cls(
            role=("prefill", "decode")[seed % 2],
            asynchronous=seed // 2 % 2 == 1,
            drafts=seed // 4 % 2 * chance.randint(1, 3),
            heads=seed // 8 % 2 == 1,
            policy=chance.choice(["fcfs", "priority"]),
            blocks=chance.choice([22, 26, 34, 60]) + (24 if window else 0),
            window=window,
            prefix_caching=chance.random() < 0.85,
            chunk=chance.choice([0, 0, 6, 8]),
            on_failure=chance.choice(["recompute", "fail"]),
            runner_v2=chance.random() < 0.5,
            first=chance.random() < 0.5,
        )

    def config(self, folder: Path) -> Any:
        """Return vLLM's configuration; a folder for the model's is needed."""
        connectors = ["Transport", "EldrConnector"][:: -1 if self.first else 1]
        transfer = transfer_config(KV_ROLES[self.role], *connectors, on_failure=self.on_failure)
        config = engine_config(folder, transfer)
        config.cache_config.num_gpu_blocks = self.blocks
        config.cache_config.enable_prefix_caching = self.prefix_caching
        config.scheduler_config.policy = self.policy
        config.scheduler_config.long_prefill_token_threshold = self.chunk
        config.scheduler_config.async_scheduling = self.asynchronous
        if self.drafts:  # schedulers look at the number alone
            config.speculative_config = SpeculativeConfig(
                method="ngram",
                num_speculative_tokens=self.drafts,
                prompt_lookup_max=2,
                target_model_config=config.model_config,
                target_parallel_config=config.parallel_config,
            )
            if self.heads:
                config.speculative_config.method = "mtp"
        return config


class Engine:
    """vLLM's scheduler with both of our halves, and steps that may be scheduled ahead of what they bring.

    Attributes
    ----------
    requests : dict
        All there ever were, by id.
    answers : dict
        What the answers of those that ended say of experts.
    late, failed : int
        Pulls that our watch gave up, and that the transport reported as failed.
    lost : int
        Blocks that did not arrive in their step.
    clock : SimpleNamespace
        What the plug-in takes for the time, in ``value``: every step takes a second.
    """

    def __init__(self, setting: Setting, chance: random.Random, folder: Path, clock: SimpleNamespace) -> None:
        self.setting, self._chance, self.clock = setting, chance, clock
        config = setting.config(folder)
        self.scheduler = scheduler_of(config, setting.window, asynchronous=setting.asynchronous)
        self.scheduler.use_v2_model_runner = setting.runner_v2
        children = self.scheduler.connector.sub_connectors
        self._ring = RingReader(folder / RING)
        self._at = 0 if setting.first else 1
        self.connector, self.transport = children[self._at], children[1 - self._at]
        group, prompts = CacheGroup(0, "layer", BLOCK), setting.role == "prefill"
        self.worker = Worker(config, group, setting.blocks, prompts=prompts, reports=True)
        self._watch = PullWatch(lambda _: None)
        self._runner = Runner(setting, self.scheduler, chance)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self.requests: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        self.late = self.failed = self.lost = 0

    def add(self, prompt: list[int], sampling: SamplingParams, **fields: Any) -> str:
        """Take a request; return its name."""
        name, chance = f"r{len(self.requests)}", self._chance
        order = {"priority": chance.randrange(3), "arrival_time": float(len(self.requests))}
        request = Request(name, prompt, sampling, None, block_hasher=self._hasher, **order | fields)
        self.requests[name] = request
        self.scheduler.add_request(request)
        return name

    def step(self) -> None:
        """Schedule and compute a step, and take what one brought; steps scheduled ahead wait for their turn."""
        ahead = 2 if self.setting.asynchronous else 1
        if len(self._in_flight) < ahead:
            output = self.scheduler.schedule()
            self._in_flight.append((output, self._compute(output)))
        if len(self._in_flight) == ahead or self._chance.random() < 0.3:
            self._update()

    def run(self) -> None:
        """Serve what there is, and have the worker report what ended last."""
        for _ in range(3000):
            if not self.scheduler.has_unfinished_requests() and not self.transport.pulling:
                break
            self.step()
        else:
            raise AssertionError("requests that never end")
        for _ in range(3):
            self.step()
        while self._in_flight:
            self._update()

    def abort(self, name: str) -> None:
        """End a request as its client goes away."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self, *, connectors: bool) -> bool:
        """Forget all KV, as when weights change, perhaps with what connectors hold; tell whether that was possible."""
        while self._in_flight and self._chance.random() < 0.5:
            self._update()
        try:
            return bool(self.scheduler.reset_prefix_cache(True, connectors))
        except RuntimeError:  # a step in flight holds blocks; all requests are preempted nevertheless
            return False

    def records(self) -> dict[str, Any]:
        """Return what the engine has reported of whole requests that ended."""
        records: dict[str, Any] = {}
        for number in range(self._ring.written):
            record = json.loads(self._ring.get(number) or b"{}")
            assert record["request_id"] not in records, "two records of a request"
            records[record["request_id"]] = record
        return records

    def close(self) -> None:
        """Stop, as vLLM does."""
        self.scheduler.shutdown()
        self._ring.close()

    def _compute(self, output: Any) -> ModelRunnerOutput:
        self.clock.value += 1
        orders = pickle.loads(pickle.dumps(output.kv_connector_metadata.metadata[self._at]))
        names, sampled = list(output.num_scheduled_tokens), self._runner.run(output)
        self._watch.begin(orders.pulls)
        self.worker.begin(orders)
        self._show()
        report = pickle.loads(pickle.dumps(self.worker.finish()))
        self._check_union(report)
        reports = [None, None]  # as the children of MultiConnector make them
        reports[self._at] = report
        of_all = None if report is None else MultiKVConnectorWorkerMetadata(tuple(reports))
        brought = KVConnectorOutput(kv_connector_worker_meta=of_all, **self._transferred())
        return ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)}, sampled, kv_connector_output=brought
        )

    def _show(self) -> None:
        """Have our worker see the step, with some padding behind it."""
        padding, runner = self._chance.randrange(3), self._runner
        Slots.slots = torch.tensor(runner.slots + [-1] * padding) if runner.slots else None
        Capture.ids = torch.tensor(runner.experts + [[[0, 1]] * LAYERS] * padding, dtype=torch.int32)

    def _check_union(self, report: Any) -> None:
        union = None if report is None else report.figures().get("union")
        if self._runner.experts and (self.setting.role == "decode" or union is not None):
            active = [len(set(np.ravel(layer))) for layer in zip(*self._runner.experts, strict=True)]
            assert union.tolist() == active, "active experts of a step"

    def _transferred(self) -> dict[str, Any]:
        """Return what the transport brought meanwhile, what it failed to, and what is too late to be used."""
        transport, chance = self.transport, self._chance
        arrived = [name for name in transport.pulling if chance.random() < 0.6]
        failed = {name for name in arrived if chance.random() < 0.15}
        late = self._watch.late()
        lost = {block for block in transport.blocks if self._may_lose and chance.random() < 0.1}
        for name in arrived:
            del transport.pulling[name]
        transport.blocks = []
        self.late += len(late)
        self.failed += len(failed)
        self.lost += len(lost)
        return {"finished_recving": set(arrived), "failed_recving": failed | late, "invalid_block_ids": lost}

    @property
    def _may_lose(self) -> bool:
        """Whether blocks may be lost within a step.

        vLLM refuses that with several KV cache groups. Where a step is scheduled ahead it already runs on what was lost, and our
        runner does not go back as vLLM's would have to.
        """
        return not self.setting.window and not self.setting.asynchronous

    def _update(self) -> None:
        output, brought = self._in_flight.popleft()
        for outputs in self.scheduler.update_from_output(output, brought).values():
            for answer in outputs.outputs:
                if answer.finished:
                    self.answers[answer.request_id] = (answer.kv_transfer_params or {}).get("eldr")
        if self.setting.drafts and not self.setting.asynchronous:
            self.scheduler.update_draft_token_ids(self._runner.drafts(output))
