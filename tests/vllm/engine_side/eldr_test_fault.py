"""Has one function of the plug-in fail, on one rank, from the next step on, as the file ``fault`` in the folder says.

It holds a rank and a function, as ``1 eldr.engine.decode.tracking:Tracker.step``; once it is gone the function is whole again, and
counting begins anew. Schedulers and API servers have no ranks of their own: there it fails for rank 0.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from typing import Any

from eldr_test_connector import Idle
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.parallel_state import get_world_group


class Fault(Idle):
    """Breaks functions under both halves."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        parallel = vllm_config.parallel_config
        self._rank = parallel.data_parallel_rank
        if role == KVConnectorRole.WORKER:
            self._rank = get_world_group().rank
        self._whole: tuple[Any, str, Any] | None = None
        self._stopped: list[Any] = []  # by a fault

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._follow()

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._follow()
        return super().build_connector_meta(scheduler_output)

    def _follow(self) -> None:
        asked = ""
        with contextlib.suppress(FileNotFoundError):  # it may go at any time
            asked = (self._folder / "fault").read_text()
        if asked:
            self._stopped = self._stopped or list(_counting())
            rank, target = asked.split()
            if self._whole is None and int(rank) == self._rank:
                self._break(target)
            return
        if self._whole is not None:
            setattr(*self._whole)
            self._whole = None
        for one in self._stopped:  # in each step: reports of steps before may be on their way
            if hasattr(one, "stopped"):
                one.stopped = ""
            else:
                one._tail[-1].zero_()

    def _break(self, target: str) -> None:
        module, _, path = target.partition(":")
        *outer, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for part in outer:
            owner = getattr(owner, part)
        self._whole = owner, name, vars(owner)[name]

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"{target} fails")

        setattr(owner, name, fail)


def _counting() -> Iterator[Any]:
    from eldr.engine.capture.union import GroupUnion
    from eldr.engine.counting import Counting

    gc.unfreeze()  # vLLM freezes what is there when an engine has started, and objects that are frozen are not listed
    # not isinstance, which asks proxies of objects that are gone
    return (one for one in gc.get_objects() if type(one) in {Counting, GroupUnion})
