"""One replica of every expert per step, chosen so that the fullest rank has as few of them as possible.

The choice is made anew for each layer of each step, on every rank for itself, from what the whole group uses: one sum
over the ranks, of a flag per physical expert that vLLM's own choice would have used. It serves twice: it says which
experts any rank's tokens need, also where all ranks hold all tokens (a tie that one of them breaks otherwise must not
change what the others compute), and what vLLM's choice would have loaded. The ranks' digests ride along.

Shapes: E logical and P physical experts, G ranks of P / G physical experts in a row, M columns of vLLM's map. What a step does
has static shapes and never waits for an accelerator, so that a graph can capture it: flags, the sum, the decision, the new ids.
Maps are read outside of it, when EPLB has changed them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from eldr.engine.balance import choose_host
from eldr.engine.balance.agreement import (
    BROKEN,
    N_TAIL,
    N_WORDS,
    digest_of,
    disagreement,
    table_digests,
    words,
)
from eldr.engine.balance.choose_host import Layer, replicas_of
from eldr.engine.balance.setting import bound_by_compute
from eldr.engine.capture import kernels
from eldr.engine.errors import RankAloneError, RanksDisagreeError
from eldr.engine.figures import N_FIGURES


class Maps(Protocol):
    """Where a layer's experts are; vLLM's ``EplbLayerState``, which keeps its tensors and changes what they hold."""

    logical_to_physical_map: torch.Tensor
    logical_replica_count: torch.Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that share a layer's experts.

    Attributes
    ----------
    experts_per_rank : int
        Physical ones.
    add : callable
        Sum a tensor over the ranks; it may return the tensor it was given.
    """

    ranks: int
    experts_per_rank: int
    add: Callable[[torch.Tensor], torch.Tensor]

    @property
    def experts(self) -> int:
        """Physical experts of all ranks."""
        return self.ranks * self.experts_per_rank


class Form(NamedTuple):
    """The kernels of an exchange, and whether asking for a value is harmless: ranks that disagree then end at once."""

    flag: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
    decide: Callable[[torch.Tensor, Layer], None]
    remap: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    waits: bool


ON_HOST = Form(kernels.flag_experts, choose_host.decide, choose_host.remap, waits=True)


def in_triton() -> Form:
    """Return the form of GPUs, which Triton's interpreter runs elsewhere."""
    from eldr.engine.balance import choose_triton
    from eldr.engine.capture import kernels_triton

    return Form(kernels_triton.flag_experts, choose_triton.decide, choose_triton.remap, waits=False)


def form_for(device: torch.device) -> Form:
    """Return the form that a device runs: Triton on GPUs, the host elsewhere."""
    return in_triton() if device.type == "cuda" else ON_HOST  # ROCm calls itself so, too


@dataclass(frozen=True, slots=True)
class Rules:
    """What is the same for all layers of an engine.

    Attributes
    ----------
    identity : str
        Versions and setting, which all ranks must share.
    """

    form: Form
    top_k: int
    identity: str


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Raise what fails here as a RankAloneError: other ranks wait for this one until it ends."""
    try:
        yield
    except (RanksDisagreeError, RankAloneError):
        raise
    except Exception as error:
        raise RankAloneError(f"ELDR: {what}: {error!r}") from error


class Balance:
    """The choices of all layers of an engine's worker.

    Parameters
    ----------
    layers : sequence of (str, Maps)
        By layer number.

    Attributes
    ----------
    layers : list of Layer
    figures : Tensor of int32, shape (L, N_FIGURES)
        Of the latest step; zeros for a layer that vLLM's choice was kept for.
    trouble : Tensor of int32, shape ()
        Whether ranks were seen to disagree.
    """

    def __init__(self, layers: Sequence[tuple[str, Maps]], group: Group, rules: Rules) -> None:
        self._group, self._rules = group, rules
        self._names = [name for name, _ in layers]
        self._maps = [(maps.logical_to_physical_map, maps.logical_replica_count) for _, maps in layers]
        self._seen: list[int] = []
        device, shape = self._maps[0][0].device, (str(group.ranks), str(group.experts))
        with torch.device(device):
            self.figures = torch.zeros(len(layers), N_FIGURES, dtype=torch.int32)
            self.trouble = torch.zeros((), dtype=torch.int32)
            places = torch.arange(group.experts, dtype=torch.int32).repeat(len(layers), 1)
            self._static = torch.tensor([digest_of(rules.identity, name, *shape) for name in self._names])
            self._tails = torch.zeros(len(layers), N_TAIL, dtype=torch.int32)
            self._said = torch.zeros(group.experts + N_TAIL, dtype=torch.int32)
            self._only = torch.zeros(1, dtype=torch.int32)  # the layers that ids have here
        per_rank, ranks = group.experts_per_rank, group.ranks
        self.layers = [
            Layer(table, count, places[i], self.figures[i], self.trouble, per_rank, ranks)
            for i, (table, count) in enumerate(self._maps)
        ]
        self.follow()

    def exchange(self, number: int, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the physical experts that a step's tokens go to in a layer.

        Parameters
        ----------
        ids : Tensor of int, shape (T, K)
            Those that vLLM chose for this rank's tokens; -1 is padding, and stays.
        tokens : int
            Tokens of the step over the whole group.

        Raises
        ------
        RanksDisagreeError
            On CPUs; on accelerators the step's report tells.
        RankAloneError
            If this rank cannot choose: the others wait in this layer's sum, or in the next, until its process ends.
        """
        layer, form = self.layers[number], self._rules.form
        if bound_by_compute(tokens, self._rules.top_k, len(layer.count)):
            return ids
        with alone(f"{self._names[number]}: the exchange has failed"):
            ids = ids.contiguous()
            form.flag(self._said, ids[:, None], self._only, self._tails[number])
            form.decide(self._group.add(self._said), layer)
            if form.waits:
                self._settle(number)
            return form.remap(ids, layer.places)

    def _settle(self, number: int) -> None:
        """Wait for what ranks were seen to say, and end the engine if they disagree."""
        if not bool(self.trouble):
            return
        why = "the ranks' versions, settings or maps of experts differ"
        if bool(self._tails[number, BROKEN]):
            why = (
                f"its maps place {int(self.layers[number].count.sum())} replicas in {self._group.experts} places, or leave places empty; "
                "this vLLM arranges experts in a way that ELDR does not know: unset ELDR_BALANCE"
            )
        raise RanksDisagreeError(disagreement(f"{self._names[number]}: {why}"))

    def begin(self) -> None:
        """Forget the figures of the step before: layers that a step leaves out have none."""
        self.figures.zero_()

    def follow(self) -> None:
        """Read the maps if they changed; on every rank, between what EPLB does and the next forward pass."""
        versions = [one._version for maps in self._maps for one in maps]  # noqa: SLF001 - vLLM copies new maps into the same tensors
        if versions == self._seen:
            return
        total = self._group.experts
        held = torch.stack([replicas_of(table, count, total) for table, count in self._maps])
        self._tails[:, : 2 * N_WORDS] = words(table_digests(held) + self._static)
        empty = torch.ones((len(held), total + 1), dtype=torch.bool, device=held.device)
        empty.scatter_(1, held.flatten(1), value=False)
        placed = torch.stack([count.sum() for _, count in self._maps])
        self._tails[:, BROKEN] = empty[:, :total].any(1) | (placed != total)
        self._seen = versions

    def try_out(self) -> None:
        """Decide for every layer, so that ranks that disagree end now; all ranks must come here together."""
        half = torch.arange(0, self._group.experts, 2, device=self.trouble.device)[None]
        for number in range(len(self.layers)):
            self.exchange(number, half, 1)
            self._settle(number)
        self.begin()
