"""Who is disturbed when, and what the worker file says meanwhile. Pure: chance is an argument."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LEASE = 3.0
"""Seconds, of the prefill engines' results; the router is told the same, or less."""
ROOM = 2048
"""Sequences that every engine may run: those of all clients together fit, so only a disturbance explains a 429."""
_TAIL = 6.0
_CALM = 10.0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something that is done to processes.

    Attributes
    ----------
    at : float
        Seconds since the beginning.
    kind : str
        ``kill``: engines end by kill -9 and come back after ``seconds``. ``stop``: they stand still so long. ``freeze``:
        the routers do. ``alone``: the last router does, and its peers serve on. ``late``: engines stand still, then the routers, beyond every lease; the engines go on first, so that
        what they say lies before the routers when they wake.
    engines : tuple of str
    seconds : float
    """

    at: float
    kind: str
    engines: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Reload:
    """A change of the worker file.

    Attributes
    ----------
    at : float
    without : tuple of str
        Engines that are left out.
    dead : bool
        One that does not exist is named.
    fields : dict
        Settings.
    """

    at: float
    without: tuple[str, ...] = ()
    dead: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


def disturbances(
    rng: random.Random, seconds: float, prefill: Sequence[str], decode: Sequence[str]
) -> list[Disturbance]:
    """Draw disturbances in decks: each one holds every kind, then comes a calm that must show no failure at all."""
    drawn: list[Disturbance] = []
    at = 2.0
    while True:
        long = LEASE + rng.uniform(0.3, 1.2)
        deck = [
            ("kill", (rng.choice(decode),), rng.uniform(0.0, 1.5)),
            ("kill", (rng.choice(prefill),), rng.uniform(0.0, 1.5)),
            ("kill", (rng.choice(prefill), rng.choice(decode)), rng.uniform(0.0, 1.0)),
            ("stop", (rng.choice(decode),), long),
            ("stop", (rng.choice(prefill),), long),
            ("stop", (rng.choice(prefill), rng.choice(decode)), rng.choice([0.7, long])),
            ("freeze", (), long),
            ("freeze", (), rng.uniform(0.6, 1.2)),
            ("alone", (), long),
            ("late", tuple(decode), LEASE),
            ("late", tuple(decode), LEASE),
        ]
        rng.shuffle(deck)
        for kind, engines, duration in deck:
            if at + duration + _TAIL > seconds:
                return drawn
            drawn.append(Disturbance(at, kind, engines, duration))
            at += duration + (1.5 if kind == "late" else 0.0) + rng.uniform(0.3, 1.0)
        at += _CALM


def reloads(
    rng: random.Random, seconds: float, prefill: Sequence[str], decode: Sequence[str]
) -> list[Reload]:
    """Draw worker files; the last one is the first again."""
    drawn: list[Reload] = []
    at = rng.uniform(2.0, 4.0)
    while at < seconds - _TAIL:
        without = []
        if rng.random() < 0.3:
            without.append(rng.choice(prefill))
        if rng.random() < 0.4:
            without.append(rng.choice(decode))
        fields: dict[str, Any] = {
            "policy": rng.choice(
                ["MarginalUnion", "MarginalUnion", "ELDR", "JSQ", "RoundRobin", "PowerOfTwo", "Random"]
            ),
            "max_in_flight": rng.choice([2, 8, ROOM, ROOM, ROOM, ROOM]),
            "lease_seconds": rng.choice([LEASE, LEASE, LEASE - 0.5]),
            "sample_rate": rng.choice([0.0, 0.5, 1.0]),
        }
        drawn.append(Reload(at, tuple(without), dead=rng.random() < 0.3, fields=fields))
        at += rng.uniform(2.0, 6.0)
    return [*drawn, usual(seconds)]


def usual(at: float = 0.0) -> Reload:
    """Return the worker file of the beginning, and of the end."""
    return Reload(
        at,
        fields={"policy": "MarginalUnion", "max_in_flight": ROOM, "lease_seconds": LEASE, "sample_rate": 1.0},
    )
