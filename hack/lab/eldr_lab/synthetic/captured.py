"""Traffic from the captured activations of a small trained model: real routing, every step as it was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eldr.core.placement_sim import inclusion_probabilities
from eldr.sim.traces import Traces
from eldr_lab.synthetic.population import Population, Traffic
from tests.support.captured import calibration


@dataclass(frozen=True, slots=True)
class Captured:
    """Records of some kinds, half of each for calibration.

    Attributes
    ----------
    kinds : tuple of str
        In equal shares.
    """

    traces: Traces
    kinds: tuple[str, ...]

    def traffic(self, seed: int) -> Traffic:
        """Return the records; the seed does not change them."""
        del seed
        traces = self.traces
        records = np.array(traces.split(self.kinds)[1])
        n, n_steps = len(records), traces.decode_experts.shape[1]
        first = np.arange(traces.n_layers) * traces.n_experts
        cells = traces.decode_experts[records].astype(np.uint16) + first[:, None].astype(np.uint16)
        used = np.zeros((n, traces.n_layers * traces.n_experts), dtype=np.int64)
        np.add.at(used, (np.arange(n)[:, None], cells.reshape(n, -1)), 1)
        inclusion = inclusion_probabilities(used[:, None], np.full(n, n_steps))[:, 0]
        numbers = [self.kinds.index(traces.kinds[kind]) for kind in traces.kind[records]]
        requests = Population(
            prefill=traces.prefill_counts[records],
            prompt_tokens=traces.prompt_tokens[records].astype(np.int64),
            logs=np.log1p(-inclusion),
            steps=cells.reshape(n, n_steps, -1),
            label=np.array(numbers, dtype=np.int64),
            labels=self.kinds,
            shares=(1 / len(self.kinds),) * len(self.kinds),
            output_tokens=None,
            top_k=traces.top_k,
        )
        return Traffic(calibration(traces, self.kinds), requests)
