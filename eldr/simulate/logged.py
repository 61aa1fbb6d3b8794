"""Traffic from signature logs: one's own requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eldr.core.placement_sim import inclusion_probabilities
from eldr.fit.samples import FitError, Samples, make_samples, reservoir
from eldr.fit.sources import from_directories
from eldr.siglog import FrameReader, Record
from eldr.simulate.population import Population, Traffic, draw_steps

MIN_REQUESTS = 64
"""Fewer requests with known decode steps are no traffic: engines would hold the same ones over and over."""
_DRAWN_STEPS = 24
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """The requests of a log: the older half for calibration, the newer half to simulate.

    Attributes
    ----------
    model : str
    known : Traffic
    skipped : dict of str to int
        Records left out, by reason.
    """

    model: str
    known: Traffic
    skipped: dict[str, int]

    def traffic(self, seed: int) -> Traffic:
        """Return the log's requests; the seed does not change them."""
        del seed
        return self.known


def read_logs(
    paths: Sequence[Path], *, model: str | None, limit: int, seed: int, sampled: bool = False
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
    seed : int
    sampled : bool
        Whether to draw the experts of single decode steps as well.

    Raises
    ------
    FitError
        If a path is no log, or too little in it can be used; the message says what to do.
    """
    if model is None:
        names = Counter(record.model for record in _records(paths))
        if not names:
            raise FitError("NoSamples", f"{_names(paths)}: holds no record yet; send traffic and try again")
        model = names.most_common(1)[0][0]
    rng = np.random.default_rng([seed, 5])
    chosen, skipped = reservoir(_records(paths), limit, rng, model=model, since=0.0)
    samples = make_samples(chosen, skipped)
    known = _traffic(samples, rng, sampled=sampled)
    silent = len(samples) - len(samples) // 2 - len(known.requests)
    left_out = samples.skipped | (
        {"newer ones without activations of decode steps": silent} if silent else {}
    )
    return Logged(model, known, left_out)


def _traffic(samples: Samples, rng: np.random.Generator, *, sampled: bool) -> Traffic:
    half = len(samples) // 2
    calibration = samples.take(np.arange(half))
    newer = samples.take(np.arange(half, len(samples)))
    newer = newer.take(newer.decoded)
    # a layer without any expert: counts that an engine lost
    least = np.minimum(newer.prefill.sum(axis=2), newer.decode.sum(axis=2)).min(axis=1)
    newer = newer.take(np.flatnonzero(least > 0))
    n = len(newer)
    if n < MIN_REQUESTS:
        raise FitError(
            "NotEnoughSamples",
            f"{n} records of the log's newer half tell what their decode steps used, at least {MIN_REQUESTS} are needed; "
            "let routers log longer, with decode engines that report activations",
        )
    inclusion = inclusion_probabilities(newer.decode, newer.decode_tokens)
    logs = np.log1p(-inclusion).reshape(n, -1)
    shape = (samples.prefill.shape[1], samples.prefill.shape[2], samples.top_k)
    requests = Population(
        prefill=newer.prefill.astype(
            np.min_scalar_type(int(newer.prefill.max()))
        ),  # travels to every process
        prompt_tokens=np.maximum(
            1, np.rint(newer.prefill.sum(axis=(1, 2)) / (shape[0] * samples.top_k))
        ).astype(np.int64),
        logs=logs,
        steps=draw_steps(logs, shape, _DRAWN_STEPS, rng) if sampled else None,
        label=np.zeros(n, dtype=np.int64),
        labels=("all",),
        shares=(1.0,),
        later=None,
        # the first step computes the prompt's last token again and is not counted
        output_tokens=newer.decode_tokens.astype(np.int64) + 1,
        top_k=samples.top_k,
    )
    return Traffic(calibration, requests)


def _records(paths: Sequence[Path]) -> Iterator[Record]:
    for path in paths:
        if path.is_dir():
            yield from from_directories([path])
        else:
            yield from _segment(path)


def _segment(path: Path) -> Iterator[Record]:
    reader = FrameReader()
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            yield from reader.feed(data)
    if reader.damaged and not reader.valid_bytes:
        raise FitError(
            "NoLog",
            f"{path}: is no signature log ({reader.damaged}); expected a router's --log-dir or a *.siglog file",
        )


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)
