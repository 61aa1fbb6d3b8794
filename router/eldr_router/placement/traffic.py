"""Requests counted by similarity to the active centroid set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eldr.contract import SIMILARITY_BINS
from eldr.core.similarity_bins import similarity_bin


class Traffic:
    """Counts since a set became active."""

    def __init__(self) -> None:
        self._epoch = 0
        self._digest = ""
        self.requests = 0
        self.outside_band = 0
        self.logged = 0
        self.busiest_in_flight = 0
        self.mean_in_flight = 0.0
        self.similarity: list[int] = []
        self.clusters: list[int] = []

    def follow(self, epoch: int, digest: str, k: int) -> None:
        """Count for a set; a new or reactivated one begins at zero."""
        if (epoch, digest) == (self._epoch, self._digest):
            return
        self._epoch, self._digest = epoch, digest
        self.requests = self.outside_band = self.logged = self.busiest_in_flight = 0
        self.mean_in_flight = 0.0
        self.similarity = [0] * SIMILARITY_BINS
        self.clusters = [0] * k

    def count(self, scores: list[float], slot: int, tau: float, in_flight: Sequence[int]) -> None:
        """Count a request; one that met another set than is followed is left out.

        Parameters
        ----------
        scores : list of float
            Its cosine to each centroid.
        slot : int
            Where it was placed; -1 or one without a centroid belongs to no band.
        tau : float
            Width of the band.
        in_flight : sequence of int
            Of each engine with room, at least one, before this request.
        """
        if len(scores) != len(self.clusters):
            return
        best = max(scores)
        self.requests += 1
        self.similarity[similarity_bin(best)] += 1
        self.clusters[scores.index(best)] += 1
        self.busiest_in_flight += max(in_flight)
        self.mean_in_flight += sum(in_flight) / len(in_flight)
        if not (0 <= slot < len(scores) and scores[slot] >= best - tau):
            self.outside_band += 1

    def wrote(self, records: int) -> None:
        """Count records of the signature log."""
        self.logged += records

    def state(self) -> dict[str, Any] | None:
        """Return ``traffic`` of the router's state; None without a set."""
        if not self._digest:
            return None
        return {
            "epoch": self._epoch,
            "digest": self._digest,
            "requests": self.requests,
            "similarity": self.similarity,
            "clusters": self.clusters,
            "outside_band": self.outside_band,
            "logged": self.logged,
            "busiest_in_flight": self.busiest_in_flight,
            "mean_in_flight": self.mean_in_flight,
        }
