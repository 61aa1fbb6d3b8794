"""Engines divided among domains."""

from __future__ import annotations

import math
from collections.abc import Sequence


def groups_by_share(
    labels: Sequence[str], shares: Sequence[float], n_engines: int
) -> dict[str, frozenset[int]]:
    """Divide engines among labels by their shares.

    By largest remainders, with at least one engine for each label where there are enough.

    Labels beyond the number of engines have no group and may go anywhere.

    Examples
    --------
    >>> groups_by_share(["a", "b"], [0.7, 0.3], 4)
    {'a': frozenset({0, 1, 2}), 'b': frozenset({3})}
    """
    present = sorted((at for at, share in enumerate(shares) if share > 0), key=lambda at: -shares[at])[
        :n_engines
    ]
    if not present:
        return {}
    total = sum(shares[at] for at in present)
    exact = {at: shares[at] * n_engines / total for at in present}
    sizes = {at: max(1, math.floor(exact[at])) for at in present}
    while sum(sizes.values()) < n_engines:
        sizes[max(present, key=lambda at: exact[at] - sizes[at])] += 1
    while sum(sizes.values()) > n_engines:
        sizes[max((at for at in present if sizes[at] > 1), key=lambda at: sizes[at] - exact[at])] -= 1
    groups: dict[str, frozenset[int]] = {}
    first = 0
    for at in present:
        groups[labels[at]] = frozenset(range(first, first + sizes[at]))
        first += sizes[at]
    return groups
