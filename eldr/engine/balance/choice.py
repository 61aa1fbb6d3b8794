"""One replica of every expert per step, chosen so that the fullest rank has as few of them as possible.

The choice is made anew for each layer of each step, on every rank for itself, from what the whole group uses: one sum
over the ranks, of a flag per physical expert that vLLM's own choice would have used. It serves twice: it says which
experts any rank's tokens need, also where all ranks hold all tokens (a tie that one of them breaks otherwise must not
change what the others compute), and what vLLM's choice would have loaded. The ranks' digests ride along.

Shapes: E logical and P physical experts, G ranks of P / G physical experts in a row, M columns of vLLM's map. Everything has
static shapes and never waits for an accelerator, so that a graph can capture it; on CPUs a disagreement raises at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from eldr.engine.balance import choose_torch
from eldr.engine.balance.agreement import Tail, digest_of, disagree, is_capturing, note, table_digest, words
from eldr.engine.balance.setting import bound_by_compute
from eldr.engine.capture.kernels import active_of
from eldr.engine.counting import Counting
from eldr.engine.errors import RankAloneError
from eldr.engine.figures import N_FIGURES

TRIALS = 20

Choose = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, int], torch.Tensor]
"""See :func:`eldr.engine.balance.choose_torch.choose`."""


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


@dataclass(frozen=True, slots=True)
class Rules:
    """What is the same for all layers of an engine.

    Attributes
    ----------
    choose : callable
    identity : str
        Versions and setting, which all ranks must share.
    checked : bool
        Compare every choice, too.
    """

    choose: Choose
    top_k: int
    identity: str
    checked: bool = False


class LayerBalance:
    """The choice for one layer.

    Parameters
    ----------
    figures : Tensor of int32, shape (N_FIGURES,)
        Where the figures of the latest step go; zeros for a step that vLLM's choice was kept for.
    trouble : Tensor of bool, shape ()
        Becomes true when ranks disagree, and stays so.
    off : Tensor of bool, shape ()
        Becomes true when a rank fails to choose: all of them leave vLLM's choice from then on.
    choosing : Counting
        Whether this rank chooses.
    """

    def __init__(
        self,
        name: str,
        maps: Maps,
        group: Group,
        rules: Rules,
        *,
        figures: torch.Tensor,
        trouble: torch.Tensor,
        off: torch.Tensor,
        choosing: Counting,
    ) -> None:
        self._name, self._maps, self._group, self._rules = name, maps, group, rules
        self._figures, self._trouble, self._off, self._choosing = figures, trouble, off, choosing
        device = maps.logical_replica_count.device
        self._static = digest_of(rules.identity, name, str(group.ranks), str(group.experts))
        self._logical = torch.zeros(group.experts, dtype=torch.int64, device=device)
        self._nothing = torch.zeros(group.experts, dtype=torch.int32, device=device)
        self._tail = Tail(device)
        self._seen: int | None = None

    @property
    def n_experts(self) -> int:
        """Logical experts."""
        return len(self._maps.logical_replica_count)

    def exchange(self, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the physical experts that a step's tokens go to.

        Parameters
        ----------
        ids : Tensor of int, shape (T, K)
            Those that vLLM chose for this rank's tokens; -1 is padding, and stays.
        tokens : int
            Tokens of the step over the whole group.

        Raises
        ------
        RanksDisagreeError
            On CPUs, and on accelerators the first time that maps are read.
        RankAloneError
            If nothing can be chosen when the others have.
        """
        if bound_by_compute(tokens, self._rules.top_k, self.n_experts):
            self._figures.zero_()
            return ids
        group = self._group
        flags, read = self._nothing, False
        with self._choosing:
            read = self._read_maps()
            flags = active_of(ids, group.experts).to(torch.int32)
        if self._choosing.stopped:
            flags = self._nothing
            self._tail.fail()
        said = group.add(torch.cat((flags, self._tail.said)))
        tail = said[group.experts :]
        why = f"{self._name}: the ranks' versions, settings or maps of experts differ"
        self._tail.compare(tail, group.ranks, self._trouble, why, wait=read)
        self._off.logical_or_(tail[-2] > 0)
        chosen = self._choose(said[: group.experts] > 0)
        if self._rules.checked:
            self._check(chosen)
        if chosen is not None:
            with self._choosing:
                at = chosen[0][self._logical][ids.clamp(min=0).long()]
                return torch.where((ids >= 0) & ~self._off, at, ids).to(ids.dtype)
        if bool(self._off):
            return ids
        raise RankAloneError(f"ELDR: {self._name}: {self._choosing.stopped}, when other ranks had chosen")

    def _choose(self, used: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the choice, and the active experts that it is for; if one way fails, as the other one makes it."""
        for choose in (self._rules.choose, choose_torch.choose):
            with self._choosing:
                return self._choose_by(choose, used)
        return None

    def _choose_by(self, choose: Choose, used: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        group, maps = self._group, self._maps
        active = active_of(torch.where(used, self._logical, -1), self.n_experts)
        choice = choose(
            active,
            maps.logical_to_physical_map,
            maps.logical_replica_count,
            group.experts_per_rank,
            group.ranks,
        )
        chosen = active_of(torch.where(active, choice, -1), group.experts)
        figures = torch.cat((_figures(chosen, group), _figures(used, group)))
        self._figures.copy_(torch.where(self._off, 0, figures))
        return choice, active

    def _read_maps(self) -> bool:
        """Follow the maps if they changed; return whether waiting for the device is harmless.

        What a graph replays cannot ask whether anything changed, so a graph holds the reading itself.
        """
        table, count = self._maps.logical_to_physical_map, self._maps.logical_replica_count
        capturing = is_capturing(table.device)
        version = table._version  # noqa: SLF001 - vLLM copies new maps into the same tensor
        if version == self._seen and not capturing:
            return False
        columns = min(table.shape[1], self._group.experts - self.n_experts + 1)
        column = torch.arange(columns, device=table.device)
        held = torch.where(column < count[:, None], table[:, :columns], -1)
        total = self._group.experts
        owner = torch.full((total + 1,), -1, dtype=torch.int64, device=table.device)
        expert = torch.arange(self.n_experts, device=table.device)[:, None].expand_as(held)
        owner.scatter_(0, torch.where(held >= 0, held, total).reshape(-1), expert.reshape(-1))
        self._tail.hold(table_digest(held) + self._static)
        self._logical.copy_(owner[:total].clamp(min=0))
        if capturing:
            return False
        if bool((owner[:total] < 0).any()) or int(count.sum()) != total:
            self._tail.break_off(
                f"{self._name}: its maps place {int(count.sum())} replicas in {total} places, or leave places empty; "
                "this vLLM arranges experts in a way that ELDR does not know: unset ELDR_BALANCE"
            )
        self._seen = version
        return True

    def _check(self, chosen: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        """Compare the ranks' choices; a rank without one takes part, too."""
        said, wrong = torch.zeros_like(self._tail.said[:-2]), self._off
        with self._choosing:
            if chosen is not None:
                choice, active = chosen
                expert = torch.arange(self.n_experts, device=choice.device)
                wrong = (active & (self._logical[choice.clamp(min=0)] != expert)).any()
                said = words(table_digest(choice))
        differ = disagree(self._group.add(said), self._group.ranks)
        in_use = ~self._off
        note(
            self._trouble, differ & in_use, f"{self._name}: the ranks' choices of replicas differ", wait=False
        )
        note(
            self._trouble,
            wrong & in_use,
            f"{self._name}: a choice names another expert's replica",
            wait=False,
        )


def _figures(used: torch.Tensor, group: Group) -> torch.Tensor:
    loads = used.view(group.ranks, group.experts_per_rank).sum(1)
    return torch.stack((loads.amax(), loads.sum())).to(torch.int32)


class Balance:
    """The choices of all layers of an engine's worker.

    Parameters
    ----------
    layers : sequence of (str, Maps)
        By layer number.

    Attributes
    ----------
    layers : list of LayerBalance
    figures : Tensor of int32, shape (L, N_FIGURES)
        Of the latest step.
    trouble : Tensor of bool, shape ()
        Whether ranks were seen to disagree.
    """

    def __init__(self, layers: Sequence[tuple[str, Maps]], group: Group, rules: Rules) -> None:
        device = layers[0][1].logical_replica_count.device
        self.figures = torch.zeros(len(layers), N_FIGURES, dtype=torch.int32, device=device)
        self.trouble = torch.zeros((), dtype=torch.bool, device=device)
        off, choosing = torch.zeros_like(self.trouble), Counting("the choice of replicas")
        self.layers = [
            LayerBalance(
                *(name, maps, group, rules),
                figures=self.figures[i],
                trouble=self.trouble,
                off=off,
                choosing=choosing,
            )
            for i, (name, maps) in enumerate(layers)
        ]
        self._group = group
        self.decision_seconds = 0.0

    def begin(self) -> None:
        """Forget the figures of the step before: layers that a step leaves out have none."""
        self.figures.zero_()

    def try_out(self, trials: int = TRIALS) -> None:
        """Decide for every layer, so that ranks that disagree end now, and measure; all ranks must come here together."""
        device = self.trouble.device
        every = torch.arange(0, self._group.experts, 2, device=device)[None]  # half of the experts
        for layer in self.layers:
            layer.exchange(every, 1)
        taken = []
        for _ in range(trials):
            _wait(device)
            begun = time.perf_counter()
            self.layers[0].exchange(every, 1)
            _wait(device)
            taken.append(time.perf_counter() - begun)
        self.decision_seconds = statistics.median(taken)
        self.begin()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
