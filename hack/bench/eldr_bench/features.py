"""What the features of our router cost: routers that differ in one of them serve the same load in turns, beside one as it is by default.

Prints one JSON list of figures, see ``__main__.py``, the dearest feature first. CPU and proofs are those of ``router.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_bench.candidates import Candidate, ours
from eldr_bench.router import KINDS, LIMIT_SECONDS, interleave, mock_engines, ratios
from eldr_kube.pki import Authority

ROUNDS = 8
KEY = "0123456789abcdef0123456789abcdef"


class Feature(NamedTuple):
    """A router that differs from the default in one thing.

    Attributes
    ----------
    without : options that it lacks
    needs : {"", "key", "tls"}
        What clients need.
    """

    name: str
    policy: str = POLICY_MARGINAL
    without: tuple[str, ...] = ()
    sample_rate: float = 0.1
    needs: str = ""


DEFAULT = Feature("the default")
FEATURES = (
    Feature("RoundRobin instead of MarginalUnion", "RoundRobin"),
    Feature("JSQ instead of MarginalUnion", "JSQ"),
    Feature("ELDR instead of MarginalUnion", POLICY_ELDR),
    Feature("no centroid set", without=("centroids",)),
    Feature("no signature log", without=("log-dir",)),
    Feature("all requests in the signature log", sample_rate=1.0),
    Feature("API keys", needs="key"),
    Feature("TLS for clients", needs="tls"),
)


@contextlib.contextmanager
def running(feature: Feature, folder: Path, urls: list[str]) -> Iterator[Candidate]:
    """Run the router of a feature, and say what its clients need."""
    more, key, tls = [], "", None
    secrets = folder.with_name(f"{folder.name}-secrets")
    secrets.mkdir()
    if feature.needs == "key":
        (secrets / "a").write_text(KEY)
        more, key = ["--api-keys", str(secrets)], KEY
    if feature.needs == "tls":
        authority = Authority(secrets, "authority")
        pair = authority.issue("router", hosts=("127.0.0.1",))
        more = ["--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)]
        tls = ssl.create_default_context(cafile=str(authority.certificate))
    options: dict[str, Any] = {"without": feature.without, "sample_rate": feature.sample_rate, "more": more}
    with ours(feature.name, feature.policy, folder, urls, **options) as candidate:
        candidate.target = candidate.target._replace(key=key, tls=tls)
        yield candidate


def figures(default: Candidate, others: Sequence[Candidate]) -> Iterator[dict[str, object]]:
    """Yield the default's figures, and by how much the others' differ, round by round."""
    for key, what, unit, _ in KINDS:
        if not (base := getattr(default, key)):  # memory is not measured
            continue
        yield {"name": f"{default.name}: {what}", "unit": unit, "aim": None, "values": base}
        found = {other.name: ratios(getattr(other, key), base) for other in others}
        for name in sorted(found, key=lambda name: -statistics.median(found[name])):
            named = f"{name} / {default.name}: {what}"
            yield {"name": named, "unit": "x", "aim": None, "values": found[name]}


def main() -> None:
    """Start mock engines and routers, measure, print."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        urls = stack.enter_context(mock_engines())
        candidates = [
            stack.enter_context(running(feature, Path(name, str(number)), urls))
            for number, feature in enumerate((DEFAULT, *FEATURES))
        ]
        load = interleave(candidates, urls[0], ROUNDS)
        uvloop.run(asyncio.wait_for(load, LIMIT_SECONDS))
        for candidate in candidates:
            candidate.prove(candidate.state())
        print(json.dumps(list(figures(candidates[0], candidates[1:]))))


if __name__ == "__main__":
    main()
