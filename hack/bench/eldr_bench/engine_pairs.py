"""An engine with the plug-in and one without it, asked the same in turns."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from eldr_bench.engine_child import Child, Kind, Work
from eldr_bench.proof import require

WARM_UP = 3
PLUGIN, LOG = "plugin", "engines.log"
"""In the folder of a measurement."""
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)
"""Student's t for a two-sided 95 %, by degrees of freedom from 1 on."""


@contextlib.contextmanager
def pair(kind: Kind, role: str, folder: Path, turn: int) -> Iterator[tuple[Child, Child]]:
    """Start an engine without and one with the plug-in, in an order that changes by turn."""
    wanted = kind.setting.mode
    with (folder / LOG).open("ab") as log, contextlib.ExitStack() as stack:
        found = {}
        for counting in (False, True) if turn % 2 else (True, False):
            found[counting] = Child(kind, role, folder / PLUGIN if counting else None, log)
            stack.callback(found[counting].close)
        modes = {child.begin() for child in found.values()}
        right = modes == {wanted} if wanted else len(modes) == 1
        require(right, f"what computes and schedules is {modes}, not {wanted or 'the same in both'}")
        yield found[False], found[True]


@contextlib.contextmanager
def _with_its_log(folder: Path) -> Iterator[None]:
    """Show the end of the engines' log where one of them ends."""
    try:
        yield
    except RuntimeError:
        click.echo((folder / LOG).read_text(errors="replace")[-4000:], err=True)
        raise


def measure(
    kind: Kind, wanted: Sequence[Work], folder: Path, *, starts: int, rounds: int
) -> dict[str, np.ndarray]:
    """Return seconds of everything that is compared, each of shape (starts, rounds, 2)."""
    found: dict[str, np.ndarray] = {
        name: np.empty((starts, rounds, 2)) for work in wanted for name in work.names()
    }
    for start, role in itertools.product(range(starts), sorted({work.role for work in wanted})):
        with _with_its_log(folder), pair(kind, role, folder, start) as engines:
            for work in (work for work in wanted if work.role == role):
                for turn in range(-WARM_UP, rounds):
                    for which in (0, 1) if turn % 2 else (1, 0):
                        spent = engines[which].run(work, turn + WARM_UP)
                        if turn >= 0:
                            for name, seconds in zip(work.names(), spent, strict=True):
                                found[name][start, turn, which] = seconds
    return found


def interval(seconds: np.ndarray) -> tuple[float, float]:
    """Return what the plug-in adds, percent, and the half-width of its 95 % interval over starts of the engines."""
    ratios = np.median(seconds[..., 1] / seconds[..., 0], axis=1)
    wide = T95[min(len(ratios) - 1, len(T95)) - 1] * ratios.std(ddof=1) / len(ratios) ** 0.5
    return 100 * (float(ratios.mean()) - 1), 100 * float(wide)
