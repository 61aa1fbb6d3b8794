"""Requests of signature logs."""

from pathlib import Path

import numpy as np
import pytest

from eldr.fit.samples import FitError
from eldr.simulate.logged import read_logs


def read(*paths, **options):
    return read_logs([Path(path) for path in paths], **{"model": None} | options)


def test_the_newer_half_is_simulated_and_the_older_calibrates(write_log, captured):
    logged = read(write_log(200))
    calibration, requests = logged.calibration, logged.requests
    assert (len(calibration), len(requests)) == (100, 100)
    assert "Requests of 'm'" in logged.words
    assert np.array_equal(requests.prefill[0], captured.prefill_counts[100])
    assert np.array_equal(requests.prompt_tokens, captured.prompt_tokens[100:200])
    assert (requests.output_tokens == 101).all()
    used = captured.decode_counts(100, 100) / 100
    assert -np.expm1(requests.logs[0]) == pytest.approx(np.minimum(used.ravel(), 0.999), abs=1e-5)


def test_the_model_with_most_records_is_taken_unless_named(write_log):
    several = [write_log(150), write_log(180, model="other")]
    assert "Requests of 'other'" in read(*several).words
    assert len(read(*several, model="m").calibration) == 75
    with pytest.raises(FitError, match=r"no request of third, but of \['m', 'other'\]"):
        read(*several, model="third")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "no request of any model"),
        ({"n": 60}, "30 records of the log's newer half have"),
        ({"n": 200, "decode_exact": False}, "0 records of the log's newer half"),
        ({"n": 200, "decode": bytes(512)}, "200 layers that do not sum"),
    ],
)
def test_too_little_is_said_with_what_to_do(write_log, options, message):
    with pytest.raises(FitError, match=message):
        read(write_log(**options))


def test_the_rate_is_that_of_the_log(write_log):
    logged = read(write_log(300, decode_exact=True, silent=range(200, 220)))
    assert len(logged.requests) == 130
    assert logged.rate == pytest.approx(1), "records that cannot be simulated came all the same"
    assert read(write_log(140, time=5.0)).rate is None
    assert read(write_log(400), limit=200).rate == pytest.approx(1, rel=0.02), "a thinned log keeps its rate"


def test_only_the_newest_minutes_may_be_taken(write_log):
    logged = read(write_log(400), last=180.0)
    assert len(logged.requests) + len(logged.calibration) == 181
    assert "219 left out (older than the look-back)" in logged.words


def test_a_segment_counts_up_to_its_damage(write_log):
    log = write_log(300)
    (segment,) = log.glob("*.siglog")
    data = bytearray(segment.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    segment.write_bytes(data)
    assert 90 < len(read(log).requests) < 101


def test_a_segment_that_is_gone_or_foreign_spoils_no_log(write_log):
    log = write_log(140)
    (log / "000000000007.siglog").symlink_to("nowhere")
    (log / "000000000008.siglog").write_bytes(b"\xff" * 99)
    assert len(read(log).requests) == 70
