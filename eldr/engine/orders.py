"""What an engine's scheduler sends to its workers, once per step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from eldr.engine.decode.tracking import Plan


@dataclass
class Orders(KVConnectorMetadata):
    """Scheduler to worker.

    Attributes
    ----------
    step : int or None
        The step's number; None without tokens.
    requests : int
        Requests of the step; of one that computes more than they decode, plus :data:`eldr.engine.capture.union.MIXED`.
    answers : bool
        Whether an answer is counted.
    plan : Plan
        Changes of the request rows, before the step.
    reset : bool
        Whether the tables hold nothing any more, before the plan.
    waited_for : bool
        Whether the scheduler waits for the step's report, though the step may have no token.
    pulls : dict
        Request id to the deadline of its pull, of the pulls in flight that have one.
    finishing : dict
        Of the prompts whose last chunk is in this step: request id and number to the prompt's blocks that hold counts.
    drafts : list of int
        Slots of tokens behind a prompt, which may be rejected.
    """

    step: int | None = None
    requests: int = 0
    answers: bool = False
    plan: Plan = field(default_factory=Plan)
    reset: bool = False
    waited_for: bool = False
    pulls: dict[str, float] = field(default_factory=dict)
    finishing: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    drafts: list[int] = field(default_factory=list)
