"""How the plug-in reaches an engine, and what it refuses."""

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import eldr
from eldr.cli import main
from eldr.contract import SPECULATION
from eldr.engine.hooks import compatibility
from eldr.engine.install import copy
from tests.support.vllm_config import engine


@pytest.mark.process
def test_the_copied_plugin_is_found_by_its_entry_points_and_needs_nothing_else_of_eldr(tmp_path):
    target = tmp_path / "plugin"
    for _ in range(2):  # an init container may run again
        result = CliRunner().invoke(main, ["engine-plugin", str(target)])
        assert result.exit_code == 0, result.output
    code = (
        "import sys, importlib.metadata as m\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p or p == sys.argv[1]]\n"
        "groups = ('vllm.general_plugins', 'vllm.endpoint_plugins')\n"
        "names = [(g, e.name, e.load().__name__) for g in groups for e in m.entry_points(group=g)]\n"
        "import eldr; print(eldr.__file__, names)\n"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", code, str(target)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(target))
    assert "('vllm.endpoint_plugins', 'eldr', 'endpoint')" in run.stdout
    assert "('vllm.general_plugins', 'eldr', 'register')" in run.stdout


def test_a_copy_over_another_version_leaves_nothing_of_it(tmp_path):
    for name in ("eldr-0.0.1.dist-info", "eldr-99.0.dev1.dist-info", "other-1.0.dist-info"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.split('-')[0]}\n")
    (tmp_path / "eldr").mkdir()
    (tmp_path / "eldr" / "gone.py").write_text("")
    (tmp_path / ".eldr-plugin").touch()
    result = CliRunner().invoke(main, ["engine-plugin", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".eldr-plugin",
        "eldr",
        f"eldr-{eldr.__version__}.dist-info",
        "other-1.0.dist-info",
    ]
    assert not (tmp_path / "eldr" / "gone.py").exists()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A clone with the package that runs in it: a copy, so that a fault costs nothing."""
    clone = tmp_path / "home" / "eldr"
    shutil.copytree(
        Path(eldr.__file__).parent, clone / "eldr", ignore=shutil.ignore_patterns("__pycache__", "data")
    )
    (clone / "README.md").write_text("mine")
    monkeypatch.setattr(eldr, "__file__", str(clone / "eldr" / "__init__.py"))
    return clone


@pytest.mark.parametrize("folder", ["home/eldr", "home", "home/eldr/eldr", "home/eldr/eldr/engine", "link"])
def test_its_own_source_is_never_replaced(checkout, tmp_path, folder):
    (tmp_path / "link").symlink_to(checkout)
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(main, ["engine-plugin", str(tmp_path / folder)])
    assert result.exit_code == 1, result.output
    assert str(tmp_path / folder) in result.output
    assert "its eldr is the source of the copy; name another folder" in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_name_of_a_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["engine-plugin", ""]).exit_code == 2
    assert [*tmp_path.iterdir()] == []


def test_what_is_not_an_earlier_copy_stays(tmp_path):
    file, foreign, link, pip = (tmp_path / name for name in ("file", "foreign", "link", "pip"))
    for folder in (file, foreign, link, pip):
        folder.mkdir()
    (file / "eldr").write_text("#!/bin/sh")
    (foreign / "eldr" / ".git").mkdir(parents=True)
    (foreign / "eldr" / "__init__.py").write_text("mine")
    (link / "eldr").symlink_to(foreign / "eldr")
    (pip / "eldr-0.0.1.dist-info").mkdir()
    (pip / "eldr-0.0.1.dist-info" / "RECORD").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for folder in (file, foreign, link, pip):
        result = CliRunner().invoke(main, ["engine-plugin", str(folder)])
        assert result.exit_code == 1, result.output
        assert str(folder) in result.output
        assert "name another folder" in result.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("copied", ["engine", "METADATA"])
def test_a_copy_goes_on_where_another_one_was_killed(tmp_path, monkeypatch, copied):
    def killed(*_, **__):
        raise KeyboardInterrupt

    copy(tmp_path / "whole")
    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        if copied == "engine":
            patched.setattr("eldr.engine.install.shutil.copytree", killed)
        else:
            patched.setattr(Path, "write_text", killed)
        copy(tmp_path / "killed")
    copy(tmp_path / "killed")
    whole, again = (
        sorted(path.relative_to(folder) for path in folder.rglob("*"))
        for folder in (tmp_path / "whole", tmp_path / "killed")
    )
    assert whole == again


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["engine-plugin", str(tmp_path / "file" / "x")])
    assert result.exit_code == 1
    assert "FOLDER" in result.output
    assert "name a folder that can be written" in result.output


DP = {"data_parallel_size": 2, "enable_expert_parallel": True}


@pytest.mark.parametrize("prompts", [True, False])
def test_what_counts_is_accepted(prompts):
    """Blocks of 256 tokens are Gemma 4's, with ``--block-size 128``; one server is in front of all ranks."""
    accepted = [engine(), engine(**DP), engine(device="cpu", mode=0)]
    for method in SPECULATION:
        accepted += [engine(speculative_config=SimpleNamespace(method=method), v2=v2) for v2 in (False, True)]
    for one in accepted:
        assert compatibility.problems(one, 256, prompts=prompts) == []
    assert compatibility.problems(engine(**DP, tensor_parallel_size=2), 128, prompts=False) == []


def test_drafts_are_not_counted_where_a_step_tells_too_late_where_its_tokens_lie():
    config = engine(speculative_config=SimpleNamespace(method="eagle3"), v2=True, full_graphs=True)
    ngram = engine(speculative_config=SimpleNamespace(method="ngram"), v2=True, full_graphs=True)
    assert compatibility.problems(ngram, 16, prompts=False) == [], "it computes no slots"
    for prefill in (True, False):
        (found,) = compatibility.problems(config, 16, prompts=prefill)
        assert found.startswith("speculative_config with model runner V2 and full graphs")
        assert "cudagraph_mode=PIECEWISE" in found
        assert compatibility.problems(config, 16, prompts=prefill, drafts_first=False) == []
    assert compatibility.problems(engine(v2=True, full_graphs=True), 16, prompts=True) == []


@pytest.mark.parametrize(
    ("changes", "block", "named"),
    [
        ({"pipeline_parallel_size": 2}, 16, "pipeline_parallel_size=2"),
        ({"decode_context_parallel_size": 2}, 16, "decode_context_parallel_size=2"),
        ({"prefill_context_parallel_size": 2}, 16, "prefill_context_parallel_size=2"),
        ({"data_parallel_size": 2}, 16, "data_parallel_size=2: each rank is an engine by itself"),
        (
            DP | {"data_parallel_external_lb": True},
            16,
            "data_parallel_size=2: some ranks are served",
        ),
        (DP | {"data_parallel_hybrid_lb": True}, 16, "behind one address"),
        (DP | {"tensor_parallel_size": 2}, 16, "tensor_parallel_size=2 beside it: each rank"),
        ({"use_ubatching": True, "enable_dbo": True}, 16, "enable_dbo=True"),
        ({"use_ubatching": True, "ubatch_size": 2}, 16, "ubatch_size=2"),
        ({"device": "cpu", "mode": 3}, 16, "set --enforce-eager"),
        (
            {"speculative_config": SimpleNamespace(method="medusa")},
            *(
                16,
                "speculative_config.method=medusa: counting was not tried with it; use one of ngram, ",
            ),
        ),
        ({"experts": 0}, 16, "it has no experts"),
        ({}, 32768, "block_size=32768: the table counts 32767 tokens"),
    ],
)
def test_what_would_be_counted_wrongly_is_named_with_a_remedy(changes, block, named):
    (found,) = compatibility.problems(engine(**changes), block, prompts=True)
    assert named in found
