"""Traffic from signature logs: one's own requests."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eldr.core.placement_sim import inclusion_probabilities
from eldr.fit.samples import FitError, Samples, make_samples, reservoir
from eldr.siglog import FrameReader, Record, segments
from eldr.simulate.population import Population

MIN_REQUESTS = 64
"""Fewer requests with known decode steps are no traffic: engines would hold the same ones over and over."""
_CHUNK = 1 << 18


class Logged(NamedTuple):
    """The requests of a log: the older half for calibration, the newer half to simulate.

    Attributes
    ----------
    rate : float or None
        Logged requests per second, those that are not simulated included; None if the clocks of routers are inconsistent.
    words : str
        What the requests are, for people.
    """

    calibration: Samples
    requests: Population
    rate: float | None
    words: str


def read_logs(
    paths: Sequence[Path],
    *,
    model: str | None,
    limit: int = 4000,
    last: float = math.inf,
) -> Logged:
    """Read logs.

    Parameters
    ----------
    paths : sequence of Path
        Log directories, or single segments.
    model : str, optional
        Served name; None: the one with the most records.
    limit : int
        Records kept, chosen uniformly: as many as a fit takes.
    last : float
        How far back from the model's newest record to go, seconds.

    Raises
    ------
    FitError
        If a path is no log, or too little in it can be used; the message names the remedy.
    """
    # each once, however often it is named: no request may be in both halves
    files = list(
        {
            file.resolve(): file for path in paths for file in (segments(path) if path.is_dir() else [path])
        }.values()
    )
    came: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    for record in _records(files):
        came[record.model].append(record.time)
    if not came or (model and model not in came):
        raise FitError(
            "NoSamples",
            f"{', '.join(map(str, paths))}: no request of {model or 'any model'}, but of {sorted(came)}; raise samplePercent, or send more",
        )
    model = model or max(came, key=lambda name: len(came[name]))
    times = np.array(came[model])
    times = times[np.isfinite(times)]
    rng = np.random.default_rng([0, 5])
    chosen, skipped = reservoir(
        _records(files), limit, rng, model=model, since=float(times.max(initial=0.0)) - last
    )
    samples = make_samples(chosen, skipped)
    older, newer = np.split(np.arange(len(samples)), [len(samples) // 2])
    known = samples.take(newer)
    known = known.take(known.decoded)
    n = len(known)
    left_out = "".join(f", {count} left out ({reason})" for reason, count in samples.skipped.items())
    if n < MIN_REQUESTS:
        raise FitError(
            "NotEnoughSamples",
            f"{n} records of the log's newer half have the experts of their decode steps, {MIN_REQUESTS} are needed{left_out}; let routers log longer",
        )
    rate = None
    if known.times is not None and (span := np.ptp(known.times)) > 0:
        meanwhile = np.count_nonzero((times >= known.times[0]) & (times <= known.times[-1]))
        rate = float((meanwhile - 1) / span)
    words = f"Requests of {model!r} from the log: centroids from the older {len(older)}, simulated are the newer {n}{left_out}."
    return Logged(samples.take(older), _population(known), rate, words)


def _population(samples: Samples) -> Population:
    n, n_layers, _ = samples.prefill.shape
    inclusion = inclusion_probabilities(samples.decode, samples.decode_tokens)
    tokens = np.rint(samples.prefill.sum(axis=(1, 2)) / (n_layers * samples.top_k))
    return Population(
        prefill=samples.prefill,
        prompt_tokens=np.maximum(1, tokens).astype(np.int64),
        logs=np.log1p(-inclusion).reshape(n, -1),
        # the first step computes the prompt's last token again and is not counted
        output_tokens=samples.decode_tokens.astype(np.int64) + 1,
        top_k=samples.top_k,
    )


def _records(files: Sequence[Path]) -> Iterator[Record]:
    """Yield the records of segments, of each one up to its first damaged frame."""
    for path in files:
        reader = FrameReader()
        with suppress(OSError), path.open("rb") as file:  # routers drop their oldest segments
            while data := file.read(_CHUNK):
                yield from reader.feed(data)
