"""The running batch of a simulated engine. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from eldr.sim.traces import Traces


@dataclass(slots=True)
class Seat:
    """KV blocks that a request occupies.

    Zero once :class:`eldr.sim.kv.PrefillResults` has them, and while it is preempted.
    """

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
    on_tokens : callable
        Called with the indices of the tokens that a step generated.
    prompt : int
        Tokens of its prompt.
    seat : Seat
        Its KV blocks.
    """

    request_id: str
    record: int
    kv: str
    max_tokens: int
    on_tokens: Callable[[range], None]
    prompt: int = 0
    seat: Seat = field(default_factory=lambda: Seat(0))
    generated: int = 0
    accepted: float = 0.0
    """Drafts that were accepted, as their share has it, less those that were generated."""

    @property
    def context(self) -> int:
        """Tokens of KV that its next step reads or writes."""
        return self.prompt + self.generated + 1

    @property
    def finished(self) -> bool:
        """Whether all tokens are generated."""
        return self.generated >= self.max_tokens


class Batch:
    """Sequences that decode together.

    Each gets one token and the accepted drafts per step.

    Parameters
    ----------
    traces : Traces
        Activations that the sequences replay; a draft's are those of the token in its place.
    drafts : int
        Tokens that a step drafts for each sequence.
    accepted : float
        Share of them that are accepted.
    """

    def __init__(self, traces: Traces, drafts: int = 0, accepted: float = 0.0) -> None:
        self._drafts, self._accepted = drafts, accepted
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
        """Begin a step of all that run now; return its distinct experts.

        Mean over the layers.
        """
        self._stepping = list(self.running)
        self._used[:] = False
        for sequence in self._stepping:
            for step in range(sequence.generated, sequence.generated + 1 + self._drafts):
                self._used[self._layers, self._traces.experts(sequence.record, step)] = True
        return float(self._used.sum()) / self._traces.n_layers

    def finish(self) -> list[Sequence]:
        """End the step; return the sequences that finished.

        Each sequence that began it and still runs gets tokens.
        """
        still = set(
            self.running
        )  # who was aborted meanwhile gets nothing, and who came meanwhile had no part in it
        stepped, self._stepping = [s for s in self._stepping if s in still], []
        new = [self._generate(sequence) for sequence in stepped]
        finished = [sequence for sequence in stepped if sequence.finished]
        self.running = [sequence for sequence in self.running if not sequence.finished]
        for sequence, indices in zip(stepped, new, strict=True):
            sequence.on_tokens(indices)
        return finished

    def _generate(self, sequence: Sequence) -> range:
        sequence.accepted += self._drafts * self._accepted
        first, accepted = sequence.generated, int(sequence.accepted)
        sequence.accepted -= accepted
        sequence.generated = min(first + 1 + accepted, sequence.max_tokens)
        return range(first, sequence.generated)
