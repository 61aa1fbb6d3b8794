"""What is kept of what a fit stores beside its set: what is read, in few bytes, and nothing else."""

import json

import pytest

from eldr import contract
from eldr.contract import SIMILARITY_BINS
from eldr_operator.drift.counts import MOST_CLUSTERS, dump, read_baseline, read_baselines
from eldr_operator.errors import InvalidResourceError
from eldr_operator.fits import lifecycle
from eldr_operator.locality import memory
from eldr_operator.locality.memory import KEY, Memory
from eldr_operator.locality.routing import Table
from eldr_operator.models import CentroidSet, Report, parse
from tests.unit.operator.builders import NOW, make_cr, make_fit

COUNTS = {"similarity": [0] * (SIMILARITY_BINS - 1) + [60], "clusters": [30, 30], "requests": 60}
WHOLE = COUNTS | {"saving": 0.2, "saving_low": 0.1, "saving_high": 0.3, "batch": 8.0, "before": COUNTS}
DAMAGED = [
    COUNTS | {"similarity": [0] * (SIMILARITY_BINS - 2) + [60]},
    COUNTS | {"clusters": [60]},
    COUNTS | {"clusters": [30, 29]},
    {"similarity": COUNTS["similarity"], "clusters": [0] * (MOST_CLUSTERS + 1) + [60], "requests": 60},
    COUNTS | {"similarity": [10**400]},
    COUNTS | {"logged": 10**400},
    {"requests": 5},
    [1],
    "x",
]


def stored(value, k=None):
    """Return it as the memory keeps it."""
    return dump({"d": read_baseline(value, k)})["d"]


def test_what_is_read_is_kept_and_nothing_else():
    assert stored(WHOLE, 2) == WHOLE
    assert stored(WHOLE | {"notes": [0] * 250_000, "logged": None}, 2) == WHOLE
    nothing = {"saving": None, "saving_low": None, "saving_high": None, "batch": None, "before": None}
    assert stored(COUNTS | nothing, 2) == COUNTS
    other = COUNTS | {"clusters": [60]}
    for before in (other, other | {"notes": "x" * 100_000}, [], {"requests": 1}):
        assert "before" not in stored(COUNTS | {"before": before}, 2), "counts of another number of clusters"
    assert read_baseline(stored(WHOLE)) == read_baseline(WHOLE)


@pytest.mark.parametrize("value", DAMAGED)
def test_what_cannot_be_read_is_refused(value):
    with pytest.raises(ValueError, match="baseline"):
        read_baseline(value, 2)


@pytest.mark.parametrize("value", DAMAGED)
def test_a_memory_forgets_one_that_cannot_be_read_so_that_its_report_is_read_again(value):
    told = {"sha256:b": WHOLE, "sha256:c": {}}
    kept = dump(read_baselines({"sha256:a": value} | told))
    assert {digest: kept.get(digest) for digest in told} == told
    assert ("sha256:a" in kept) == (value == DAMAGED[1]), "how many workers there were is not known here"


def test_a_fit_tells_of_a_baseline_that_cannot_be_read():
    pointer = {"fit": "f", "digest": "sha256:f", "k": 2, "shards": []}
    report = {"verdict": "Accepted", "reason": "Better", "message": "m" * 9000, "set": pointer}

    def finished(baseline):
        data = {"data": {contract.REPORT_KEY: json.dumps(report | {"baseline": baseline})}}
        found = lifecycle.advance(make_fit("f", "Running"), None, data, busy=None, model="m", now=NOW)
        return found.status["conditions"][0]

    for value in DAMAGED:
        told = finished(value)
        assert (told["status"], told["reason"]) == ("True", "Accepted")
        assert "drift is not reported while its set is active: baseline" in told["message"]
        assert len(told["message"]) < 4096
    for value in (None, WHOLE):
        assert "drift" not in finished(value)["message"]


def test_a_report_with_more_shards_than_a_set_has_is_refused():
    shard = {"name": "s", "sha256": "0"}
    report = {"verdict": "Accepted", "reason": "r", "message": "m"}
    pointer = {"fit": "f", "digest": "d", "k": 2}
    assert parse(Report, report | {"set": pointer | {"shards": [shard] * 256}}).pointer
    with pytest.raises(InvalidResourceError, match="shards"):
        parse(Report, report | {"set": pointer | {"shards": [shard] * 257}})


def test_the_largest_that_can_be_remembered_fits_into_a_configmap():
    most, name = 1 << 40, "n" * 253
    similarity = [0] * (SIMILARITY_BINS - 1) + [most * MOST_CLUSTERS]
    counts = {"similarity": similarity, "clusters": [most] * MOST_CLUSTERS, "requests": most * MOST_CLUSTERS}
    shards = [{"name": name, "sha256": "f" * 64}] * 256
    sets = [
        CentroidSet.model_validate(
            {"fit": name, "digest": f"{n}" * 253, "k": MOST_CLUSTERS, "shards": shards}
        )
        for n in range(3)
    ]
    baselines = {one.digest: read_baseline(counts | {"before": counts}, MOST_CLUSTERS) for one in sets}
    made = Memory(table=Table(epoch=3, active=sets[0], staged=sets[1], previous=sets[2]), baselines=baselines)
    data = memory.config_map(make_cr(), made)["data"]
    assert sum(map(len, data.values())) < 1 << 20
    assert "\n" not in data[KEY]
    assert memory.read({"data": data}, {}) == made
