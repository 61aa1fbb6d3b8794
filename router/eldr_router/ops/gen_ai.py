"""Histograms by the names that OpenTelemetry's semantic conventions give servers of generative models.

References
----------
.. [1] OpenTelemetry semantic conventions, generative AI metrics: names, units, buckets, attributes.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from eldr_router.ops.tally import Spreads

PROVIDER = "vllm"
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TO_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_MOST_MODELS = 100
_OTHER = "_OTHER"
_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class GenAi(Collector):
    """The three histograms; calling it takes one request that is over.

    Labels stay bounded: a model has a name here once an engine has answered for it, and the hundred first ones do.
    """

    def __init__(self) -> None:
        name = "gen_ai_server_{}_seconds".format
        self._models: set[str] = set()
        self._duration = Spreads(
            name("request_duration"),
            "Arrival to the end of the response.",
            _SECONDS,
            (*_LABELS, "error_type"),
        )
        self._to_first = Spreads(
            name("time_to_first_token"), "Arrival to the first token of a stream.", _TO_FIRST, _LABELS
        )
        self._per_token = Spreads(
            name("time_per_output_token"), "Time per token of a stream after its first.", _PER_TOKEN, _LABELS
        )

    def __call__(
        self,
        operation: str,
        model: str,
        error: str,
        seconds: float,
        *,
        first: float | None = None,
        tokens: int | None = None,
    ) -> None:
        """Take a request.

        Parameters
        ----------
        operation : str
            The convention's name of what was asked for.
        model : str
            What the client called it.
        error : str
            Why it failed, out of a bounded set; empty if it did not.
        seconds : float
            From its arrival to its end.
        first : float, optional
            From its arrival to the first token of a stream.
        tokens : int, optional
            How many the answer has, if the engine said so.
        """
        if not error and len(self._models) < _MOST_MODELS:
            self._models.add(model)
        known = model if model in self._models else "" if error else _OTHER
        self._duration(seconds, operation, PROVIDER, known, error)
        if error or first is None:
            return
        self._to_first(first, operation, PROVIDER, known)
        if tokens is not None and tokens > 1:
            self._per_token((seconds - first) / (tokens - 1), operation, PROVIDER, known)

    def collect(self) -> Iterable[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        for spreads in (self._duration, self._to_first, self._per_token):
            yield from spreads.collect()
