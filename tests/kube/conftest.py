"""A namespace with helpers for tests of the embedded cluster itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eldr_kube.cluster import Cluster
from tests.support.space import Space


@pytest.fixture
def space(cluster: Cluster, namespace: str) -> Iterator[Space]:
    with Space(cluster, namespace) as opened:
        yield opened
