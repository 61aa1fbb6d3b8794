"""Whether the ranks of an expert-parallel group have the same in hand.

Ranks that choose replicas by different maps, settings or versions compute an expert twice or not at all, without any
error: the answers are just wrong. So versions and settings are compared at the start, and maps whenever EPLB has changed them.
"""

from __future__ import annotations

from typing import Any

import torch.distributed


def gather(said: object, group: Any) -> list[Any]:
    """Return the value of each rank of a group; a collective, so that every rank must call it.

    Parameters
    ----------
    said : object
        To be pickled.
    group : vllm.distributed.parallel_state.GroupCoordinator
    """
    every: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(every, said, group=group.cpu_group)
    return every
