"""Expected unions of active experts: what the batch of each decode worker uses, and what a request would add to it.

A request uses an expert in a decode step with its *inclusion probability*. A worker's batch leaves an expert alone with
probability ``prod_r (1 - p_r)``, its *survival*; what survives is not read from memory. Logarithms of survivals are kept as
integers, so that requests join and leave without any rounding, in any order, for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats

Fixed = npt.NDArray[np.int16]
Counts = npt.NDArray[np.integer[Any]]

SCALE = 1 << 13
"""Steps of one natural logarithm: a request's fit 16 bits, and an error of a thousand requests stays below a hundredth."""
MOST_LAYERS = 8
"""Layers that stand for all: one of eight already finds most of what there is to find."""
_CEILING = 0.98  # its logarithm fits, and no request is certain of an expert
_PRIOR_TOKENS = 20.0
_MEMORY = 1000  # requests that the mean looks back on
_STEP = np.float32(1 / SCALE)
_PATIENCE = 50  # the mean may have moved by so small a part before strangers are counted anew
_MOST_SEQUENCES = 1 << 16  # of one worker: the sum of their logarithms fits 32 bits


class Shape(NamedTuple):
    """Which cells are looked at.

    Attributes
    ----------
    n_layers, n_experts, top_k : int
        Geometry of the model.
    layers : tuple of int
        The layers that stand for all, ascending.
    """

    n_layers: int
    n_experts: int
    top_k: int
    layers: tuple[int, ...]

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.layers) * self.n_experts


def spread(layers: Sequence[int], most: int = MOST_LAYERS) -> tuple[int, ...]:
    """Return at most so many of the layers, evenly spread over them.

    Examples
    --------
    >>> spread(range(48), 4)
    (6, 18, 30, 42)
    >>> spread([3, 5], 4)
    (3, 5)
    """
    n = len(layers)
    if n <= most:
        return tuple(layers)
    return tuple(layers[(2 * at + 1) * n // (2 * most)] for at in range(most))


class Request(NamedTuple):
    """What a request is expected to use.

    Attributes
    ----------
    share : ndarray of float32, shape (cells,)
        Of the prompt's tokens, how many chose each expert.
    inclusion : ndarray of float32, shape (cells,)
        Inclusion probabilities of a decode step.
    logs : ndarray of int16, shape (cells,)
        Logarithms of ``1 - inclusion``, in steps of ``1 / SCALE``.
    """

    share: Floats
    inclusion: Floats
    logs: Fixed


class Outlook(NamedTuple):
    """What workers' batches use, and what one request would add.

    Attributes
    ----------
    active : list of float, length n_workers
        Expected distinct experts of a step now, mean over the layers.
    growth : list of float, length n_workers
        How many the request would add.
    """

    active: list[float]
    growth: list[float]


class Unions:
    """The expected unions of a pool's workers.

    What is in flight and not known by its experts counts as so many requests of the pool's mean: requests without a
    signature, those that another router placed and has not told of, those from before this object was made.

    Attributes
    ----------
    version : int
        Grows with every join and leave.
    forgotten : int
        Workers forgotten: what was told of them before is not taken back by a table of changes.

    Notes
    -----
    Inclusion probabilities come from the counts of the prompt: ``(c + a g) / (n + a)`` with ``a = 20`` tokens, shrunk
    towards the pool's mean ``g`` [1]_.

    References
    ----------
    .. [1] ELDR, arXiv 2607.00466, shows that prompts tell the experts of decode steps; the union as a quantity to place by
       is this project's, see ``docs/how-it-works.md``.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.version = self.forgotten = 0
        self._layers = np.asarray(shape.layers, dtype=np.intp)
        self._mean = np.full(shape.cells, min(1.0, shape.top_k / shape.n_experts), dtype=np.float32)
        self._seen = 0
        self._rows: dict[str, int] = {}
        self._logs = np.zeros((0, shape.cells), dtype=np.int32)
        self._survival = np.ones((0, shape.cells), dtype=np.float32)
        self._in_order: list[int] = []
        self._changed: list[int] = []
        self._members: list[int] = []
        self._active: list[float] = []
        # of the survival as it stands: how many strangers are in it (-1: it is to be computed again), of which mean
        self._strangers: list[int] = []
        self._as_of: list[int] = []
        self._others: dict[str, Mapping[str, tuple[int, Floats]]] = {}

    @property
    def requests(self) -> int:
        """Requests that the mean was made of."""
        return self._seen

    @property
    def tellers(self) -> int:
        """Other routers whose sequences are known."""
        return len(self._others)

    @property
    def mean(self) -> Floats:
        """The pool's mean inclusion probabilities, shape (cells,)."""
        return self._mean

    def request(self, counts: Counts, tokens: int) -> Request:
        """Return what a request is expected to use.

        Parameters
        ----------
        counts : ndarray of int, shape (n_layers, n_experts)
            How many of the prompt's tokens chose each expert.
        tokens : int
            Tokens of the prompt, at least 1.

        Raises
        ------
        ValueError
            If the counts have another shape than the pool's model, or there are no tokens.
        """
        if counts.shape != (self.shape.n_layers, self.shape.n_experts):
            expected = f"{self.shape.n_layers} layers x {self.shape.n_experts} experts"
            raise ValueError(f"counts: expected {expected}, got shape {counts.shape}")
        if tokens < 1:
            raise ValueError(f"tokens: expected at least 1, got {tokens}")
        share: Floats = counts.take(self._layers, axis=0).reshape(-1).astype(np.float32)
        share /= tokens
        np.minimum(share, 1.0, out=share)  # inexact counts may hold more than there are tokens
        trust = tokens / (tokens + _PRIOR_TOKENS)
        inclusion = share * trust
        inclusion += self._mean * (1.0 - trust)
        np.minimum(inclusion, _CEILING, out=inclusion)
        # several times as fast as log1p, and near 1 as exact as the steps of 1 / SCALE
        logs = np.log(1.0 - inclusion)
        logs *= SCALE
        return Request(share, inclusion, np.rint(logs, out=logs).astype(np.int16))

    def outlook(
        self, request: Request | None, workers: Sequence[str], totals: Sequence[int], n: int = 1
    ) -> Outlook:
        """Return what a request of ``n`` sequences would find on some workers.

        Parameters
        ----------
        request : Request or None
            None: one of the pool's mean.
        totals : sequence of int
            Sequences in flight on each.
        """
        inclusion = np.minimum(self._mean, _CEILING) if request is None else request.inclusion
        if n > 1:
            inclusion = 1.0 - (1.0 - inclusion) ** np.float32(n)
        try:
            rows = [self._rows[worker] for worker in workers]
        except KeyError:
            rows = [self._row(worker) for worker in workers]
        members, current = self._members, self._strangers
        oldest = self._seen - min(self._seen, _MEMORY) / _PATIENCE
        for at, row in enumerate(rows):
            strangers = totals[at] - members[row]
            if self._others:
                strangers -= self._told(workers[at])
            strangers = max(strangers, 0)
            if strangers != current[row] or (strangers and self._as_of[row] < oldest):
                self._refresh(workers[at], row, strangers)
        # the rows are in order nearly always, and need not be copied then
        survival = self._survival if rows == self._in_order else self._survival[rows]
        growth = survival.dot(inclusion)
        growth /= len(self.shape.layers)
        return Outlook([self._active[row] for row in rows], growth.tolist())

    def join(self, worker: str, request: Request, n: int = 1) -> Stay | None:
        """Let ``n`` sequences of a request join a worker's batch; None if it holds too many to count.

        The request counts in the pool's mean from then on.
        """
        row = self._row(worker)
        self._seen += 1
        change = request.share - self._mean
        change /= min(self._seen, _MEMORY)
        self._mean += change
        if self._members[row] + n > _MOST_SEQUENCES:
            return None
        self._add(row, request.logs, n)
        return Stay(self, row, request.logs, n)

    def retain(self, workers: Collection[str]) -> None:
        """Forget workers that are gone and have nothing in flight."""
        for worker, row in list(self._rows.items()):
            if worker not in workers and not self._members[row]:
                del self._rows[worker]
                self.forgotten += 1
                self._strangers[row], self._changed[row] = -1, 0

    def table(self, since: int = 0) -> dict[str, tuple[int, Floats]]:
        """Return the sequences that joined here and their log survival, of workers where they changed since a version."""
        return {
            worker: (self._members[row], self._logs[row].astype(np.float32) * _STEP)
            for worker, row in self._rows.items()
            if self._changed[row] > since
        }

    def heard(
        self, router: str, table: Mapping[str, tuple[int, Floats]], changed: Collection[str] | None = None
    ) -> None:
        """Take what another router says of its own sequences; an empty table if it says nothing any longer.

        Parameters
        ----------
        table : mapping of str to (int, ndarray of float32)
            Sequences and the sum of their log survivals by worker, as :meth:`table` returns them.
        changed : collection of str, optional
            Workers of which it says something new; all of them without it.
        """
        before = self._others.pop(router, {})
        if table:
            self._others[router] = table
        for worker in {*before, *table} if changed is None else changed:
            if worker in self._rows:
                self._strangers[self._rows[worker]] = -1

    def _told(self, worker: str) -> int:
        return sum(table[worker][0] for table in self._others.values() if worker in table)

    def _add(self, row: int, logs: Fixed, n: int) -> None:
        own = self._logs[row]
        if n == 1:
            own += logs
        elif n == -1:
            own -= logs
        else:
            own += logs.astype(np.int32) * n
        self._members[row] += n
        self._strangers[row] = -1
        self.version += 1
        self._changed[row] = self.version

    def _row(self, worker: str) -> int:
        row = self._rows.get(worker)
        if row is None:
            row = self._rows[worker] = self._free_row()
        return row

    def _free_row(self) -> int:
        free = set(range(len(self._members))).difference(self._rows.values())
        if free:
            return min(free)
        self._logs = np.vstack([self._logs, np.zeros((1, self.shape.cells), dtype=np.int32)])
        self._survival = np.vstack([self._survival, np.ones((1, self.shape.cells), dtype=np.float32)])
        self._changed.append(0)
        self._in_order.append(len(self._members))
        self._members.append(0)
        self._active.append(0.0)
        self._strangers.append(-1)
        self._as_of.append(0)
        return len(self._members) - 1

    def _refresh(self, worker: str, row: int, strangers: int) -> None:
        logs: Floats = self._logs[row].astype(np.float32)
        logs *= _STEP
        for table in self._others.values():
            if worker in table:
                logs += table[worker][1]
        if strangers:
            logs += strangers * np.log1p(-np.minimum(self._mean, _CEILING))
        survival = np.exp(logs, out=self._survival[row])
        self._active[row] = (survival.size - float(survival.sum())) / len(self.shape.layers)
        self._strangers[row] = strangers
        self._as_of[row] = self._seen


class Stay:
    """A request's part in the union of one worker; left once, however often it is asked to."""

    __slots__ = ("_logs", "_n", "_row", "_unions")

    def __init__(self, unions: Unions, row: int, logs: Fixed, n: int) -> None:
        self._unions: Unions | None = unions
        self._row = row
        self._logs = logs
        self._n = n

    def leave(self) -> None:
        """Take it out."""
        unions, self._unions = self._unions, None
        if unions is not None:
            unions._add(self._row, self._logs, -self._n)  # noqa: SLF001 - one unit with the unions
