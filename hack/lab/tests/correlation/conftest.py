import numpy as np
import pytest

from eldr_lab.correlation.statistics import Capture

LAYERS, EXPERTS, TOP_K, STEPS = 2, 16, 2, 12


def two_kinds(per_kind: int = 20, loyalty: float = 0.9) -> Capture:
    """Two kinds; a token uses experts of its kind's half with probability ``loyalty``, of the other half otherwise."""
    rng = np.random.default_rng(0)
    kind = np.repeat(["a", "b"], per_kind)
    half = EXPERTS // 2

    def tokens(n: int) -> np.ndarray:
        own = rng.random((2 * per_kind, n, LAYERS, TOP_K)) < loyalty
        home = (kind == "b")[:, None, None, None]
        return rng.integers(0, half, own.shape) + half * (own == home)

    prompt = tokens(30)
    prefill = np.stack(
        [[np.bincount(p[:, layer].ravel(), minlength=EXPERTS) for layer in range(LAYERS)] for p in prompt]
    )
    weight = rng.random(prefill.shape, dtype=np.float32)
    return Capture(
        prefill=prefill.astype(np.uint32),
        decode=tokens(STEPS).astype(np.uint16),
        kind=kind,
        prompt_tokens=np.full(len(kind), 30),
        probability=prefill + weight,
        logit=prefill + 90 * weight,
    )


@pytest.fixture
def capture():
    """Captures of two kinds of requests."""
    return two_kinds
