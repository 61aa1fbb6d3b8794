"""Synthetic activations: kinds of requests that prefer experts, as strongly as published ones do.

A logit per layer and expert is the sum of what all requests share, what a domain, a sub-domain and the request itself add.
Strengths were chosen so that batches of one domain use as many experts fewer than mixed ones as the paper reports
(task 16 to 20 %, language 5 to 7 %), and prompts predict decode steps as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats
from eldr.fit.samples import Samples
from eldr.simulate.population import Ints
from eldr_lab.synthetic.population import Population, Traffic, draw_steps

_DRAWN_STEPS = 24  # of each request, then repeated: batches mix their phases
_CALIBRATED_TOKENS = 511


@dataclass(frozen=True, slots=True)
class Geometry:
    """Mixture-of-experts layers of a model: experts per layer, experts per token."""

    n_experts: int
    top_k: int


QWEN3_30B = Geometry(128, 8)


@dataclass(frozen=True, slots=True)
class Strengths:
    """Standard deviations of the logits' parts, and the mix.

    Attributes
    ----------
    prompt : float
        What prompts alone add, for all requests and for each domain.
    shares : tuple of float
        Of the domains, to any sum.
    subdomains : int
        Per domain, Zipf distributed.
    shared : bool
        Whether the domains have their sub-domains in common, as languages have topics.
    """

    general: float
    domain: float
    subdomain: float
    request: float
    prompt: float
    labels: tuple[str, ...]
    shares: tuple[float, ...]
    subdomains: int
    shared: bool


WORKLOADS = {
    "task": Strengths(
        0.8, 1.2, 0.7, 0.6, 0.5,
        ("legal", "code", "maths", "medical"), (3600, 2779, 2744, 2545), 6, shared=False,
    ),
    "language": Strengths(
        0.8, 0.8, 1.1, 0.7, 0.5,
        ("en", "zh", "third", "fourth", "others"), (52, 23, 8, 4.6, 12.4), 12, shared=True,
    ),
}  # fmt: skip


class _Drawn(NamedTuple):
    prefill: npt.NDArray[np.uint16]
    prompt_tokens: Ints
    logs: Floats


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A workload drawn anew for each seed, the model's preferences included.

    Attributes
    ----------
    n_layers : int
        Layers simulated; they stand for all of a model.
    calibration, requests : int
        How many to draw: by share, and as many of every label.
    sampled : bool
        Whether to draw the experts of single steps as well.
    """

    strengths: Strengths
    geometry: Geometry
    n_layers: int = 8
    calibration: int = 1000
    requests: int = 4000
    sampled: bool = False

    def traffic(self, seed: int) -> Traffic:
        """Return the traffic of one seed."""
        rng = np.random.default_rng([seed, 0])
        model = _Preferences(self.strengths, self.geometry, self.n_layers, rng)
        shares = normalised(self.strengths.shares)
        n_labels = len(shares)
        fitted = model.draw(rng.choice(n_labels, self.calibration, p=shares), rng)
        label = np.arange(self.requests, dtype=np.int64) % n_labels
        drawn = model.draw(label, rng)
        shape = (self.n_layers, self.geometry.n_experts, self.geometry.top_k)
        inclusion = -np.expm1(fitted.logs.reshape(len(fitted.logs), *shape[:2]))
        calibration = Samples(
            prefill=fitted.prefill.astype(np.uint32),
            decode=rng.binomial(_CALIBRATED_TOKENS, inclusion).astype(np.uint32),
            decode_tokens=np.full(self.calibration, _CALIBRATED_TOKENS),
            in_flight=np.full(self.calibration, 32),
            top_k=self.geometry.top_k,
            skipped={},
        )
        requests = Population(
            prefill=drawn.prefill,
            prompt_tokens=drawn.prompt_tokens,
            logs=drawn.logs,
            steps=draw_steps(drawn.logs, shape, _DRAWN_STEPS, rng) if self.sampled else None,
            label=label,
            labels=self.strengths.labels,
            shares=shares,
            output_tokens=None,
            top_k=self.geometry.top_k,
        )
        return Traffic(calibration, requests)


def normalised(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return shares that sum to 1."""
    total = sum(shares)
    return tuple(share / total for share in shares)


class _Preferences:
    """The logits of one model."""

    def __init__(
        self, strengths: Strengths, geometry: Geometry, n_layers: int, rng: np.random.Generator
    ) -> None:
        cells = (n_layers, geometry.n_experts)
        n_domains = len(strengths.labels)
        self._strengths, self._top_k, self._cells = strengths, geometry.top_k, cells
        self._general = rng.normal(0, strengths.general, cells)
        self._domain = rng.normal(0, strengths.domain, (n_domains, *cells))
        owners = 1 if strengths.shared else n_domains
        self._subdomain = rng.normal(0, strengths.subdomain, (owners, strengths.subdomains, *cells))
        zipf = 1 / np.arange(1, strengths.subdomains + 1)
        self._zipf = zipf / zipf.sum()
        self._prompt = rng.normal(0, strengths.prompt, cells) + rng.normal(
            0, strengths.prompt, (n_domains, *cells)
        )

    def draw(self, domain: npt.NDArray[np.integer], rng: np.random.Generator) -> _Drawn:
        """Draw a request of each given domain."""
        parts = [self._some(some, rng) for some in np.array_split(domain, max(1, len(domain) // 500))]
        return _Drawn(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _some(self, domain: npt.NDArray[np.integer], rng: np.random.Generator) -> _Drawn:
        n, strengths = len(domain), self._strengths
        topic = rng.choice(strengths.subdomains, n, p=self._zipf)
        owner = 0 if strengths.shared else domain
        base = self._general + self._domain[domain] + self._subdomain[owner, topic]
        own = rng.normal(0, strengths.request, (n, *self._cells))
        noise = rng.normal(0, 0.6 * strengths.request, base.shape)
        tokens = np.clip(rng.lognormal(np.log(110), 0.8, n), 8, 1024).astype(np.int64)
        prompt = -np.expm1(_log_survival(base + self._prompt[domain] + 0.8 * own + noise, self._top_k))
        prefill = rng.binomial(tokens[:, None, None], prompt).astype(np.uint16)
        return _Drawn(prefill, tokens, _log_survival(base + own, self._top_k).reshape(n, -1))


def _log_survival(logits: npt.NDArray[np.float64], top_k: int) -> Floats:
    """Return ``log(1 - p)`` of top-k sampling: ``p = 1 - exp(-x w)`` with x such that each layer's sum to k.

    Parameters
    ----------
    logits : ndarray, shape (..., n_experts)
    """
    weight = np.exp(logits - logits.max(axis=-1, keepdims=True)).astype(np.float32)
    x = top_k / weight.sum(axis=-1, keepdims=True)
    # the sum is concave in x and too small here: Newton's steps never overshoot
    for _ in range(40):
        survival = np.exp(-x * weight)
        short = top_k - (1.0 - survival).sum(axis=-1, keepdims=True)
        if short.max() < 1e-3:
            break
        x += short / (weight * survival).sum(axis=-1, keepdims=True)
    logs: Floats = (-x * weight).astype(np.float32)
    return logs
