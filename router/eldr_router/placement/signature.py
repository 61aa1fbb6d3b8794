"""What a prefill engine reported of a request's experts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from eldr.wire import ExpertCounts, WireError, decode_counts


@dataclass(frozen=True, slots=True)
class Signature:
    """A request's expert counts, or why there are none."""

    counts: ExpertCounts | None = None
    missing: str = "no_signature"

    @property
    def quality(self) -> str:
        """One of :data:`eldr.contract.SIGNATURE_QUALITIES`."""
        if self.counts is None:
            return self.missing
        return "exact" if self.counts.exact else "inexact"


NO_SIGNATURE = Signature()
WHOLE = Signature(missing="whole")


def read_signature(fields: object) -> Signature:
    """Parse the ``eldr`` object of a prefill response; never raises."""
    if fields is None or (isinstance(fields, dict) and "unavailable" in fields):
        return NO_SIGNATURE
    try:
        return Signature(decode_counts(fields))
    except WireError:
        return Signature(missing="wire_error")
