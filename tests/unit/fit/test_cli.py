import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from eldr import centroids
from eldr.cli import main
from eldr.siglog import SignatureLog


def write(path, records):
    writer = SignatureLog(path, max_bytes=1 << 24, max_age=1e12, now=0.0)
    for record in records:
        writer.append(record, now=0.0)
    writer.close()
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory, records):
    return write(tmp_path_factory.mktemp("log"), records)


def run(*arguments):
    return CliRunner().invoke(main, ["fit", *map(str, arguments)])


@pytest.mark.slow
def test_log_to_centroids_with_report_and_picture(log, tmp_path):
    out, picture = tmp_path / "c", tmp_path / "p.png"
    done = run("log", log, "--k", 4, "--model", "m", "--out", out, "--picture", picture, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    loaded = centroids.load(out.read_bytes())
    assert report["digest"] == centroids.digest(out.read_bytes())
    assert loaded.k == 4
    assert picture.stat().st_size > 1000
    text = run("log", log, "--k", 4, "--model", "m", "--out", tmp_path / "d", "--active", out)
    assert text.exit_code == 0
    assert "cluster sizes" in text.stdout
    assert (tmp_path / "d").read_bytes() != b""


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--k", 4, "--model", "other"], 1, "NoSamples: no usable record in the log (384 other model)"),
        (["--k", 999, "--model", "m"], 1, "NotEnoughSamples"),
        (["--k", 2, "--model", "m", "--tau", "nan"], 2, "expected a finite number"),
        (["--k", 2, "--model", "m", "--picture", "/nosuch/x.png"], 2, "the folder /nosuch does not exist"),
        (["--k", 2, "--model", "m", "--picture", "x.xyz"], 2, "ends in .png or .svg"),
    ],
)
def test_bad_input_is_a_clear_error(log, tmp_path, arguments, status, message):
    done = run("log", log, "--out", tmp_path / "c", *arguments)
    assert done.exit_code == status
    assert message in done.output
    assert not (tmp_path / "c").exists()


def test_a_folder_without_a_log_and_a_damaged_active_set(log, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run("log", empty, "--k", 2, "--model", "m", "--out", tmp_path / "c")
    assert "NoLog" in done.output
    (tmp_path / "bad").write_bytes(b"nothing")
    done = run("log", log, "--k", 2, "--model", "m", "--active", tmp_path / "bad", "--out", tmp_path / "c")
    assert done.exit_code == 2
    assert "not a centroid file" in done.output


@pytest.mark.process
def test_the_command_limits_threads_before_numpy_starts_them():
    check = "import sys, eldr.fit.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.slow
def test_a_poisoned_log_is_fitted_without_its_poison_and_counts_it(make_record, tmp_path):
    nothing = bytes(4 * 64 * 2)
    poison = [
        {"decode": nothing},
        {"decode_exact": False, "decode": nothing},
        {"prompt_tokens": 0, "prefill": nothing},
        {"prompt_tokens": 0, "prefill": nothing, "decode": None, "top_k": 0},
        {},
        {},
    ]
    mixed = write(tmp_path / "mixed", [make_record(n, n, **poison[n % 6]) for n in range(240)])
    done = run("log", mixed, "--k", 4, "--model", "m", "--out", tmp_path / "c", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    left_out = ("layers that do not sum to tokens x top-k", "damaged records", "prompts without a token")
    assert report["skipped"] == dict.fromkeys(left_out, 40)
    assert report["samples"] == 120
