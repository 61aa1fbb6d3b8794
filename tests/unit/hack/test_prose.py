"""Texts for users: which sentences the check refuses, and which it leaves alone."""

import click
import pytest

from tests.support.scripts import script


@pytest.fixture(scope="module")
def prose():
    return script("prose")


@pytest.fixture
def faults(prose, monkeypatch, tmp_path):
    monkeypatch.setattr(prose, "ROOT", tmp_path)

    def faults(text):
        page = tmp_path / "page.md"
        page.write_text(text)
        return list(prose.check(prose.markdown(page)))

    return faults


def test_a_long_sentence_is_named_with_its_length(faults):
    (fault,) = faults(f"Short one. W{'word ' * 35}word. Another one.")
    assert fault.startswith("page.md: 36 words, 35 at most")
    assert faults(f"{'word ' * 34}word.") == []


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("It was mended.", "fixed"),
        ("A re-fit runs.", "refit"),
        ("# How it is mended", "fixed"),
    ],
)
def test_words_to_avoid_are_named_with_a_better_one(faults, text, better):
    (fault,) = faults(text)
    assert "write " in fault
    assert better in fault


@pytest.mark.parametrize(
    "text",
    [
        f"| {'word ' * 50} |",
        f"```\n{'word ' * 50}\n```",
        "The field `harms` is an array.",
        "A [page](docs/mended.md).",
        "\n".join(f"- {'word ' * 20}" for _ in range(3)),
    ],
)
def test_tables_code_headings_and_list_items_are_no_long_sentences(faults, text):
    assert faults(text) == []


@pytest.mark.parametrize(("words", "sentences", "wrong"), [(18, 10, 0), (19, 10, 2), (19, 9, 0)])
def test_half_of_a_pages_sentences_are_short(faults, words, sentences, wrong):
    found = faults(f"Word{' word' * (words - 1)}. " * sentences)
    assert [one.split(":")[0] for one in found] == ["page.md", "all texts"][:wrong]


def test_every_help_text_is_read(prose):
    inner = click.Command("inner", params=[click.Option(["--x"], help="It was mended.")], help="Fine.")
    outer = click.Group("outer", commands={"inner": inner}, help="Mended, too.")
    found = prose.check(prose.helps(outer, "outer"))
    assert [one.split(":")[0] for one in found] == ["outer --help", "outer inner --x"]


def test_texts_in_the_code_are_read(prose, monkeypatch, tmp_path):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text(
        '"""It was mended, says this docstring."""\n\n'
        'log.warning("engine %s is well again", name)\n'
        'raise Error(f"{kind} {name}: it was mended by {somebody}, " "and re-fits follow")\n'
        'key = "mended"\n'
    )
    found = [fault.split("\n")[0] for fault in prose.check(prose.literals(module))]
    assert sorted(one.split(": write")[0] for one in found) == [
        "module.py:3: 'well again'", "module.py:4: 'mended'", "module.py:4: 're-fits'"
    ]  # fmt: skip


def test_names_docstrings_and_comments_use_the_fields_words(prose, tmp_path):
    path = tmp_path / "module.py"
    path.write_text('"""What engines told."""\nfound_ = 1\nfounder = told = 2  # as heard\n')
    places = [fault.removeprefix(f"{path}:").split(":")[:2] for fault in prose.own_words(path)]
    assert places == [["1", " 'told'"], ["2", " 'found'"], ["3", " 'told'"], ["3", " 'heard'"]]


def test_public_docstrings_are_complete(prose, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        f'"""{"x" * 73}"""\n\n\n'
        "class Thing:\n"
        '    """One.\n\n    Parameters\n    ----------\n    first, second : int\n        How many.\n\n    Notes\n    -----\n    third : no\n    """\n\n'
        "    def __init__(self, first, second, *, third): ...\n\n"
        f'    def _private(self, other):\n        """{"x" * 73}"""\n'
    )
    faults = [fault.removeprefix(f"{path}:") for fault in prose.docstrings(path)]
    assert faults == [
        "1: the first line of the docstring has more than 72 characters: say the rest below",
        "4: Parameters lacks third",
    ]
