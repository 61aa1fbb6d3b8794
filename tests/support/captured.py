"""Captured activations as requests for calibration."""

from __future__ import annotations

import numpy as np

from eldr.fit.samples import Samples
from eldr.sim.traces import Traces

_TOKENS = 95


def calibration(traces: Traces, kinds: tuple[str, ...]) -> Samples:
    """Return the half of the records of some kinds that sets are fitted on."""
    records = np.array(traces.split(kinds)[0])
    return Samples(
        prefill=traces.prefill_counts[records].astype(np.uint32),
        decode=np.stack([traces.decode_counts(record, _TOKENS) for record in records.tolist()]),
        decode_tokens=np.full(len(records), _TOKENS),
        in_flight=np.full(len(records), 16),
        top_k=traces.top_k,
        skipped={},
    )
