"""Last words of an engine that the plug-in ends: Kubernetes shows them in the status of its pod.

References
----------
.. [1] Kubernetes, "Determine the Reason for Pod Failure": the file that becomes a container's termination message.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from eldr import contract
from eldr.engine import needs
from eldr.engine.errors import RankAloneError, RanksDisagreeError, UnsupportedEngineError

logger = logging.getLogger("vllm.eldr")  # as in counting

TERMINATION_LOG = Path("/dev/termination-log")
_MOST = 4096  # bytes that Kubernetes takes


def leave(reason: str, path: Path = TERMINATION_LOG) -> None:
    """Write why the engine ends to where Kubernetes looks; nothing, where no Kubernetes has put that file.

    Parameters
    ----------
    reason : str
        With the remedy. Processes of an engine that refuse together leave one of their texts.
    path : Path
        The container's ``terminationMessagePath``.
    """
    with contextlib.suppress(OSError):  # the log has it, too
        if path.is_file():
            path.write_bytes(f"{contract.REFUSAL}{reason}".encode()[:_MOST])


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Report the reason of whatever ends the engine in this context; where other ranks wait for this one, end its process at once.

    vLLM reports what one rank raises and goes on waiting for the others, but sees at once that a process is gone.
    """
    try:
        yield
    except (UnsupportedEngineError, RanksDisagreeError) as error:
        leave(str(error))
        raise
    except RankAloneError as error:
        leave(str(error))
        logger.exception("ELDR: this process ends, for other ranks wait for it")
        os._exit(1)


@contextlib.contextmanager
def of_missing_fields() -> Iterator[None]:
    """As :func:`reported`, where an engine's configuration is read: a field that this vLLM has not refuses the engine by its name."""
    with reported():
        try:
            yield
        except AttributeError as error:
            raise UnsupportedEngineError(needs.lack([str(error)])) from error
