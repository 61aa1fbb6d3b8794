"""Traffic from signature logs: one's own requests."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eldr.core.placement_sim import inclusion_probabilities
from eldr.fit.samples import TOO_OLD, FitError, Samples, make_samples, reservoir
from eldr.siglog import FrameReader, Record, segments
from eldr.simulate.population import Population, Traffic

MIN_REQUESTS = 64
"""Fewer requests with known decode steps are no traffic: engines would hold the same ones over and over."""
_CHUNK = 1 << 18
_SPAN = 16  # requests, in the mean
_BURSTY = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """The requests of a log: the older half for calibration, the newer half to simulate.

    Attributes
    ----------
    rate : float or None
        Logged requests per second, those that are not simulated included; None if the clocks of routers are inconsistent.
    skipped : dict of str to int
        Records left out, by reason.
    notes : tuple of str
        Caveats of the figures.
    """

    model: str
    traffic: Traffic
    rate: float | None
    skipped: dict[str, int]
    notes: tuple[str, ...]

    @property
    def words(self) -> str:
        """What the requests are, for people."""
        skipped = "".join(f", {count} left out ({reason})" for reason, count in self.skipped.items())
        return (
            f"Requests of {self.model!r} from the log: centroids from the older {len(self.traffic.calibration)}, simulated are the "
            f"newer {len(self.traffic.requests)}{skipped}."
        )


def read_logs(
    paths: Sequence[Path],
    *,
    model: str | None,
    limit: int,
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
        Records kept, chosen uniformly.
    last : float
        How far back from the model's newest record to go, seconds.

    Raises
    ------
    FitError
        If a path is no log, or too little in it can be used; the message names the remedy.
    """
    # each once, however often it is named: no request may be in both halves
    files = list({file.resolve(): file for path in paths for file in _files(path)}.values())
    came: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    for record in _records(files):
        came[record.model].append(record.time)
    if not came:
        where = ", ".join(str(path) for path in paths)
        raise FitError(
            "NoSamples",
            f"{where}: holds no record that can be read; if it is a signature log, raise spec.signatures.samplePercent if it is low, send traffic, "
            "and try again",
        )
    if model is not None and model not in came:
        raise FitError(
            "NoSamples",
            f"--model {model}: the logs hold records of {', '.join(sorted(came))} only; name one of these",
        )
    if model is None:
        model = max(came, key=lambda name: len(came[name]))
    times = np.array(came[model])
    times = times[np.isfinite(times)]
    rng = np.random.default_rng([0, 5])
    chosen, skipped = reservoir(
        _records(files), limit, rng, model=model, since=float(times.max(initial=0.0)) - last
    )
    samples = make_samples(chosen, skipped)
    half = len(samples) // 2
    newer = samples.take(np.arange(half, len(samples)))
    known = newer.take(newer.decoded)
    if len(known) < MIN_REQUESTS:
        raise _too_few(len(known), samples.skipped)
    silent = len(newer) - len(known)
    left_out = samples.skipped | (
        {"newer ones without the experts of their decode steps": silent} if silent else {}
    )
    traffic = Traffic(samples.take(np.arange(half)), _population(known))
    rate, notes = None, []
    if known.times is not None and (span := np.ptp(known.times)) > 0:
        came_meanwhile = np.count_nonzero((times >= known.times[0]) & (times <= known.times[-1]))
        rate = float((came_meanwhile - 1) / span)
        if (burstiness := _burstiness(known.times)) > _BURSTY:
            bursts = f"{burstiness:.0f} times the variance of random ones"
            notes.append(f"the log's requests come in bursts ({bursts}), simulated ones do not")
    return Logged(model, traffic, rate, left_out, tuple(notes))


def _population(samples: Samples) -> Population:
    n, n_layers, _ = samples.prefill.shape
    inclusion = inclusion_probabilities(samples.decode, samples.decode_tokens)
    tokens = np.rint(samples.prefill.sum(axis=(1, 2)) / (n_layers * samples.top_k))
    return Population(
        prefill=samples.prefill.astype(
            np.min_scalar_type(int(samples.prefill.max()))
        ),  # travels to every process
        prompt_tokens=np.maximum(1, tokens).astype(np.int64),
        logs=np.log1p(-inclusion).reshape(n, -1),
        steps=None,
        label=np.zeros(n, dtype=np.int64),
        labels=("all",),
        shares=(1.0,),
        # the first step computes the prompt's last token again and is not counted
        output_tokens=samples.decode_tokens.astype(np.int64) + 1,
        top_k=samples.top_k,
    )


def _burstiness(times: npt.NDArray[np.float64]) -> float:
    """Return the variance of the number of requests in equal spans over its mean: about 1 where they come at random."""
    counts, _ = np.histogram(times, max(2, len(times) // _SPAN))
    return float(counts.var() / counts.mean())


def _too_few(n: int, skipped: Mapping[str, int]) -> FitError:
    """Return what is wrong and what helps."""
    remedy = "let routers log longer, with decode engines that report activations"
    if older := skipped.get(TOO_OLD, 0):
        remedy = f"{older} were older than the look-back: raise --last-minutes, or {remedy}"
    return FitError(
        "NotEnoughSamples",
        f"{n} records of the log's newer half have the experts of their decode steps; at least {MIN_REQUESTS} are needed; {remedy}",
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if files := segments(path):
        return files
    raise FitError(
        "NoLog",
        f"{path}: holds no signature log (*.siglog); name each router's own folder with a --log of its own",
    )


def _records(files: Sequence[Path]) -> Iterator[Record]:
    """Yield the records of segments, of each one up to its first damaged frame."""
    for path in files:
        reader = FrameReader()
        with suppress(OSError), path.open("rb") as file:  # routers drop their oldest segments
            while data := file.read(_CHUNK):
                yield from reader.feed(data)
