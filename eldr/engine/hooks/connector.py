"""The KV connector that moves no KV: it runs beside the real one under vLLM's MultiConnector and counts experts.

On decode engines it also keeps the real one from pulling KV that is no longer there, see :mod:`eldr.engine.decode.deadline`.

``kv_role`` sets what it counts: ``kv_producer`` on engines that compute prompts, for others or for themselves; ``kv_consumer`` on
decode engines. There is a half in the scheduler's process and one in the workers'.

References
----------
.. [1] vLLM, ``vllm/distributed/kv_transfer/kv_connector/v1/base.py``: when each hook is called, and in which process.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from eldr.contract import ELDR_KEY
from eldr.engine import metrics, needs, refusal
from eldr.engine.balance import setting, start
from eldr.engine.balance.choice import Balance
from eldr.engine.capture.cache import full_attention_group
from eldr.engine.counting import Counting
from eldr.engine.decode.deadline import PullWatch, offered, withdraw
from eldr.engine.decode.windows import Windows
from eldr.engine.errors import UnsupportedEngineError
from eldr.engine.hooks import compatibility
from eldr.engine.messages import StepReport
from eldr.engine.orders import Orders
from eldr.engine.prefill.prompts import unavailable
from eldr.engine.scheduler import Scheduler, kept_records
from eldr.engine.steps import drop_malformed, is_pulled
from eldr.engine.worker import Worker, agree

_ASK_AGAIN = None
"""With the next step: a transport that stands before us in the list may have just reported that it pulls."""


class EldrConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's hooks, handed to the half that this process runs.

    An exception in a hook ends counting, and vLLM gets the answer of a connector that has nothing to do. Only a configuration
    that is refused, and ranks that would compute different things, end the engine.

    Parameters
    ----------
    vllm_config : vllm.config.VllmConfig
    kv_cache_config : vllm.v1.kv_cache_interface.KVCacheConfig

    Raises
    ------
    UnsupportedEngineError
        If the engine is to balance activations and cannot, ``kv_role`` is neither ``kv_producer`` nor ``kv_consumer``, no layer has full attention, ``activation_records`` is no number of
        records, or ``ELDR_BALANCE`` means nothing.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        with refusal.of_missing_fields():
            self._prompts = self._counts_prompts()
            self._group = full_attention_group(kv_cache_config)
            self._balances = setting.read(os.environ)
            records = kept_records(self._kv_transfer_config.kv_connector_extra_config)
            problems = compatibility.problems(
                vllm_config,
                self._group.block_size,
                prompts=self._prompts,
                drafts_first=vllm_config.speculative_config is not None and needs.drafts_first(),
            )
            if self._balances:
                problems += setting.problems(vllm_config, prompts=self._prompts)
                if problems:
                    raise UnsupportedEngineError("; ".join(problems))
        self._counting = Counting("counts of experts")
        if problems:
            self._counting.stop("; ".join(problems))
        self._late = metrics.EngineStats()
        # a pull that is late is not used, whatever its count does, and whether or not anything is counted
        self._watch = PullWatch(self._counting.guarded(self._late.add_late_pull))
        self._reports_late = False
        self._balance: Balance | None = None
        self._worker: Worker | None = None
        self._scheduler: Scheduler | None = None
        self._reports: list[Any] = []  # of a step that is counted, until vLLM asks
        if role == KVConnectorRole.SCHEDULER:
            with self._counting:
                sizes = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config) if self._prompts else None
                self._scheduler = Scheduler(
                    vllm_config,
                    self._group,
                    Windows(kv_cache_config),
                    records,
                    hash_size=None if sizes is None else sizes[1],
                    counting=self._counting,
                )

    def _counts_prompts(self) -> bool:
        kv_role = self._kv_transfer_config.kv_role
        if kv_role not in ("kv_producer", "kv_consumer"):
            raise UnsupportedEngineError(
                "kv_role of EldrConnector: expected kv_producer on prefill engines and on engines that do both, or kv_consumer on "
                f"decode engines, got {kv_role!r}"
            )
        return bool(kv_role == "kv_producer")

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Nothing is loaded, so whatever the transport beside us can complete stays complete."""
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is delivered, so a preempted request need not be recomputed for our sake."""
        return False

    # --- worker process

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Make the tables; called once, after the weights are loaded and before graphs are captured."""
        del kv_caches
        with refusal.of_missing_fields():
            self._balance = start.start(self._vllm_config, activations=self._balances)
        with self._counting:
            self._reports_late = reports = bool(get_tp_group().is_first_rank)  # the ranks see the same pulls
            if not self._counting.stopped:
                self._worker = Worker(
                    self._vllm_config,
                    self._group,
                    self._kv_cache_config.num_blocks,
                    prompts=self._prompts,
                    reports=reports,
                    balance=self._balance,
                    counting=self._counting,
                )
        agree(self._vllm_config, self._counting, self._worker)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Begin a step; always before the forward pass; ``start_load_kv`` is not."""
        super().bind_connector_metadata(connector_metadata)
        with self._counting:
            self._watch.begin(connector_metadata.pulls)
        with self._counting:
            if self._worker is not None:
                self._worker.begin(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Take the attention metadata of a full-graph step."""
        del forward_context
        with self._counting:
            if self._worker is not None:
                self._worker.load(kwargs.get("attn_metadata"))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    def finish_forward(self) -> None:
        """Count a step before model runner V2 drafts for the next one, which writes over where this step's tokens lie.

        Model runner V1 does not call it. A step that has no forward context reports later where its tokens lie.
        """
        with self._counting:
            if self._worker is not None and self._worker.located:
                self._reports.append(self._worker.finish())

    def build_connector_worker_meta(self) -> Any:
        """End a step, after its forward pass."""
        with self._counting:
            if self._worker is not None:
                return self._reports.pop() if self._reports else self._worker.finish()
        return StepReport({}, counting=self._counting) if self._counting.stopped else None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Add the pulls that are too late to the failed ones; the transport reports when each of them has ended."""
        results = super().get_transfer_results(finished_req_ids)
        with self._counting:
            results.failed_recving |= self._watch.late()
        return results

    # --- scheduler process

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Offer no KV, and keep others from pulling too late."""
        del num_computed_tokens
        there = offered(request)
        with self._counting:
            if self._scheduler is not None and self._scheduler.watches:
                return (_ASK_AGAIN if self._scheduler.pulls.refuse(request) else 0), False
        withdraw(request)  # its deadline is not known, so what is pulled may be another request's by now
        return (_ASK_AGAIN if there else 0), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take that a request has its blocks."""
        del blocks, num_external_tokens
        with self._counting:
            if self._scheduler is not None:
                self._scheduler.allocated(request)

    def on_new_request(self, request: Any) -> None:
        """Follow a request; the transport behind us in the list must not see parameters that end the engine."""
        with self._counting:
            drop_malformed(request)
        with self._counting:
            if self._scheduler is not None:
                self._scheduler.add(request)
                return
        withdraw(request)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Return a step's orders for the worker."""
        with self._counting:
            if self._scheduler is not None:
                return self._scheduler.orders(scheduler_output)
        return Orders()

    def update_connector_output(self, connector_output: Any) -> None:
        """Take a step's report from the worker."""
        with self._counting:
            if self._scheduler is not None:
                self._scheduler.pulls.arrived(connector_output.finished_recving)
        with self._counting:
            if self._scheduler is not None:
                self._scheduler.update(connector_output.kv_connector_worker_meta)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Return what a finished request adds to ``kv_transfer_params``; blocks are never held."""
        del block_ids
        with self._counting:
            if self._scheduler is not None:
                return False, self._scheduler.end(request)
        if self._prompts and is_pulled(request):
            return False, {ELDR_KEY: unavailable(self._counting.stopped)}
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Do the same for models with several KV cache groups."""
        return self.request_finished(request, block_ids)

    def reset_cache(self) -> bool | None:
        """Forget what running requests have counted: their KV is gone, as with sleep, so that their tokens are computed again."""
        with self._counting:
            if self._scheduler is not None:
                self._scheduler.reset()
        return True

    def get_kv_connector_stats(self) -> metrics.EngineStats | None:
        """Return statistics since the last call, of the half that runs in this process."""
        with self._counting:
            if self.role != KVConnectorRole.SCHEDULER:
                return self._late.take() if self._reports_late else None
            if self._scheduler is not None:
                return self._scheduler.stats()
        return metrics.stopped() if self.role == KVConnectorRole.SCHEDULER else None

    def shutdown(self) -> None:
        """Remove what this process holds."""
        with self._counting:
            if self._scheduler is not None:
                self._scheduler.close()

    # --- API server process

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> metrics.EngineStats:
        """Return statistics as they arrive in the API server."""
        return metrics.EngineStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> metrics.EnginePromMetrics:
        """Return the metrics that statistics are observed with."""
        return metrics.EnginePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
