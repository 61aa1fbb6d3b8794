"""Traffic from signature logs: one's own requests."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eldr.core.placement_sim import inclusion_probabilities
from eldr.fit.samples import TOO_OLD, FitError, Samples, make_samples, reservoir
from eldr.siglog import FrameReader, Record, segments
from eldr.simulate.population import Arrivals, Population, Traffic

MIN_REQUESTS = 64
"""Fewer requests with known decode steps are no traffic: engines would hold the same ones over and over."""
_CHUNK = 1 << 18
_TOLERANCE = 0.5  # of tokens x experts per token, in each layer


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """The requests of a log: the older half for calibration, the newer half to simulate.

    Attributes
    ----------
    skipped : dict of str to int
        Records left out, by reason.
    damaged : tuple of str
        Files that could be read in part only, and why.
    """

    model: str
    known: Traffic
    skipped: dict[str, int]
    damaged: tuple[str, ...] = ()

    def traffic(self, seed: int) -> Traffic:
        """Return the log's requests; the seed does not change them."""
        del seed
        return self.known


def read_logs(
    paths: Sequence[Path],
    *,
    model: str | None,
    limit: int,
    seed: int,
    last: float = math.inf,
    share: float = 1.0,
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
    share : float
        Of the requests that were logged, above 0.

    Raises
    ------
    FitError
        If a path is no log, or too little in it can be used; the message names the remedy.
    """
    # each once, however often it is named: no request may be in both halves
    files = list({file.resolve(): file for path in paths for file in _files(path)}.values())
    damaged: dict[Path, str] = {}
    came: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    for record in _records(files, damaged):
        came[record.model].append(record.time)
    if not came:
        where = ", ".join(str(path) for path in paths)
        raise FitError(
            "NoSamples", f"{where}: holds no record yet, or is no signature log; send traffic and try again"
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
    rng = np.random.default_rng([seed, 5])
    chosen, skipped = reservoir(
        _records(files, damaged), limit, rng, model=model, since=float(times.max(initial=0.0)) - last
    )
    problems = tuple(f"{file} could be read only {reason}" for file, reason in damaged.items())
    try:
        samples = make_samples(chosen, skipped)
        known = _traffic(samples, times, share=share)
    except FitError as error:
        raise FitError(error.reason, "; ".join((str(error), *problems))) from None
    silent = len(samples) - len(samples) // 2 - len(known.requests)
    left_out = samples.skipped | (
        {"newer ones without the experts of their decode steps": silent} if silent else {}
    )
    return Logged(model, known, left_out, problems)


def _traffic(samples: Samples, times: npt.NDArray[np.float64], *, share: float) -> Traffic:
    shape = (samples.prefill.shape[1], samples.prefill.shape[2], samples.top_k)
    half = len(samples) // 2
    calibration = samples.take(np.arange(half))
    newer = samples.take(np.arange(half, len(samples)))
    newer = newer.take(newer.decoded)
    newer = newer.take(_credible(newer))
    n = len(newer)
    if n < MIN_REQUESTS:
        raise _too_few(n, samples.skipped)
    inclusion = inclusion_probabilities(newer.decode, newer.decode_tokens)
    logs = np.log1p(-inclusion).reshape(n, -1)
    requests = Population(
        prefill=newer.prefill.astype(
            np.min_scalar_type(int(newer.prefill.max()))
        ),  # travels to every process
        prompt_tokens=np.maximum(
            1, np.rint(newer.prefill.sum(axis=(1, 2)) / (shape[0] * samples.top_k))
        ).astype(np.int64),
        logs=logs,
        steps=None,
        label=np.zeros(n, dtype=np.int64),
        labels=("all",),
        shares=(1.0,),
        # the first step computes the prompt's last token again and is not counted
        output_tokens=newer.decode_tokens.astype(np.int64) + 1,
        top_k=samples.top_k,
        arrivals=_arrivals(newer, times, share),
    )
    return Traffic(calibration, requests)


def _too_few(n: int, skipped: Mapping[str, int]) -> FitError:
    """Return what is wrong and what helps."""
    remedy = "let routers log longer, with decode engines that report activations"
    if older := skipped.get(TOO_OLD, 0):
        remedy = f"{older} were older than the look-back: raise --last-minutes, or {remedy}"
    return FitError(
        "NotEnoughSamples",
        f"{n} records of the log's newer half have the experts of their decode steps; at least {MIN_REQUESTS} are needed; {remedy}",
    )


def _arrivals(samples: Samples, times: npt.NDArray[np.float64], share: float) -> Arrivals | None:
    """Return when samples came, and how many logged requests came meanwhile; None if their clocks are inconsistent."""
    if samples.times is None:
        return None
    first, last = samples.times[[0, -1]].tolist()
    if last <= first:
        return None
    gaps = np.diff(samples.times)
    meanwhile = np.count_nonzero((times >= first) & (times <= last))
    return Arrivals(np.append(gaps, gaps.mean()), (meanwhile - 1) / (last - first) / share)


def _credible(samples: Samples) -> npt.NDArray[np.intp]:
    """Return the positions of samples each of whose layers chose about as many experts as its tokens do."""
    ratio = samples.decode.sum(axis=2) / (samples.decode_tokens[:, None] * float(samples.top_k))
    fine = (abs(ratio - 1.0) < _TOLERANCE) & (samples.prefill.sum(axis=2) > 0)
    return np.flatnonzero(fine.all(axis=1))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if files := segments(path):
        return files
    raise FitError(
        "NoLog",
        f"{path}: holds no signature log (*.siglog); name each router's own folder with a --log of its own",
    )


def _records(files: Sequence[Path], damaged: dict[Path, str]) -> Iterator[Record]:
    """Yield the records of segments up to each one's first damaged frame, which ``damaged`` records."""
    for path in files:
        reader = FrameReader()
        try:
            with path.open("rb") as file:
                while data := file.read(_CHUNK):
                    yield from reader.feed(data)
        except OSError as error:  # routers drop their oldest segments
            damaged[path] = f"up to byte {reader.valid_bytes} ({error.strerror})"
        if not reader.damaged:
            continue
        if not reader.valid_bytes and len(files) == 1:
            raise FitError(
                "NoLog",
                f"{path}: is no signature log ({reader.damaged}); expected a router's --log-dir or a *.siglog file",
            )
        damaged[path] = f"up to byte {reader.valid_bytes} ({reader.damaged})"
