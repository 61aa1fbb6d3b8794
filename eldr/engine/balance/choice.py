"""One replica of every expert per step, chosen so that the fullest rank has as few of them as possible.

The choice is made anew for each layer of each step, on every rank for itself, from what all ranks use: one sum
over the ranks, of a flag per physical expert that vLLM's own choice would have used. It serves twice: it names the
experts any rank's tokens need, also where all ranks hold all tokens (a tie that one of them breaks otherwise must not
change what the others compute), and what vLLM's choice would have loaded.

Shapes: E logical and P physical experts, G ranks of P / G physical experts in a row, M columns of vLLM's map. What a step does
has static shapes and never waits for an accelerator, so that a graph can capture it: flags, the sum, the decision, the new ids.
Only EPLB changes maps, on all ranks after the same step; they are compared then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from eldr.engine.balance import choose_host
from eldr.engine.balance.choose_host import Layer, replicas_of
from eldr.engine.balance.setting import bound_by_compute
from eldr.engine.capture import kernels
from eldr.engine.errors import RankAloneError, RanksDisagreeError, UnsupportedEngineError
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
    gather : callable
        Return the value of each rank.
    """

    ranks: int
    experts_per_rank: int
    add: Callable[[torch.Tensor], torch.Tensor]
    gather: Callable[[str], Sequence[str]]

    @property
    def experts(self) -> int:
        """Physical experts of all ranks."""
        return self.ranks * self.experts_per_rank


class Form(NamedTuple):
    """The kernels of an exchange."""

    flag: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
    decide: Callable[[torch.Tensor, Layer], None]
    remap: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


ON_HOST = Form(kernels.flag_experts, choose_host.decide, choose_host.remap)


def in_triton() -> Form:
    """Return the form of GPUs, which Triton's interpreter runs elsewhere."""
    from eldr.engine.balance import choose_triton
    from eldr.engine.capture import kernels_triton

    return Form(kernels_triton.flag_experts, choose_triton.decide, choose_triton.remap)


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Raise what fails here as a RankAloneError: other ranks wait for this one until it ends."""
    try:
        yield
    except (UnsupportedEngineError, RanksDisagreeError, RankAloneError):
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
    """

    def __init__(self, layers: Sequence[tuple[str, Maps]], group: Group, form: Form, top_k: int) -> None:
        self._group, self._form, self._top_k = group, form, top_k
        self._names = [name for name, _ in layers]
        self._maps = [(maps.logical_to_physical_map, maps.logical_replica_count) for _, maps in layers]
        self._seen: list[int] = []
        with torch.device(self._maps[0][0].device):
            self.figures = torch.zeros(len(layers), N_FIGURES, dtype=torch.int32)
            places = torch.arange(group.experts, dtype=torch.int32).repeat(len(layers), 1)
            self._said = torch.zeros(group.experts + 1, dtype=torch.int32)
            # the only layer that ids have here, and the tail of the flags
            self._only = torch.zeros(1, dtype=torch.int32)
        per_rank, ranks = group.experts_per_rank, group.ranks
        self.layers = [
            Layer(table, count, places[i], self.figures[i], per_rank, ranks)
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
            Tokens of the step over all ranks.

        Raises
        ------
        RankAloneError
            If this rank cannot choose: the others wait in this layer's sum, or in the next, until its process ends.
        """
        layer = self.layers[number]
        if bound_by_compute(tokens, self._top_k, len(layer.count)):
            return ids
        with alone(f"{self._names[number]}: the exchange has failed"):
            ids = ids.contiguous()
            self._form.flag(self._said, ids[:, None], self._only, self._only)
            self._form.decide(self._group.add(self._said), layer)
            return self._form.remap(ids, layer.places)

    def begin(self) -> None:
        """Forget the figures of the step before: layers that a step leaves out have none."""
        self.figures.zero_()

    def follow(self) -> None:
        """Compare the maps of all ranks if they changed; on every rank, between what EPLB does and the next forward pass.

        Raises
        ------
        RanksDisagreeError
            On all ranks, if their maps differ.
        UnsupportedEngineError
            If maps leave a place empty, or fill one twice.
        """
        versions = [one._version for maps in self._maps for one in maps]  # noqa: SLF001 - vLLM copies new maps into the same tensors
        if versions == self._seen:
            return
        total = self._group.experts
        held = torch.stack([replicas_of(table, count, total) for table, count in self._maps]).cpu()
        counts = torch.stack([count for _, count in self._maps]).cpu()
        digest = hashlib.sha256(held.numpy().tobytes() + counts.numpy().tobytes()).hexdigest()
        if len(set(self._group.gather(digest))) > 1:
            raise RanksDisagreeError(
                "ELDR: the ranks' maps of experts differ. Answers would be wrong without an error, so the engine ends: unset ELDR_BALANCE, "
                "and report this"
            )
        for name, replicas, count in zip(self._names, held, counts, strict=True):
            if len(set(replicas[replicas < total].tolist())) < total or int(count.sum()) != total:
                raise UnsupportedEngineError(
                    f"ELDR: {name}: its maps place {int(count.sum())} replicas in {total} places, or leave places empty; this vLLM "
                    "arranges experts in a way that ELDR does not know: unset ELDR_BALANCE"
                )
        self._seen = versions

    def try_out(self) -> None:
        """Decide for every layer, so that kernels are compiled, or have failed, before the first step; all ranks must come here together."""
        half = torch.arange(0, self._group.experts, 2, device=self.figures.device)[None]
        for number in range(len(self.layers)):
            self.exchange(number, half, 1)
        self.begin()
