import gzip
from pathlib import Path

import pytest

from eldr_bench.machine import ROOT
from eldr_lab.training import training_texts
from eldr_lab.training.html_pages import html_page
from eldr_tiny_moe.corpus import Machine

PARAGRAPH = (
    "You may copy, change and pass on this work, provided that you let others do the same with it. " * 20
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    stdlib, share = tmp_path / "lib", tmp_path / "share"
    (stdlib / "package").mkdir(parents=True)
    for i in range(20):
        (stdlib / f"module{i}.py").write_text(f"value{i} = {i}\n" * 200)
    (stdlib / "short.py").write_text("pass\n")
    (stdlib / "package" / "held_out.py").write_text("held = 'out'\n" * 200)
    for name in ("alpha", "beta", "zeta"):
        (share / "doc" / name).mkdir(parents=True)
        own = f"{name} belongs to whoever wrote {name}. " * 60
        (share / "doc" / name / "copyright").write_text(f"{PARAGRAPH}\n\n{own}")
        (share / "doc" / name / "changelog.gz").write_bytes(
            gzip.compress(f"* {name} is better\n".encode() * 99)
        )
    return Machine(stdlib, share)


def test_whole_documents_are_held_out(machine: Machine, tmp_path: Path) -> None:
    split = training_texts.load(tmp_path / "packages", machine)["python"]
    assert (len(split.train), len(split.held_out)) == (17, 3)
    assert not set(split.train) & set(split.held_out)
    assert "held = 'out'" not in "".join([*split.train, *split.held_out]), (
        "packages of the library are for prompts"
    )


def test_the_same_seed_gives_the_same_split(machine: Machine, tmp_path: Path) -> None:
    first, second, other = (training_texts.load(tmp_path, machine, seed)["python"] for seed in (1, 1, 2))
    assert first == second
    assert first.held_out != other.held_out


def test_a_paragraph_of_a_licence_is_read_once(machine: Machine, tmp_path: Path) -> None:
    split = training_texts.load(tmp_path / "packages", machine)["licence"]
    everything = "\n".join([*split.train, *split.held_out])
    assert everything.count(PARAGRAPH.strip()) == 1
    assert all(f"belongs to whoever wrote {name}" in everything for name in ("alpha", "beta", "zeta"))


def test_changelogs_of_the_second_half_are_for_prompts(machine: Machine, tmp_path: Path) -> None:
    split = training_texts.load(tmp_path / "packages", machine)["changelog"]
    assert "zeta" not in "".join([*split.train, *split.held_out])


def test_kinds_without_documents_are_left_out(machine: Machine, tmp_path: Path) -> None:
    assert set(training_texts.load(tmp_path / "packages", machine)) == {"python", "licence", "changelog"}


def test_the_models_notice_names_every_package():
    notice = (ROOT / "hack" / "tiny_moe" / "model" / "NOTICE.md").read_text()
    assert not [package for package in training_texts.PACKAGES if f"`{package}`" not in notice]


def test_a_page_of_html_loses_its_tags(tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    page.write_text("<head><title>no</title></head><body><p>One &amp;  two<script>no</script><p>three</body>")
    assert html_page(page) == "One & two\nthree"
