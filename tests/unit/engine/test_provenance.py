"""Which blocks' counts can be summed; under vLLM's own scheduler: ``tests/engine/test_scheduling.py``."""

import pytest

from eldr.engine.prefill.provenance import CountedBlocks


def following(hash_size=4, **requests):
    """Return what follows requests with these hashes, over blocks of four tokens."""
    blocks = CountedBlocks(4, hash_size)
    for name, hashes in requests.items():
        blocks.add(name, hashes)
    return blocks


def test_blocks_count_from_the_step_that_computes_their_first_token():
    blocks = following(a=["p", "pq"])
    assert blocks.counted("a", [1, 2, 3]) == []
    blocks.computed([("a", 0, 5)], lambda _: [1, 2, 3])
    assert blocks.counted("a", [1, 2, 3]) == [1, 2]
    blocks.computed([("a", 5, 4)], lambda _: [1, 2, 3])
    assert blocks.counted("a", [1, 2, 3]) == [1, 2, 3], "the last one is not full, and its own"


def test_what_another_one_computed_counts_where_it_is_the_same():
    blocks = following(a=["p", "pq"], same=["p", "pq"], other=["p", "px"], short=["p"])
    blocks.computed([("a", 0, 8)], lambda _: [1, 2])
    blocks.forget("a")
    assert blocks.counted("same", [1, 2]) == [1, 2]
    assert blocks.counted("other", [1, 2]) == [1]
    assert blocks.counted("short", [1, 2]) == [1], "whose second block is not full"
    assert blocks.counted("same", [2, 1]) == [], "in other places"


def test_a_block_that_was_given_to_another_one_and_not_computed_does_not_count():
    """As when another connector fills it, or a step preempts the request that it was to compute."""
    blocks = following(a=["p", "pq"], b=["r", "rs"])
    blocks.computed([("a", 0, 8)], lambda _: [1, 2])
    blocks.computed([("b", 4, 4)], lambda _: [1, 2])
    assert blocks.counted("b", [1, 2]) == [2]
    assert blocks.counted("a", [1, 2]) == [1]


def test_hashes_that_come_later_are_seen():
    a, b = ["p"], ["p", "pq"]
    blocks = following(a=a, b=b)
    blocks.computed([("a", 0, 6)], lambda _: [1, 2])
    assert blocks.counted("b", [1, 2]) == [1]
    a.append("pq")
    assert blocks.counted("b", [1, 2]) == [1, 2]


@pytest.mark.parametrize(
    ("hash_size", "hashes"), [(2, ["-", "p", "--", "pq"]), (4, ["p", "pq"]), (8, ["pq"]), (6, ["-", "pq+"])]
)
def test_hashes_of_other_sizes(hash_size, hashes):
    """Finer ones, where groups have blocks of several sizes; coarser ones, which cover more than the block."""
    other = [*hashes[:-1], "pX"]
    blocks = following(hash_size, a=hashes, same=list(hashes), other=other)
    blocks.computed([("a", 0, 8)], lambda _: [1, 2])
    assert blocks.counted("same", [1, 2]) == [1, 2]
    assert blocks.counted("other", [1, 2]) == ([1] if hash_size < 8 else [])


def test_without_hashes_each_request_counts_its_own():
    blocks = following(a=[], b=[])
    blocks.computed([("a", 0, 8), ("b", 0, 4)], {"a": [1, 2], "b": [3]}.__getitem__)
    assert blocks.counted("a", [1, 2]) == [1, 2]
    assert blocks.counted("b", [1, 2]) == []


def test_what_nobody_follows_spoils_the_blocks_that_it_computes():
    blocks = following(a=["p", "pq"])
    blocks.computed([("a", 0, 8)], lambda _: [1, 2])
    blocks.computed([("unknown", 4, 1)], lambda _: [9, 2])
    assert blocks.counted("a", [1, 2]) == [1]


def test_spoiled_blocks_count_from_their_first_token_on_again():
    blocks = following(a=["p", "pq"])
    blocks.computed([("a", 0, 8)], lambda _: [1, 2])
    blocks.spoil([1, 2])
    assert blocks.counted("a", [1, 2]) == []
    blocks.computed([("a", 2, 6)], lambda _: [1, 2])
    assert blocks.counted("a", [1, 2]) == [2]
