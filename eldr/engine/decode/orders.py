"""What a decode engine's scheduler tells its workers, once per step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from eldr.engine.decode.tracking import Plan


@dataclass
class DecodeOrders(KVConnectorMetadata):
    """Scheduler to worker: changes of the request rows, and the step's number (None without tokens).

    Attributes
    ----------
    pulls : dict
        Request id to the deadline of its pull, of the pulls in flight that have one.
    reset : bool
        Whether the tables hold nothing any more, before the plan.
    """

    plan: Plan = field(default_factory=Plan)
    step: int | None = None
    pulls: dict[str, float] = field(default_factory=dict)
    requests: int = 0
    reset: bool = False
