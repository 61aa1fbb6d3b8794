"""Which experts lie on which rank of an engine.

References
----------
.. [1] ELDR, arXiv 2607.00466: on engines of several ranks the hot experts of each engine's cluster are spread over them.
"""

from __future__ import annotations

import numpy as np

from eldr.centroids import CentroidSet
from eldr.core.signature import Floats
from eldr.fit.samples import Samples
from eldr.simulate.population import Ints
from eldr_lab.synthetic.centroids import similarities


def profiles(centroids: CentroidSet, samples: Samples) -> Floats:
    """Return how often requests of each cluster use each expert.

    Parameters
    ----------
    centroids : CentroidSet
    samples : Samples
        Requests for calibration; those that tell of decode steps count.

    Returns
    -------
    ndarray of float32, shape (k, n_layers, n_experts)
        Share of decode steps, mean over the requests nearest to a centroid; those of all requests where there are none.

    Raises
    ------
    ValueError
        If none tells of decode steps.
    """
    told = samples.take(samples.decoded)
    if not len(told):
        raise ValueError("spread: no request for calibration tells what its decode steps used")
    shares = told.decode / np.maximum(1, told.decode_tokens)[:, None, None]
    nearest = similarities(centroids, told.prefill).argmax(axis=1)
    found = np.empty((centroids.k, *shares.shape[1:]), dtype=np.float32)
    for cluster in range(centroids.k):
        members = shares[nearest == cluster]
        found[cluster] = (members if len(members) else shares).mean(axis=0)
    return found


def dealt(profile: Floats, ranks: int) -> Ints:
    """Deal each layer's experts out to ranks, the hottest first and every other round backwards.

    Parameters
    ----------
    profile : ndarray of float32, shape (n_layers, n_experts)
    ranks : int
        A divisor of ``n_experts``.

    Returns
    -------
    ndarray of int, shape (n_layers * n_experts,)
        Cells of the first layer's first rank, of its second one, and so on.

    Examples
    --------
    >>> dealt(np.array([[0.4, 0.3, 0.2, 0.1]]), 2).tolist()
    [0, 3, 1, 2]
    """
    n_layers, n_experts = profile.shape
    hottest = np.argsort(-profile, axis=1, kind="stable").reshape(n_layers, -1, ranks)
    hottest[:, 1::2] = hottest[:, 1::2, ::-1]
    order = hottest.transpose(0, 2, 1).reshape(n_layers, n_experts)
    cells: Ints = (order + np.arange(n_layers)[:, None] * n_experts).reshape(-1).astype(np.int64)
    return cells
