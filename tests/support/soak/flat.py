"""Whether a process stays as large as it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process held at a moment: seconds since the beginning, bytes, open files."""

    at: float
    memory: int
    files: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory early and late in a run.

    Attributes
    ----------
    early, late, peak : int
        Bytes.
    """

    early: int
    late: int
    peak: int

    @property
    def problem(self) -> str:
        """The rule: no more than a tenth and 16 MiB above what it was early.

        The index of prompts (65,536 blocks) fills, the allocator keeps what it had at the worst moment, and collections
        come when they come. A leak of 1 KiB for each of 50,000 requests is beyond that.
        """
        if self.late <= 1.1 * self.early + 16 * MEBI:
            return ""
        return f"memory grew from {self.early / MEBI:.1f} to {self.late / MEBI:.1f} MiB"


def growth(samples: Sequence[Sample], seconds: float) -> Growth:
    """Compare the least memory of the second quarter with that of the last fifth: bodies on their way come and go."""
    second = [s.memory for s in samples if 0.25 * seconds <= s.at <= 0.5 * seconds]
    last = [s.memory for s in samples if s.at >= 0.8 * seconds]
    everything = [s.memory for s in samples]
    return Growth(min(second or everything), min(last or everything), max(everything))
