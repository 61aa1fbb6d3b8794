"""What a prefill engine's scheduler tells its workers, once per step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass
class PrefillOrders(KVConnectorMetadata):
    """Scheduler to worker: prompts whose last chunk is in this step.

    Attributes
    ----------
    finishing : dict
        Request id and number to the blocks of its prompt that hold counts.
    runs : bool
        Whether the step has tokens.
    drafts : list of int
        Slots of tokens behind a prompt, which may be rejected.
    """

    finishing: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    runs: bool = False
    drafts: list[int] = field(default_factory=list)
