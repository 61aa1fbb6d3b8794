"""The running batch of a simulated engine: pure state, no clock and no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from eldr.sim.traces import Traces


@dataclass(slots=True)
class Seat:
    """KV blocks that a request occupies; zero once they were handed to :class:`eldr.sim.kv.PrefillResults`, and while it is preempted."""

    blocks: int
    waiting: tuple[int, asyncio.Future[None]] | None = None
    """The blocks that it waits for while it is preempted, and what is done once it has them."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence being generated.

    Attributes
    ----------
    record : int
        Trace record that it replays.
    kv : str
        Contents of its KV cache (see :mod:`eldr.sim.text`).
    on_token : callable
        Called with the index of each generated token.
    prompt : int
        Tokens of its prompt.
    seat : Seat
        Its KV blocks.
    """

    request_id: str
    record: int
    kv: str
    max_tokens: int
    on_token: Callable[[int], None]
    prompt: int = 0
    seat: Seat = field(default_factory=lambda: Seat(0))
    generated: int = 0

    @property
    def context(self) -> int:
        """Tokens of KV that its next step reads or writes."""
        return self.prompt + self.generated + 1

    @property
    def finished(self) -> bool:
        """Whether all tokens are generated."""
        return self.generated >= self.max_tokens


class Batch:
    """Sequences that decode together, one token each per step.

    Parameters
    ----------
    traces : Traces
        Activations that the sequences replay.
    """

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._layers = np.arange(traces.n_layers)[:, None]
        self._used = np.zeros((traces.n_layers, traces.n_experts), dtype=np.bool_)
        self.running: list[Sequence] = []
        self._stepping: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Let a sequence take part from the next step on."""
        self.running.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take an aborted sequence out; one that has finished already is ignored."""
        if sequence in self.running:
            self.running.remove(sequence)

    def begin(self) -> float:
        """Begin a step of all that run now; return the distinct experts that it uses, mean over the layers."""
        self._stepping = list(self.running)
        self._used[:] = False
        for sequence in self._stepping:
            self._used[self._layers, self._traces.experts(sequence.record, sequence.generated)] = True
        return float(self._used.sum()) / self._traces.n_layers

    def finish(self) -> list[Sequence]:
        """End the step: a token for each sequence that began it and still runs; return those that finished."""
        still = set(
            self.running
        )  # who was aborted meanwhile gets nothing, and who came meanwhile had no part in it
        stepped, self._stepping = [s for s in self._stepping if s in still], []
        for sequence in stepped:
            sequence.generated += 1
        finished = [sequence for sequence in stepped if sequence.finished]
        self.running = [sequence for sequence in self.running if not sequence.finished]
        for sequence in stepped:
            sequence.on_token(sequence.generated - 1)
        return finished
