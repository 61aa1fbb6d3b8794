"""Which blocks' counts can be summed; under vLLM's own scheduler: ``tests/engine/test_scheduling.py``."""

import pytest

from eldr.engine.prefill.provenance import CountedBlocks


@pytest.fixture
def blocks():
    return CountedBlocks(4)


def table(**blocks):
    return blocks.__getitem__


def test_new_blocks_count_from_the_step_that_computes_their_first_token(blocks):
    blocks.matched("a", 4)
    blocks.allocated("a", lambda: [1, 2, 3])
    assert blocks.counted([1, 2, 3]) == [1]
    blocks.computed([("a", 4, 5)], table(a=[1, 2, 3]))
    assert blocks.counted([1, 2, 3]) == [1, 2, 3]


def test_loaded_blocks_and_the_one_that_was_loaded_in_part_do_not_count(blocks):
    blocks.matched("a", 4)
    blocks.allocated("a", lambda: [1, 2, 3, 4])
    blocks.computed([("a", 10, 3)], table(a=[1, 2, 3, 4]))  # 4 cached, 6 loaded
    assert blocks.counted([1, 2, 3, 4]) == [1, 4]
    blocks.forget("a")
    blocks.matched("b", 12)
    blocks.allocated("b", lambda: [1, 2, 3, 9])
    blocks.computed([("b", 12, 2)], table(b=[1, 2, 3, 9]))
    assert blocks.counted([1, 2, 3, 9]) == [1, 9]


def test_a_second_allocation_without_a_look_up_changes_nothing(blocks):
    blocks.matched("a", 0)
    blocks.allocated("a", lambda: [1, 2])
    blocks.computed([("a", 0, 8)], table(a=[1, 2]))
    blocks.allocated("a", lambda: [1, 2, 3])
    assert blocks.counted([1, 2]) == [1, 2]


def test_a_block_that_is_allocated_again_starts_anew(blocks):
    for request in "ab":
        blocks.matched(request, 0)
        blocks.allocated(request, lambda: [1, 2])
        assert blocks.counted([1, 2]) == []
        blocks.computed([(request, 0, 8)], lambda _: [1, 2])
        assert blocks.counted([1, 2]) == [1, 2]


def test_spoiled_blocks_count_from_their_first_token_on_again(blocks):
    blocks.spoil([1, 2])
    assert blocks.counted([1, 2, 3]) == [3]
    blocks.computed([("a", 2, 4)], lambda _: [1, 2])
    assert blocks.counted([1, 2]) == [2]
