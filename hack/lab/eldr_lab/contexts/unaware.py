"""Our router, but nobody tells it what KV caches hold: load is the number of requests, as it was before contexts counted.

python unaware.py PROGRAM router OPTIONS...
"""

import sys

from eldr.cli import main
from eldr_router.engines.exposition import Sums, read_sums
from eldr_router.placement import steps


def _unknown(text: bytes) -> None:
    """Take no note of a KV cache."""


def _without_contexts(text: bytes) -> Sums | None:
    sums = read_sums(text)
    return None if sums is None else sums._replace(context=0.0)


if __name__ == "__main__":
    vars(steps).update(read_cache=_unknown, read_sums=_without_contexts)
    main(sys.argv[2:])
