"""What a comparison found, as lines and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from eldr.compare.effect import LEAST, Change, change
from eldr.compare.figures import Figures

VERSION: Final = 1
"""Of the JSON document; fields may be added, none changes its meaning."""
_FIGURES: Final = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "throughput"}


class Window(Protocol):
    """A measured window; see :class:`eldr.compare.run.Measured`."""

    @property
    def pair(self) -> int:
        """Its pair."""

    @property
    def policy(self) -> str:
        """The policy in effect."""

    @property
    def figures(self) -> Figures | str:
        """What was measured, or why nothing was."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a deployment's own policy does against another one.

    Attributes
    ----------
    changes : dict
        By figure; None where too few pairs are complete.
    means : dict
        By figure: the mean of the own policy's windows, and of the other's.
    left_out : tuple of str
        Why windows are not counted.
    """

    own: str
    against: str
    seed: int
    pairs: int
    requests: int
    changes: dict[str, Change | None]
    means: dict[str, tuple[float, float]]
    left_out: tuple[str, ...]


def report(windows: Sequence[Window], order: Iterable[bool], own: str, against: str, seed: int) -> Report:
    """Return what windows say.

    Parameters
    ----------
    order : iterable of bool
        Whether each had the deployment's own policy.
    """
    by_pair: dict[int, dict[bool, Figures]] = {}
    left_out: list[str] = []
    for window, is_own in zip(windows, order, strict=False):
        if isinstance(window.figures, str):
            left_out.append(f"pair {window.pair + 1}, {window.policy}: {window.figures}")
        else:
            by_pair.setdefault(window.pair, {})[is_own] = window.figures
    pairs = [(one[True], one[False]) for one in by_pair.values() if len(one) == 2]
    columns = {name: [(getattr(a, name), getattr(b, name)) for a, b in pairs] for name in _FIGURES}
    means = {
        name: (sum(a for a, _ in rows) / len(rows), sum(b for _, b in rows) / len(rows))
        for name, rows in columns.items()
        if rows
    }
    return Report(
        own=own,
        against=against,
        seed=seed,
        pairs=len(pairs),
        requests=sum(a.requests + b.requests for a, b in pairs),
        changes={name: change(rows) for name, rows in columns.items()},
        means=means,
        left_out=tuple(left_out),
    )


def document(outcome: Report) -> dict[str, Any]:
    """Return it as JSON; see ``docs/reference/compare.md``."""
    fields: dict[str, Any] = {
        "version": VERSION,
        "policy": outcome.own,
        "against": outcome.against,
        "seed": outcome.seed,
        "pairs": outcome.pairs,
        "requests": outcome.requests,
        "left_out": list(outcome.left_out),
    }
    for name, one in outcome.changes.items():
        own, against = outcome.means.get(name, (None, None))
        parts = None if one is None else _percent(one)
        fields[name] = {"own": own, "against": against, "change": parts}
    return fields


def _percent(one: Change) -> dict[str, float]:
    named = {"change": one.change, "low": one.low, "high": one.high}
    return {f"{name}_percent": round(100 * value, 3) for name, value in named.items()}


def lines(outcome: Report) -> Iterator[str]:
    """Yield the screen."""
    yield f"{outcome.own} against {outcome.against}: {outcome.pairs} pairs of windows, {outcome.requests} requests, seed {outcome.seed}"
    for why in outcome.left_out:
        yield f"left out: {why}"
    if outcome.pairs < LEAST:
        yield f"fewer than {LEAST} pairs are complete: nothing can be said"
        return
    yield ""
    for name, label in _FIGURES.items():
        one = outcome.changes[name]
        own, against = (_value(name, value) for value in outcome.means[name])
        if one is not None:
            yield f"{label:<12}{against:>16} -> {own:<16}{_shown(one)}"
    yield ""
    yield "These are 95 % intervals over pairs of neighbouring windows. An interval that includes 0 shows no significant difference."


def _value(name: str, value: float) -> str:
    return f"{value:.1f} tokens/s" if name == "throughput" else f"{1e3 * value:.1f} ms"


def _shown(one: Change) -> str:
    interval = f"{100 * one.change:+.1f} % ({100 * one.low:+.1f} to {100 * one.high:+.1f})"
    return interval if one.is_significant else f"{interval}, no significant difference"
