"""Log records of captured activations."""

from __future__ import annotations

from typing import Any

from eldr.siglog import Record, pack_counts
from eldr.sim.traces import Traces


def make_record(captured: Traces, number: int, record: int, *, tokens: int = 100, **fields: Any) -> Record:
    """Return the log's ``number``-th record, of a captured one; ``fields`` replace what it holds."""
    values = {
        "request_id": f"eldr-00000000-{number:x}",
        "time": 1000.0 + number,
        "model": "m",
        "n_layers": 4,
        "n_experts": 64,
        "top_k": 4,
        "prompt_tokens": int(captured.prompt_tokens[record]),
        "exact": True,
        "prefill": pack_counts(captured.prefill_counts[record]),
        "engine": "d0",
        "slot": 0,
        "policy": "JSQ",
        "in_flight": 9,
        "decode": pack_counts(captured.decode_counts(record, tokens)),
        "decode_tokens": tokens,
        "decode_exact": True,
    }
    return Record(**values | fields)
