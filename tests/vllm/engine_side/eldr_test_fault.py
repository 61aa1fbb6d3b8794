"""Lets counting fail from the next step on, once the file ``fault`` lies in the folder."""

from __future__ import annotations

from typing import Any

from eldr_test_connector import Idle


def _fail(*_: Any) -> None:
    raise RuntimeError("CUDA out of memory")


class Fault(Idle):
    """Breaks the kernels under the worker's half."""

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if (self._folder / "fault").exists():
            from eldr.engine.capture import kernels

            kernels.count_step = kernels.count_blocks = _fail
