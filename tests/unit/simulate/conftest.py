import msgspec
import numpy as np
import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.siglog import SignatureLog, pack_counts
from eldr.sim import traces
from eldr.simulate.population import Population
from tests.support.records import make_record


@pytest.fixture(scope="session")
def captured():
    return traces.load()


@pytest.fixture(scope="session")
def step_time():
    return QWEN3_30B_MI300X.for_experts(32)


@pytest.fixture(scope="session")
def population():
    """200 requests of four kinds, each of which prefers experts of its own; three layers of 32 experts, four per token."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.2, (4, 3, 32))[np.arange(200) % 4] + rng.normal(0, 0.5, (200, 3, 32))
    weights = np.exp(logits)
    logs = -4.0 * weights / weights.sum(axis=2, keepdims=True)
    tokens = rng.integers(20, 200, 200)
    return Population(
        prefill=rng.binomial(tokens[:, None, None], -np.expm1(logs)).astype(np.uint16),
        prompt_tokens=tokens,
        logs=logs.reshape(200, -1).astype(np.float32),
        output_tokens=np.full(200, 60),
        top_k=4,
    )


@pytest.fixture
def write_log(tmp_path_factory, captured):
    """Write a log of captured records: kind after kind, or mixed."""

    def write(n, *, tokens=100, empty=(), silent=(), mixed=False, **fields):
        path = tmp_path_factory.mktemp("log")
        writer = SignatureLog(path, max_bytes=1 << 26, max_age=1e12, now=0.0)
        order = np.random.default_rng(0).permutation(len(captured)) if mixed else range(n)
        for at, number in enumerate(order[:n]):
            decode = captured.decode_counts(int(number), tokens)
            if at in empty:
                decode[1] = 0
            made = make_record(
                captured, at, int(number), tokens=tokens, **{"decode": pack_counts(decode)} | fields
            )
            if at in silent:
                made = msgspec.structs.replace(made, decode_exact=False)
            writer.append(made, now=0.0)
        writer.close()
        return path

    return write
