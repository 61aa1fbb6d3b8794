import struct
from pathlib import Path

import pytest

from eldr_tiny_moe import corpus


def compiled(messages: dict[str, str]) -> bytes:
    """A gettext catalog as msgfmt writes it."""
    entries = sorted({"": "Content-Type: text/plain", **messages}.items())
    tables, strings = [], b""
    start = 28 + 16 * len(entries)
    for column in (0, 1):
        for entry in entries:
            data = entry[column].encode()
            tables.append(struct.pack("<II", len(data), start + len(strings)))
            strings += data + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, 0)
    return header + b"".join(tables) + strings


@pytest.fixture
def machine(tmp_path: Path) -> corpus.Machine:
    """A slim machine: an interpreter's library with one package, copies of which are too small or not wanted, one catalog."""
    stdlib, share = tmp_path / "test" / "lib", tmp_path / "share"
    (stdlib / "package" / "test").mkdir(parents=True)
    (stdlib / "package" / "code.py").write_text(
        "".join(f"def f{i}(x): return x + {i}\n" for i in range(2500))
    )
    (stdlib / "package" / "more.py").write_text("".join(f"class C{i}: value = {i}\n" for i in range(2500)))
    (stdlib / "package" / "test" / "unwanted.py").write_text("unwanted\n" * 9999)
    (share / "common-licenses").mkdir(parents=True)
    (share / "common-licenses" / "short").write_text("You may copy it.")
    (share / "man" / "man1").mkdir(parents=True)
    (share / "man" / "man1" / "damaged.1.gz").write_bytes(b"no gzip")
    (share / "locale" / "fr" / "LC_MESSAGES").mkdir(parents=True)
    for name in "ab":
        words = {f"{name}{i}": f"Un message traduit, numéro {i} du catalogue {name}." for i in range(900)}
        (share / "locale" / "fr" / "LC_MESSAGES" / f"{name}.mo").write_bytes(compiled(words))
    return corpus.Machine(stdlib, share)


def test_a_machine_without_any_text_has_five_kinds(tmp_path: Path) -> None:
    texts = corpus.load(corpus.Machine(tmp_path, tmp_path))
    assert set(texts) == {"json", "numbers", "french", "russian", "chinese"}
    assert all(text.generated for text in texts.values())


def test_real_text_goes_before_generated(machine: corpus.Machine) -> None:
    texts = corpus.load(machine)
    assert not texts["python"].generated
    assert "unwanted" not in texts["python"].text
    assert not texts["french"].generated
    assert "numéro 7 du catalogue b" in texts["french"].text
    assert texts["russian"].generated
    assert "licence" not in texts, "16 characters are no kind of text"


def test_the_same_files_and_seed_give_the_same_texts_and_prompts(machine: corpus.Machine) -> None:
    first, second = corpus.load(machine, seed=3), corpus.load(machine, seed=3)
    assert first == second
    draws = [
        [p.characters(k, 100) for k in first for _ in range(5)]
        for p in (corpus.Prompts(first, 5) for _ in range(2))
    ]
    assert draws[0] == draws[1]
    assert draws[0] != [
        p for q in [corpus.Prompts(first, 6)] for k in first for p in [q.characters(k, 100)] for _ in range(5)
    ]


def test_prompts_have_their_length_and_beginnings_of_their_own() -> None:
    prompts = corpus.Prompts(corpus.load(), seed=0)
    drawn = [prompts.characters(kind, 200) for kind in ("json", "python", "chinese") for _ in range(100)]
    assert {len(prompt) for prompt in drawn} == {200}
    assert len({prompt[: corpus.HEAD] for prompt in drawn}) == 300


@pytest.mark.parametrize(
    ("kind", "n", "message"),
    [
        ("klingon", 10, "there is no 'klingon' here, only chinese"),
        ("few", 0, "expected 1..40"),
        ("few", 41, "expected 1..40"),
    ],
)
def test_a_wrong_draw_is_refused(kind: str, n: int, message: str) -> None:
    texts = {"chinese": corpus.Text("x" * 40, generated=True), "few": corpus.Text("y" * 40, generated=True)}
    with pytest.raises(ValueError, match=message):
        corpus.Prompts(texts).characters(kind, n)
