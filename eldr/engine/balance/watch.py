"""Whether all ranks have the same maps of experts, where nothing is chosen: one sum in each step.

Without replicas EPLB still moves experts, and a rank that missed a move would send tokens to the wrong ones. With replicas
the comparison rides along with what the choice needs, see :mod:`eldr.engine.balance.choice`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eldr.engine.balance.agreement import Tail, digest_of, is_capturing, table_digest
from eldr.engine.balance.choice import Group, Maps
from eldr.engine.counting import Counting
from eldr.engine.figures import N_FIGURES


class MapsWatch:
    """The comparison, made in one layer for all of them.

    Parameters
    ----------
    layers : sequence of Maps
        By layer number; every expert has one place.
    identity : str
        Versions and setting, which all ranks must share.

    Attributes
    ----------
    figures : Tensor of int32, shape (0, N_FIGURES)
        Of choices there are none.
    trouble : Tensor of bool, shape ()
        Becomes true when ranks disagree, and stays so.
    decision_seconds : float
        Nothing is decided.
    """

    def __init__(self, layers: Sequence[Maps], group: Group, identity: str) -> None:
        device = layers[0].logical_replica_count.device
        self.figures = torch.zeros(0, N_FIGURES, dtype=torch.int32, device=device)
        self.trouble = torch.zeros((), dtype=torch.bool, device=device)
        self.decision_seconds = 0.0
        self._tables = [maps.logical_to_physical_map for maps in layers]
        self._group = group
        self._static = digest_of(identity, str(group.ranks), str(group.experts))
        self._tail, self._watching = Tail(device), Counting("what ranks say of their maps")
        self._seen: list[int] | None = None

    def begin(self) -> None:
        """Begin a step."""

    def exchange(self, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return a step's physical experts as they are, after the comparison.

        Raises
        ------
        RanksDisagreeError
            On CPUs, and on accelerators the first time that maps are read.
        """
        del tokens
        read = False
        with self._watching:  # a rank that failed says what it read last
            read = self._read_maps()
        said = self._group.add(self._tail.said.clone())
        why = "the ranks' versions, settings or maps of experts differ"
        self._tail.compare(said, self._group.ranks, self.trouble, why, wait=read)
        return ids

    def _read_maps(self) -> bool:
        """Follow the maps if any changed; return whether waiting for the device is harmless.

        What a graph replays cannot ask whether anything changed, so a graph holds the reading itself.
        """
        capturing = is_capturing(self.trouble.device)
        versions = [table._version for table in self._tables]  # noqa: SLF001 - vLLM copies new maps into the same tensors
        if versions == self._seen and not capturing:
            return False
        places = torch.stack([table[:, 0] for table in self._tables])
        self._tail.hold(table_digest(places) + self._static)
        if capturing:
            return False
        self._seen = versions
        return True
