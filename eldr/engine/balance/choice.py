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

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from eldr.engine.balance import choose_torch
from eldr.engine.balance.agreement import (
    BROKEN,
    N_WORDS,
    Tails,
    compare,
    digest_of,
    disagree,
    disagreement,
    table_digests,
    words,
)
from eldr.engine.balance.choose_torch import Layer, replicas_of
from eldr.engine.balance.setting import bound_by_compute
from eldr.engine.capture import kernels
from eldr.engine.counting import Counting
from eldr.engine.errors import RankAloneError, RanksDisagreeError
from eldr.engine.figures import N_FIGURES

TRIALS = 20
DIFFER = "the ranks' versions, settings or maps of experts differ"


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


IN_TORCH = Form(kernels.flag_experts, choose_torch.decide, choose_torch.remap, waits=True)


def in_triton() -> Form:
    """Return the form of GPUs, which Triton's interpreter runs elsewhere."""
    from eldr.engine.balance import choose_triton
    from eldr.engine.capture import kernels_triton

    return Form(kernels_triton.flag_experts, choose_triton.decide, choose_triton.remap, waits=False)


def form_for(device: torch.device) -> Form:
    """Return the form that a device runs: Triton on GPUs, torch elsewhere."""
    return in_triton() if device.type == "cuda" else IN_TORCH  # ROCm calls itself so, too


@dataclass(frozen=True, slots=True)
class Rules:
    """What is the same for all layers of an engine.

    Attributes
    ----------
    identity : str
        Versions and setting, which all ranks must share.
    checked : bool
        Compare every choice, too.
    """

    form: Form
    top_k: int
    identity: str
    checked: bool = False


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
        self._group, self._rules, self._choosing = group, rules, Counting("the choice of replicas")
        self._names = [name for name, _ in layers]
        self._maps = [(maps.logical_to_physical_map, maps.logical_replica_count) for _, maps in layers]
        self._seen: list[int] = []
        self.decision_seconds = 0.0
        device, shape = self._maps[0][0].device, (str(group.ranks), str(group.experts))
        self._tails = Tails(len(layers), device)
        with torch.device(device):
            self.figures = torch.zeros(len(layers), N_FIGURES, dtype=torch.int32)
            self.trouble, off = torch.zeros(2, dtype=torch.int32).unbind()
            places = torch.arange(group.experts, dtype=torch.int32).repeat(len(layers), 1)
            self._static = torch.tensor([digest_of(rules.identity, name, *shape) for name in self._names])
            self._logical = torch.zeros(len(layers), group.experts, dtype=torch.int64)
            self._said = torch.zeros(group.experts + Tails.N, dtype=torch.int32)
            self._only = torch.zeros(1, dtype=torch.int32)  # the layers that ids have here
        per_rank, ranks = group.experts_per_rank, group.ranks
        self.layers = [
            Layer(table, count, places[i], self.figures[i], self.trouble, off, per_rank, ranks)
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
            If nothing can be chosen when the others have, or may have.
        """
        try:
            return self._exchange(number, ids, tokens)
        except (RanksDisagreeError, RankAloneError):
            raise
        except Exception as error:
            # others wait in this layer's sum, or have had it: only the end of this process tells them
            raise RankAloneError(
                f"ELDR: {self._names[number]}: the exchange has failed: {error!r}"
            ) from error

    def _exchange(self, number: int, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        layer, form, tail = self.layers[number], self._rules.form, self._tails.said[number]
        if bound_by_compute(tokens, self._rules.top_k, len(layer.count)):
            return ids
        ids = ids.contiguous()
        with self._choosing:
            form.flag(self._said, ids[:, None], self._only, tail)
        if self._choosing.stopped:
            self._tails.fail()
            self._said[layer.total :] = tail
        chosen = self._choose(layer, ids, self._group.add(self._said))
        if form.waits:
            self._settle(number, DIFFER)
        if self._rules.checked:
            self._check(number, decided=chosen is not None)
        if chosen is not None:
            return chosen
        if bool(layer.off):
            return ids
        raise RankAloneError(
            f"ELDR: {self._names[number]}: {self._choosing.stopped}, when other ranks had chosen"
        )

    def _choose(self, layer: Layer, ids: torch.Tensor, said: torch.Tensor) -> torch.Tensor | None:
        """Return where the ids are computed; if one form fails, as the other one has it, and None if both do."""
        for form in (self._rules.form, IN_TORCH):
            with self._choosing:
                form.decide(said, layer)
                return form.remap(ids, layer.places)
        compare(said[layer.total :], layer.ranks, layer.trouble, layer.off)
        return None

    def _settle(self, number: int, why: str) -> None:
        """Wait for what ranks were seen to say, and end the engine if they disagree."""
        if not bool(self.trouble):
            return
        if bool(self._tails.said[number, BROKEN]):
            why = (
                f"its maps place {int(self.layers[number].count.sum())} replicas in {self._group.experts} places, or leave places empty; "
                "this vLLM arranges experts in a way that ELDR does not know: unset ELDR_BALANCE"
            )
        raise RanksDisagreeError(disagreement(f"{self._names[number]}: {why}"))

    def _check(self, number: int, *, decided: bool) -> None:
        """Compare the ranks' choices; a rank without one takes part, too."""
        layer, logical = self.layers[number], self._logical[number]
        said, wrong = torch.zeros_like(self._tails.said[number, :-2]), layer.off > 0
        with self._choosing:
            if decided:
                wrong = (logical[layer.places.long()] != logical).any()
                said = words(table_digests(layer.places[None]))[0]
        differ = disagree(self._group.add(said), layer.ranks)
        for seen, why in (
            (differ, "the ranks' choices of replicas differ"),
            (wrong, "a choice names another expert's replica"),
        ):
            self.trouble.logical_or_(seen & (layer.off == 0))
            if self._rules.form.waits:
                self._settle(number, why)

    def stop(self, why: str) -> None:
        """Have all ranks keep vLLM's own choice from the next step on."""
        if not self._choosing.stopped:
            self._choosing.stop(why)
            self._tails.fail()

    def begin(self) -> None:
        """Forget the figures of the step before: layers that a step leaves out have none."""
        self.figures.zero_()

    def follow(self) -> None:
        """Read the maps if they changed; on every rank, between what EPLB does and the next forward pass.

        A rank that fails to says so, and what it read last.
        """
        with self._choosing:
            versions = [one._version for maps in self._maps for one in maps]  # noqa: SLF001 - vLLM copies new maps into the same tensors
            if versions != self._seen:
                self._read()
                self._seen = versions
        if self._choosing.stopped:
            self._tails.fail()

    def _read(self) -> None:
        total = self._group.experts
        held = torch.stack([replicas_of(table, count, total) for table, count in self._maps])
        self._tails.said[:, : 2 * N_WORDS] = words(table_digests(held) + self._static)
        owner = torch.full((len(held), total + 1), -1, dtype=torch.int64, device=held.device)
        expert = torch.arange(held.shape[1], device=held.device)[:, None].expand_as(held)
        owner.scatter_(1, held.flatten(1), expert.flatten(1))
        self._logical.copy_(owner[:, :total])
        placed = torch.stack([count.sum() for _, count in self._maps])
        self._tails.said[:, BROKEN] = (owner[:, :total] < 0).any(1) | (placed != total)

    def try_out(self, trials: int = TRIALS) -> None:
        """Decide for every layer, so that ranks that disagree end now, and measure; all ranks must come here together."""
        device = self.trouble.device
        wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        every = torch.arange(0, self._group.experts, 2, device=device)[None]  # half of the experts
        for number in range(len(self.layers)):
            self.exchange(number, every, 1)
            self._settle(number, DIFFER)
        taken = []
        for _ in range(trials):
            wait()
            begun = time.perf_counter()
            self.exchange(0, every, 1)
            wait()
            taken.append(time.perf_counter() - begun)
        self.decision_seconds = statistics.median(taken)
        self.begin()
