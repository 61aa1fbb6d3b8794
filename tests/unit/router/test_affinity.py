"""Prefill engines by prefix: chains of blocks, what the index knows, where prompts go."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.placement.affinity import BOUND, REASONS, SLACK, TOLERANCE, PrefixAffinity
from eldr_router.placement.prefixes import ENDS, SHARED, PrefixIndex, chain

NAMES = [f"prefill-{i}" for i in range(8)]
IDLE = [0] * 8


def chat(*texts, system=""):
    """Return the array of a conversation and its stem."""
    messages = [{"role": "system", "content": system}] if system else []
    for at, text in enumerate(texts):
        messages.append({"role": "assistant" if at % 2 else "user", "content": text})
    stem = len(json.dumps(messages[: 2 if system else 1]).encode()) - 1
    return json.dumps(messages).encode(), stem


def send(affinity, *texts, system="", loads=None, names=NAMES):
    prompt, stem = chat(*texts, system=system)
    return affinity.choose(prompt, names, loads or [0] * len(names), prefix=stem)


@given(st.binary(max_size=6000), st.integers(0, 6000), st.binary(max_size=2000))
def test_chains_are_equal_as_far_as_prompts_are(prompt, at, other):
    whole, cut, turned = chain(prompt), chain(prompt[:at]), chain(prompt[:at] + other)
    assert whole[: len(cut)] == cut
    assert turned[: len(cut)] == cut
    assert chain(memoryview(prompt)) == whole
    same = next(
        (i for i, (a, b) in enumerate(zip(prompt, prompt[:at] + other, strict=False)) if a != b), 1 << 20
    )
    for mine, theirs, end in zip(whole, turned, ENDS, strict=False):
        assert (mine == theirs) == (end <= same)


@st.composite
def sends(draw):
    """Prompts that share beginnings, and the engine each was sent to."""
    part = st.sampled_from([b"a" * 256, b"b" * 256, b"c" * 512])
    prompt = st.lists(part, max_size=5).map(b"".join)
    return draw(st.lists(st.tuples(prompt, st.integers(0, 3)), max_size=12)), draw(prompt)


@pytest.mark.slow
@given(sends())
def test_the_index_knows_who_was_sent_the_longest_beginning(case):
    sent, asked = case
    index = PrefixIndex(1000)
    known: dict[int, set[int]] = {}
    for prompt, engine in sent:
        hashes = chain(prompt)
        index.record(hashes, index.match(hashes, 15).depth, 1 << engine)
        for key in hashes:
            known.setdefault(key, set()).add(engine)
    hashes = chain(asked)
    match = index.match(hashes, 15)
    assert match.depth == next((at for at, key in enumerate(hashes) if key not in known), len(hashes))
    assert sum(engines for engines, _ in match.steps) == 15, "every engine once"
    depths = {
        engine: next((at for at, key in enumerate(hashes) if engine not in known.get(key, ())), len(hashes))
        for engine in range(4)
    }
    longest = max(depths.values())
    assert match.steps[-1][0] == sum(1 << engine for engine, depth in depths.items() if depth == longest)
    worths = [worth for _, worth in match.steps]
    assert worths == sorted(worths)


def test_what_goes_on_in_many_ways_is_worth_less():
    index = PrefixIndex(1000)
    shared = b"s" * 2048
    for n in range(2 * SHARED):
        hashes = chain(shared + b"%d" % n * 512)
        index.record(hashes, index.match(hashes, 1).depth, 1)
    assert index.match(chain(shared), 1).steps == [(1, 1024.0)]
    growing = PrefixIndex(1000)
    for turns in range(1, 9):
        hashes = chain(b"t" * 512 * turns)
        growing.record(hashes, growing.match(hashes, 1).depth, 1)
    assert growing.match(chain(b"t" * 4096), 1).steps == [(1, 4096.0)], (
        "a conversation that grows is not shared"
    )


def test_the_index_is_bounded_and_forgets_the_ends_of_the_oldest():
    index = PrefixIndex(20)
    for n in range(50):
        hashes = chain(b"%02d" % n * 1024)
        index.record(hashes, index.match(hashes, 1).depth, 1)
        assert len(index) <= 20
    assert [index.match(chain(b"%02d" % n * 1024), 1).depth for n in (46, 47, 48, 49)] == [0, 4, 8, 8]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.binary(max_size=700),
    st.integers(0, 700),
    st.binary(max_size=3),
)
def test_load_is_bounded(loads, prompt, stem, session):
    affinity = PrefixAffinity()
    for _ in range(2):
        choice = affinity.choose(
            prompt, NAMES[: len(loads)], loads, prefix=min(stem, len(prompt)), session=session
        )
        assert loads[choice.position] <= BOUND * sum(loads) / len(loads) + SLACK
        assert choice.reason in REASONS


def test_a_conversation_stays_on_every_router():
    routers = [PrefixAffinity() for _ in range(4)]
    for n in range(50):
        texts = [f"{n} asks something"]
        homes = set()
        for turn in range(8):
            busy = [1 if at == turn else 0 for at in range(8)] if turn else IDLE  # low load: affinity wins
            homes.add(send(routers[turn % 4], *texts, system="Be kind. " * 200, loads=busy).position)
            texts += ["an answer " * 30, f"and {turn}?"]
        assert len(homes) == 1


def test_conversations_with_one_system_prompt_spread():
    affinity = PrefixAffinity()
    chosen = Counter(
        send(affinity, f"question {n}", system="You are helpful. " * 125).position for n in range(800)
    )
    assert len(chosen) == 8
    assert max(chosen.values()) < 140
    assert min(chosen.values()) > 60


def test_questions_about_one_long_document_meet():
    routers = [PrefixAffinity(), PrefixAffinity()]
    document = "".join(f"line {n}. " for n in range(3000))
    choices = [send(routers[n % 2], document + f"Question {n}? " * 200) for n in range(12)]
    assert len({choice.position for choice in choices}) == 1
    assert {choice.reason for choice in choices} == {"home", "prefix"}, (
        "many questions, and it is still known there"
    )


def test_adapters_share_no_prefix():
    """Engines keep apart what each adapter (LoRA) has computed."""
    prompt = b"d" * 8192
    assert not set(chain(prompt, b'"a"')) & set(chain(prompt, b'"b"'))
    affinity = PrefixAffinity()
    homes = {
        affinity.choose(prompt, NAMES, [0] * len(NAMES), prefix=8000, model=b'"adapter-%d"' % n).position
        for n in range(40)
    }
    assert homes == set(range(len(NAMES))), "one prompt has as many homes as adapters read it"
    again = [affinity.choose(prompt, NAMES, [0] * len(NAMES), prefix=8000, model=b'"a"') for _ in range(3)]
    assert len({choice.position for choice in again}) == 1


def test_text_without_a_stem_finds_its_beginning_and_spreads():
    affinity = PrefixAffinity()
    shared = b"Complete this. " * 140
    chosen = []
    for n in range(200):
        text = shared + b"%d " % n * 3000
        chosen.append(affinity.choose(text, NAMES, IDLE).position)
        assert affinity.choose(text + b"more " * 2000, NAMES, IDLE).position == chosen[-1]
    assert max(Counter(chosen[20:]).values()) < 50


def test_a_loaded_home_is_left_and_first_turns_leave_sooner():
    affinity = PrefixAffinity()
    home = send(affinity, "hello").position
    loads = [SLACK if at == home else 0 for at in range(8)]
    assert send(affinity, "hello", "hi", "and?", loads=loads).position == home
    assert send(affinity, "hello", loads=loads).position != home, "nothing is cached for a first turn"
    loads[home] += 2
    away = send(affinity, "hello", "hi", "and?", loads=loads)
    assert away.position != home
    assert away.reason == "load"
    assert send(PrefixAffinity(), "hello", "hi", "and?", loads=loads).position == away.position, (
        "to the same one"
    )


def test_much_that_is_known_elsewhere_draws_a_conversation_away_and_little_does_not():
    for size, stays in ((TOLERANCE // 2, False), (TOLERANCE * 2, True)):
        affinity = PrefixAffinity()
        home = send(affinity, "hello").position
        loads = [9 if at == home else 0 for at in range(8)]
        away = send(affinity, "hello", "x" * size, "and?", loads=loads).position
        back = send(affinity, "hello", "x" * size, "and?", "yes", "so?")
        assert (back.position, back.reason) == ((away, "prefix") if stays else (home, "home"))


def test_a_session_wins_over_the_prefix():
    affinity = PrefixAffinity()
    prompt, stem = chat("x" * 20000)
    known = affinity.choose(prompt, NAMES, IDLE, prefix=stem).position
    sessions = [
        affinity.choose(prompt, NAMES, IDLE, prefix=stem, session=b"s%d" % n).position for n in range(100)
    ]
    assert len(set(sessions)) == 8, known
    other = PrefixAffinity()
    assert [other.choose(b"", NAMES, IDLE, session=b"s%d" % n).position for n in range(100)] == sessions
    assert affinity.choose(prompt, NAMES, IDLE, session=b"s1").reason == "session"


def test_nothing_to_go_by_is_the_least_loaded_in_turn():
    affinity = PrefixAffinity()
    assert affinity.choose(b"", NAMES[:3], [2, 1, 3]) == (1, "load")
    assert {affinity.choose(b"", NAMES[:3], [1, 1, 1]).position for _ in range(3)} == {0, 1, 2}


def test_engines_that_went_are_forgotten_and_few_conversations_move():
    affinity = PrefixAffinity()
    document = "y" * 20000
    names = NAMES
    at = send(affinity, document, names=names).position
    assert send(affinity, document, "?", "!", names=names).position == at
    stays = {n: send(affinity, f"q{n}", names=names).position for n in range(300)}
    affinity.forget([names[at]])
    hashes_known = send(affinity, document + "other question", names=names)
    assert hashes_known.reason != "prefix", "the engine came back with an empty cache"
    fewer = names[:-1]
    moved = {n for n, engine in stays.items() if send(affinity, f"q{n}", names=fewer).position != engine}
    assert moved == {n for n, engine in stays.items() if engine == 7}
    for n in range(3000):  # pods come and go
        send(affinity, "q", names=[f"pod-{n}", f"pod-{n + 1}"])
        affinity.forget([f"pod-{n}"])
    assert len(affinity._engines) < 600
