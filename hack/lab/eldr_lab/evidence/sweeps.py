"""The artifact's comparisons at 60 requests/s: balanced and plain K-means, and widths of the band, all refit with two candidates."""

from __future__ import annotations

from collections.abc import Iterator

from eldr_lab.evidence import published
from eldr_lab.evidence.cells import BAND, ROLLING, ROLLING_TAUS, ROLLING_VANILLA, SWEPT_ROLLING, VANILLA
from eldr_lab.evidence.intervals import Interval
from eldr_lab.evidence.names import place, policy
from eldr_lab.evidence.results import P50, P99, Results
from eldr_lab.evidence.rows import Row, row

_QUANTILES = ((0, P50, "P50"), (1, P99, "P99"))
REPEATED = "0.1"
"""The width that the artifact measured beside plain K-means as well: that run has the rows."""


def swept(results: Results, geometry: str, workload: str, tau: str, measure: str) -> Interval:
    """Return what a refit band of some width changes against round robin, which met the same requests in another cell."""
    (cell,), (other,) = (results.cells(name, workload, geometry) for name in ("tau", "clusters"))
    name = dict(zip(ROLLING_TAUS, SWEPT_ROLLING, strict=True))[tau]
    return results.change_between(cell, other, name, measure, "RoundRobin")


def rows(results: Results) -> Iterator[Row]:
    """Yield the rows."""
    for geometry, workload in results.kinds("clusters"):
        where = f"{place(geometry, workload)}, 60 requests/s"
        cells = results.cells("clusters", workload, geometry)
        for quantile, measure, title in _QUANTILES:
            for name, there in ((ROLLING, BAND), (ROLLING_VANILLA, VANILLA)):
                number = published.ablated(geometry, workload, there, quantile)
                yield row(
                    f"{where}: {policy(name)}, {title} against round robin",
                    results.change(cells, name, "RoundRobin", measure), number, number, f"{number:+.1f} (artifact)", {},
                )  # fmt: skip
            for tau in ROLLING_TAUS:
                if tau != REPEATED and results.cells("tau", workload, geometry):
                    number = published.swept(geometry, workload, tau, quantile)
                    yield row(
                        f"{where}: {policy(ROLLING)}, tau = {tau}, {title} against round robin",
                        swept(results, geometry, workload, tau, measure), number, number, f"{number:+.1f} (artifact)", {},
                    )  # fmt: skip
