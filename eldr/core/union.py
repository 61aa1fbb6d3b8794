"""Expected unions of active experts of decode engines' batches.

A request uses an expert in a decode step with its *inclusion probability*. An engine's batch leaves an expert alone with
probability ``prod_r (1 - p_r)``, its *survival*; what survives is not read from memory. Logarithms of survivals are kept in
steps that single precision adds exactly, so that requests join and leave without any rounding, in any order, for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats

Counts = npt.NDArray[np.integer[Any]]

STEP = 2.0**-13
"""Of logarithms, which are multiples of it: an error of a thousand requests stays below a hundredth. Sums are exact down to -2048,
and what rounds beyond it is as good as in use."""
MOST_LAYERS = 8
"""Layers that stand for all: one of eight already finds most of what there is to find."""
_CEILING = 0.98  # no request is certain of an expert
_PRIOR_TOKENS = 20.0
_MEMORY = 1000  # requests that the mean looks back on
_ROUND = 1.5 * 2.0**23 * STEP  # single precision has steps of STEP there, and rounds what is added to it
_PATIENCE = 50  # the mean may have moved by so small a part before unattributed requests are counted anew


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
        Of the prompt's tokens, how many chose each expert, at most 0.98.
    inclusion : ndarray of float32, shape (cells,)
        Inclusion probabilities of a decode step.
    logs : ndarray of float32, shape (cells,)
        Logarithms of ``1 - inclusion``, multiples of :data:`STEP`.
    """

    share: Floats
    inclusion: Floats
    logs: Floats


class Outlook(NamedTuple):
    """What engines' batches use, and what one request would add.

    Attributes
    ----------
    active : list of float, length n_engines
        Expected distinct experts of a step now, mean over the layers.
    growth : list of float, length n_engines
        How many the request would add.
    """

    active: list[float]
    growth: list[float]


class Unions:
    """The expected unions of a pool's engines.

    What is in flight and not known by its experts counts as so many requests of the pool's mean: requests without a
    signature, those that another router placed and has not reported, those from before this object was made.

    Attributes
    ----------
    version : int
        Grows with every join and leave.
    forgotten : int
        Engines forgotten: what was reported of them before is not taken back by a table of changes.

    Notes
    -----
    Inclusion probabilities come from the counts of the prompt: ``(c + a g) / (n + a)`` with ``a = 20`` tokens, shrunk
    towards the pool's mean ``g`` [1]_.

    References
    ----------
    .. [1] ELDR, arXiv 2607.00466, shows that prompts predict the experts of decode steps; the union as a quantity to place by
       is this project's, see ``docs/how-it-works.md``.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.version = self.forgotten = 0
        self._layers = _slice(shape.layers)
        self._mean = np.full(shape.cells, min(_CEILING, shape.top_k / shape.n_experts), dtype=np.float32)
        self._ones = np.ones(shape.cells, dtype=np.float32)
        # what an unattributed request adds to a logarithm, and of which mean that is
        self._unattributed_log: Floats = np.log(1.0 - self._mean)
        self._unattributed_as_of = 0
        self._seen = 0
        self._rows: dict[str, int] = {}
        self._logs = np.zeros((0, shape.cells), dtype=np.float32)
        self._survival = np.ones((0, shape.cells), dtype=np.float32)
        self._in_order: list[int] = []
        # who was asked about last, nearly always the same
        self._asked: list[str] = []
        self._asked_rows: list[int] = []
        self._changed: list[int] = []
        self._members: list[int] = []
        self._active: list[float] = []
        # of the survival as it stands: how many unattributed requests are in it (-1: it is to be computed again), and of which mean
        self._unattributed: list[int] = []
        self._as_of: list[int] = []
        self._others: dict[str, Mapping[str, tuple[int, Floats]]] = {}

    @property
    def requests(self) -> int:
        """Requests that the mean was made of."""
        return self._seen

    @property
    def reporters(self) -> int:
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
        # every call of NumPy costs about as much as its arithmetic: as few as possible
        share: Floats = counts[self._layers].astype(np.float32).reshape(-1)
        share *= 1.0 / tokens
        np.minimum(share, _CEILING, out=share)  # inexact counts may hold more than there are tokens
        inclusion = share - self._mean
        inclusion *= tokens / (tokens + _PRIOR_TOKENS)
        inclusion += self._mean
        # several times as fast as log1p, and near 1 as exact as the steps
        logs = np.log(1.0 - inclusion)
        logs += _ROUND
        logs -= _ROUND
        return Request(share, inclusion, logs)

    def outlook(
        self, request: Request | None, engines: Sequence[str], totals: Sequence[int], n: int = 1
    ) -> Outlook:
        """Return what a request of ``n`` sequences would find on some engines.

        Parameters
        ----------
        request : Request or None
            None: one of the pool's mean.
        engines : sequence of str
        totals : sequence of int
            Sequences in flight on each.
        n : int
        """
        inclusion = self._mean if request is None else request.inclusion
        if n > 1:
            inclusion = 1.0 - (1.0 - inclusion) ** np.float32(n)
        if engines != self._asked:
            self._asked, self._asked_rows = list(engines), [self._row(engine) for engine in engines]
        rows = self._asked_rows
        in_order = rows == self._in_order
        current = self._unattributed
        if (
            in_order and totals == self._members and not self._others and max(current, default=0) <= 0
        ):  # nearly always
            while -1 in current:
                self._refresh(current.index(-1), 0)
        else:
            self._refresh_all(engines, rows, totals)
        # not copied where they are in order
        survival = self._survival if in_order else self._survival[rows]
        growth = survival.dot(inclusion)
        growth /= len(self.shape.layers)
        active = self._active.copy() if in_order else [self._active[row] for row in rows]
        return Outlook(active, growth.tolist())

    def join(self, engine: str, request: Request, n: int = 1) -> Stay:
        """Let ``n`` sequences of a request join an engine's batch.

        The request counts in the pool's mean from then on.
        """
        row = self._row(engine)
        self._seen += 1
        change = request.share - self._mean
        change *= 1.0 / min(self._seen, _MEMORY)
        self._mean += change
        self._add(row, request.logs, n)
        return Stay(self, row, request.logs, n)

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone and have nothing in flight."""
        for engine, row in list(self._rows.items()):
            if engine not in engines and not self._members[row]:
                del self._rows[engine]
                self._asked = []
                self.forgotten += 1
                self._unattributed[row], self._changed[row] = -1, 0

    def table(self, since: int = 0) -> dict[str, tuple[int, Floats]]:
        """Return the sequences that joined here, and their log survival.

        Of engines where they changed since a version.
        """
        return {
            engine: (self._members[row], self._logs[row].copy())
            for engine, row in self._rows.items()
            if self._changed[row] > since
        }

    def merge(
        self, router: str, table: Mapping[str, tuple[int, Floats]], changed: Collection[str] | None = None
    ) -> None:
        """Merge another router's report of its sequences.

        An empty table if it reports nothing any longer.

        Parameters
        ----------
        router : str
        table : mapping of str to (int, ndarray of float32)
            Sequences and the sum of their log survivals by engine, as :meth:`table` returns them.
        changed : collection of str, optional
            Engines of which it reports something new; all of them without it.
        """
        before = self._others.pop(router, {})
        if table:
            self._others[router] = table
        for engine in {*before, *table} if changed is None else changed:
            if engine in self._rows:
                self._unattributed[self._rows[engine]] = -1

    def _add(self, row: int, logs: Floats, n: int) -> None:
        own = self._logs[row]
        if n == -1:
            own -= logs
        else:
            own += logs if n == 1 else logs * n
        self._members[row] += n
        self._unattributed[row] = -1
        self.version += 1
        self._changed[row] = self.version

    def _row(self, engine: str) -> int:
        row = self._rows.get(engine)
        if row is None:
            row = self._rows[engine] = self._free_row()
        return row

    def _free_row(self) -> int:
        free = set(range(len(self._members))).difference(self._rows.values())
        if free:
            return min(free)
        self._logs = np.vstack([self._logs, np.zeros((1, self.shape.cells), dtype=np.float32)])
        self._survival = np.vstack([self._survival, np.ones((1, self.shape.cells), dtype=np.float32)])
        self._changed.append(0)
        self._in_order.append(len(self._members))
        self._members.append(0)
        self._active.append(0.0)
        self._unattributed.append(-1)
        self._as_of.append(0)
        return len(self._members) - 1

    def _refresh_all(self, engines: Sequence[str], rows: Sequence[int], totals: Sequence[int]) -> None:
        oldest = self._seen - min(self._seen, _MEMORY) / _PATIENCE
        if self._unattributed_as_of < oldest:
            self._unattributed_log, self._unattributed_as_of = np.log(1.0 - self._mean), self._seen
        for engine, row, total in zip(engines, rows, totals, strict=True):
            reported = [table[engine] for table in self._others.values() if engine in table]
            unattributed = max(0, total - self._members[row] - sum(members for members, _ in reported))
            if unattributed != self._unattributed[row] or (unattributed and self._as_of[row] < oldest):
                self._refresh(row, unattributed, [logs for _, logs in reported])

    def _refresh(self, row: int, unattributed: int, reported: Sequence[Floats] = ()) -> None:
        logs: Floats = sum(reported, start=self._logs[row])
        if unattributed:
            logs = logs + unattributed * self._unattributed_log
        survival = np.exp(logs, out=self._survival[row])
        self._active[row] = (self.shape.cells - float(survival.dot(self._ones))) / len(self.shape.layers)
        self._unattributed[row] = unattributed
        self._as_of[row] = self._unattributed_as_of


def _slice(layers: Sequence[int]) -> slice | list[int]:
    """Return what indexes layers: a slice where their gaps are alike, which costs no copy."""
    step = layers[1] - layers[0] if len(layers) > 1 else 1
    even = slice(layers[0], layers[-1] + 1, step)
    return even if list(range(even.start, even.stop, step)) == list(layers) else list(layers)


class Stay:
    """A request's part in an engine's union; leaving twice is harmless."""

    __slots__ = ("_logs", "_n", "_row", "_unions")

    def __init__(self, unions: Unions, row: int, logs: Floats, n: int) -> None:
        self._unions: Unions | None = unions
        self._row = row
        self._logs = logs
        self._n = n

    def leave(self) -> None:
        """Take it out."""
        unions, self._unions = self._unions, None
        if unions is not None:
            unions._add(self._row, self._logs, -self._n)  # noqa: SLF001 - one unit with the unions
